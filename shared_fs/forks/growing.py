"""The image of a fork, made of the image of the store that it was forked from.

The two share an object, whose content names the parent. Whoever reads the fork makes this of it:

1. The file becomes the fork's. Outcomes of writers are dropped, because writers number their groups
   by store; so are consumers and cursors, which say what the parent's readers have done.
2. Messages behind the cut are removed, and the fork's next message gets the number after it.
3. It continues above all revisions of the parent's, in the fork's epoch.

The same image and numbers always make the same state. So a fork may be opened, dropped and opened
again any number of times before it has a snapshot of its own. Blocking.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.protocol.changes import CHANGE_DELETE_MESSAGES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.applying import AppliedBatch, StoreMeta
from holdfast.shared_fs.store_file.sqlite_connection import set_checksums
from holdfast.shared_fs.store_file.store_file import StoreFile

#: How many messages one change removes.
_CUT_MESSAGES: Final = 1000


class Growth(NamedTuple):
    """What the image of another store becomes."""

    store: StoreId
    cut_seq: int | None
    #: Of the fork. The revision is at least what `first_revision` returns.
    epoch: int
    revision: int
    time: int


def first_revision(parent_revision: int, cut_count: int) -> int:
    """Return a revision above those that a fork reaches while it grows, if at most `cut_count`
    messages of the parent are not its own."""
    return parent_revision + cut_count // _CUT_MESSAGES + 2


def grow_image(image: bytes, parent: StoreId, growth: Growth) -> bytes:
    """Return the image of a fork, with the checksum of each page.

    Raises StoreDamagedError if it is not the parent's, NewerFormatError, StorageFailedError.
    """
    file = StoreFile.of_image(image, Path("image"), parent, writable=True)
    try:
        grow(file, growth)
        grown, page_bytes = bytearray(file.image()), file.page_bytes
    finally:
        file.abandon()
    set_checksums(grown, page_bytes)
    return bytes(grown)


def grow_file(path: Path, parent: StoreId, growth: Growth) -> StoreMeta:
    """Make the parent's image at `path` that of a fork, durably, and return its metadata. Nobody
    else may have the file. Raises as `grow_image`."""
    file = StoreFile.open(path, parent)
    try:
        grow(file, growth)
        file.quick_check()
        meta = file.meta
    except BaseException:
        file.abandon()
        raise
    file.close()
    return meta


def grow(file: StoreFile, growth: Growth) -> None:
    """Make an open file that of a fork. Raises StorageFailedError, StoreDamagedError."""
    file.become(growth.store)
    if growth.store.kind == StoreKind.STREAM:
        file.drop_readers()
        if growth.cut_seq is not None:
            chain = file.chain_at(growth.cut_seq)
            while seqs := file.seqs_from(growth.cut_seq + 1, _CUT_MESSAGES):
                gone = [[CHANGE_DELETE_MESSAGES, seqs]]
                file.apply([AppliedBatch(file.meta.revision, file.meta.time, gone)])
            file.end_at(growth.cut_seq, chain)
    file.go_on_from(growth.revision, time=growth.time)
    file.take(growth.epoch, "", "")
