"""Shards: the objects that the manifests are kept in, each with the entries of many stores. Pure.

    manifests/<shard:02x>   one of 256 shards, chosen by a store's hash

There are shards because a million cold stores must not need a million objects, and the versions
that a server publishes in one pass must not need a request each. `generation` grows by one with
each change, so no two bodies of a shard are equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectDamagedError,
)
from holdfast.shared_fs.forks.fork import ForkOrigin, ForkReference
from holdfast.shared_fs.framed_images.frame_table import TableMark
from holdfast.shared_fs.snapshots.store_entry import (
    VERSION_FIELDS,
    ArchiveMark,
    SnapshotVersion,
    StoreEntry,
    Tombstone,
    version_values,
)

SHARD_COUNT: Final = 256
MANIFEST_PREFIX: Final = "manifests/"
#: The encoding of a shard; its first element.
_SHARD_FORMAT: Final = 1
#: With ten million stores of eight versions each, a shard would have about 50 MiB.
_MAX_SHARD_BYTES: Final = 256 * MIB
_COMPRESSION_LEVEL: Final = 3


def shard_of(store: StoreId) -> int:
    """Return the number of the shard of a store."""
    text = f"{store.tenant}/{int(store.kind)}/{store.name}"
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0]


def shard_key(number: int) -> str:
    return f"{MANIFEST_PREFIX}{number:02x}"


class Shard:
    """One shard as it was read; immutable. Entries are decoded on demand."""

    def __init__(
        self,
        generation: int = 0,
        rows: Mapping[StoreId, Sequence[Any]] | None = None,
        collected_before: int = 0,
    ) -> None:
        self.generation = generation
        #: Milliseconds since the epoch: what was taken earlier and is
        #: not named here may be removed.
        self.collected_before = collected_before
        self._rows = rows or {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, store: StoreId) -> bool:
        return store in self._rows

    def get(self, store: StoreId) -> StoreEntry | None:
        """Return a store's entry; None if the bucket knows nothing of the store."""
        row = self._rows.get(store)
        return None if row is None else _entry_of(row)

    def entries(self) -> Iterator[tuple[StoreId, StoreEntry]]:
        """Yield every entry, in the order of names."""
        for store in sorted(self._rows):
            yield store, _entry_of(self._rows[store])

    def changed(self, entries: Mapping[StoreId, StoreEntry | None]) -> Shard:
        """Return the next generation with these entries replaced; None removes an entry."""
        rows = dict(self._rows)
        for store, entry in entries.items():
            if entry is None:
                rows.pop(store, None)
            else:
                rows[store] = _row_of(entry)
        return Shard(self.generation + 1, rows, self.collected_before)

    def collecting(self, before: int) -> Shard:
        """Return the next generation, which accepts nothing that was taken before `before`."""
        return Shard(self.generation + 1, self._rows, max(self.collected_before, before))

    def encode(self) -> bytes:
        """Return the shard as it is stored in the bucket."""
        stores = [[*store, *row] for store, row in sorted(self._rows.items())]
        packed = msgpack.packb([_SHARD_FORMAT, self.generation, stores, self.collected_before])
        return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(packed)

    @classmethod
    def decode(cls, key: str, body: bytes) -> Shard:
        """Return the shard of a stored object. Raises ObjectDamagedError, NewerFormatError."""
        with _decoding(key):
            content = msgpack.unpackb(_decompressed(body), use_list=False)
            _check_format(key, content[0])
            _, generation, stores, collected_before = content[:4]
            rows = {StoreId(*row[:3]): row[3:] for row in stores}
            return cls(generation, rows, collected_before)


def find_entry(key: str, body: bytes, store: StoreId) -> StoreEntry | None:
    """Return `Shard.decode(key, body).get(store)` at lower cost.

    For a shard of 4,000 stores it takes a fifth of the time. Nearly all of the difference is
    Python's garbage collector looking at the rows.

    Raises ObjectDamagedError, NewerFormatError.
    """
    with _decoding(key):
        unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=_MAX_SHARD_BYTES)
        unpacker.feed(_decompressed(body))
        unpacker.read_array_header()
        _check_format(key, unpacker.unpack())
        unpacker.skip()
        for _ in range(unpacker.read_array_header()):
            values_left = unpacker.read_array_header() - len(StoreId._fields)
            if (unpacker.unpack(), unpacker.unpack(), unpacker.unpack()) == store:
                return _entry_of([unpacker.unpack() for _ in range(values_left)])
            for _ in range(values_left):
                unpacker.skip()
        return None


@contextlib.contextmanager
def _decoding(key: str) -> Iterator[None]:
    try:
        yield
    except (
        zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, IndexError,
        AttributeError,
    ) as error:  # fmt: skip
        raise ObjectDamagedError(key=key, reason=f"not a manifest: {error}") from error


def _decompressed(body: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_SHARD_BYTES)


def _check_format(key: str, found: int) -> None:
    if found > _SHARD_FORMAT:
        raise NewerFormatError(what=key, found=found, known=_SHARD_FORMAT)


_SHA256: Final = VERSION_FIELDS.index("sha256")
_ORIGIN: Final = VERSION_FIELDS.index("origin")
_FRAMES: Final = VERSION_FIELDS.index("frames")
#: The first of the fields that are stored as they are.
_OTHERS: Final = _SHA256 + 1


def _row_of(entry: StoreEntry) -> Sequence[Any]:
    versions = []
    for version in entry.versions:
        values = list(version_values(version))
        values[_SHA256] = bytes.fromhex(version.sha256)
        if version.frames is not None:
            values[_FRAMES] = version.frames.row()
            versions.append(values)
        else:
            # Most are of no fork.
            versions.append(values[:_FRAMES] if version.origin is not None else values[:_ORIGIN])
    row = (versions, entry.archived_seq, entry.deleted)
    if entry.forks:
        return (*row, entry.archive, entry.forks)
    return row if entry.archive is None else (*row, entry.archive)


def _entry_of(row: Sequence[Any]) -> StoreEntry:
    # Later formats may append values, which this version ignores.
    rows, archived_seq, tombstone = row[:3]
    return StoreEntry(
        tuple(map(_version_of, rows)),
        archived_seq,
        Tombstone(*tombstone[:3]) if tombstone is not None else None,
        ArchiveMark(*row[3][:3]) if len(row) > 3 and row[3] is not None else None,
        tuple(map(ForkReference.of_row, row[4])) if len(row) > 4 else (),
    )


def _version_of(row: Sequence[Any]) -> SnapshotVersion:
    key, offset, length, sha256, *values = row[: len(VERSION_FIELDS)]
    if len(row) > _FRAMES and row[_FRAMES] is not None:
        values[_FRAMES - _OTHERS] = TableMark.of_row(row[_FRAMES])
    if len(row) > _ORIGIN and row[_ORIGIN] is not None:
        values[_ORIGIN - _OTHERS] = ForkOrigin.of_row(row[_ORIGIN])
    # Hundreds of stores are in a pack, and share its name.
    return SnapshotVersion(sys.intern(key), offset, length, sha256.hex(), *values)
