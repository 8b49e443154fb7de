"""The content of an open ephemeral store: a file in memory, made anew by each owner."""

from __future__ import annotations

from typing import Any, Final

from holdfast.protocol import changes
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import new_store_image

#: The place of the read and write versions in a file's header, and the value without a WAL
#: (sqlite.org/fileformat2.html, "The Database Header").
_FORMAT_VERSIONS: Final = slice(18, 20)
_ROLLBACK: Final = b"\x01\x01"


def config_of(file: StoreFile) -> dict[str, Any] | None:
    """Return the configuration in the file of an ephemeral store; None for any other store."""
    config, _ = file.limits()
    return config if config.get("ephemeral") is True else None


def begin_in_memory(file: StoreFile, config: dict[str, Any]) -> StoreFile:
    """Return a file in memory without content, which begins where the durable `file` ends.

    Followers of an earlier life are below its first revision, and so must begin anew. Raises
    StorageError.
    """
    meta = file.meta
    made = new_store_image(
        file.store,
        time=meta.time,
        owner=(meta.epoch, meta.server, meta.incarnation),
        batches=[AppliedBatch(0, meta.time, [[changes.CHANGE_CONFIGURE, config]])],
        outcomes=(),
    )
    if made is None:
        reason = f"{file.store}: its configuration does not fit in memory"
        raise StorageFailedError(reason=reason)
    image = bytearray(made.image)
    image[_FORMAT_VERSIONS] = _ROLLBACK
    begun = StoreFile.of_image(bytes(image), file.path, file.store, writable=True)
    if meta.revision > begun.meta.revision:
        begun.go_on_from(meta.revision, time=meta.time, last_seq=meta.last_seq)
    return begun
