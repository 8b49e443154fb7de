"""A small stream and a small kv, what is applied to their files, and what these then hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import new_store_image
from tests.support.present import present

STREAM = StoreId("acme", StoreKind.STREAM, "a.b")
KV = StoreId("acme", StoreKind.KV, "a.b")


def appends(start: int, count: int, size_bytes: int = 5) -> AppliedBatch:
    changes = [[CHANGE_SET_MESSAGE, start + i, bytes(size_bytes)] for i in range(count)]
    return AppliedBatch(start - 1, 1000 + start, changes)


@contextmanager
def reopened(path: Path, store: StoreId = STREAM) -> Iterator[StoreFile]:
    """Open a file, which has to be sound."""
    with closing(StoreFile.open(path, store)) as file:
        yield file
        file.quick_check()


def in_memory_file(store: StoreId) -> StoreFile:
    """Return a new, empty file that is only in memory; `abandon` it. Each costs little."""
    image = new_store_image(store, time=1, owner=(1, "s", "i"), batches=[], outcomes=[])
    content = bytearray(present(image).image)
    # No WAL: sqlite.org/fileformat2.html, "File format version numbers".
    content[18:20] = b"\x01\x01"
    file = StoreFile.of_image(bytes(content), Path("unused"), store)
    file._connection.pragma("query_only", 0)
    return file


def rows_of(file: StoreFile) -> list[tuple[Any, ...]]:
    if file.store.kind == StoreKind.KV:
        return list(file.entries("", None, 10_000, with_values=True))
    return list(file.messages(1, None, 10_000))
