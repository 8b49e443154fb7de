"""Manifests: the small records in the bucket that say which snapshots of each store count.

    FORMAT                  put once: the format version of everything of ours in the bucket
    manifests/<shard:02x>   one of 256 shards, chosen by a store's hash

A shard maps each of its stores to an entry: the versions that are kept, newest first; up to which
seq the store is archived; and a tombstone once it was deleted. There are shards because a million
cold stores must not need a million objects, and what a server publishes in one pass must not need a
request per store. Invariants:

- A shard changes only by compare-and-set, and `generation` grows by one with each change, so no two
  of its bodies are equal.
- Versions are ordered by (epoch, revision). Publishing one that is not beyond the newest changes
  nothing, so a zombie's snapshot, which is a prefix of the truth, never becomes the newest.
- Nothing is published to a store that was deleted in the same or a later epoch.
- Nothing is published that was taken before `collected_before`. The collector raises this value in
  the shard before it removes an object (`collecting.py`), so it may have removed that one.
- The publisher adds a version only after its object was put and verified.
- The newest version is never removed, except with the whole store.

`Shard` and the functions on entries are pure. `Manifests` reads and changes shards in a bucket, and
blocks. The collector deletes what no version names any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket, Object
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketUnavailableError,
    ObjectConflictError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
)

SHARD_COUNT: Final = 256
FORMAT_KEY: Final = "FORMAT"
FORMAT_VERSION: Final = 1
MANIFEST_PREFIX: Final = "manifests/"
_FORMAT_TEXT: Final = "holdfast bucket, format "
#: The encoding of a shard; its first element.
_SHARD_FORMAT: Final = 1
#: With ten million stores of eight versions each, a shard would have about 50 MiB.
_MAX_SHARD_BYTES: Final = 256 * MIB
#: Tries of one compare-and-set. Each one is lost to another publisher that won, so others would
#: have to be this many times as fast to make one give up.
_CAS_TRIES: Final = 32
_COMPRESSION_LEVEL: Final = 3
#: Large shards whose bodies are kept after reading, and the size from which a shard is large.
_KEPT_SHARDS: Final = 32
_SMALL_SHARD_BYTES: Final = 32 * KIB


@dataclass(frozen=True, slots=True)
class SnapshotVersion:
    """One snapshot of a store, and its place.

    The `length` bytes from `offset` of object `key` are one zstd frame, whose content has this
    sha256 (hex) and `image_bytes` bytes.
    """

    key: str
    offset: int
    length: int
    sha256: str
    image_bytes: int
    epoch: int
    revision: int
    last_seq: int
    count: int
    bytes: int
    #: Times of the store's last change and of the snapshot, in milliseconds since the epoch.
    time: int
    taken: int

    @property
    def order(self) -> tuple[int, int]:
        """The order of versions."""
        return self.epoch, self.revision


class Tombstone(NamedTuple):
    """The store was deleted in this epoch; nothing of this or an earlier epoch comes back.

    A new store of the same name starts beyond `revision`.
    """

    epoch: int
    time: int
    revision: int = 0


class ArchiveMark(NamedTuple):
    """The changes of a store that a table has: all up to a revision, by an owner of this epoch."""

    epoch: int
    revision: int
    #: The URL of the table; empty for the bucket's own table.
    table: str


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """What the bucket knows of one store. `versions` are newest first."""

    versions: tuple[SnapshotVersion, ...] = ()
    #: Messages up to this seq are in the archive's tables.
    archived_seq: int = 0
    deleted: Tombstone | None = None
    #: Where the archive is; None if an export of an earlier version archived it.
    archive: ArchiveMark | None = None

    @property
    def newest(self) -> SnapshotVersion | None:
        return self.versions[0] if self.versions else None

    def at(self, *, time: int | None = None, revision: int | None = None) -> SnapshotVersion | None:
        """Return the newest version that has no change after a time or a revision."""
        for version in self.versions:
            if (time is None or version.time <= time) and (
                revision is None or version.revision <= revision
            ):
                return version
        return None


class Published(StrEnum):
    """The outcome of publishing a version."""

    NEWEST = "newest"
    #: The entry already has this version or a newer one.
    OLDER = "older"
    DELETED = "deleted"
    #: Its object may have been collected meanwhile, so the snapshot must be taken again.
    COLLECTED = "collected"


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Keep at most `count` versions, and only those that show the store within the last `days`.

    The newest version is always kept.
    """

    count: int = 8
    days: float = 7.0


def with_version(
    entry: StoreEntry | None, version: SnapshotVersion, collected_before: int = 0
) -> tuple[StoreEntry, Published]:
    """Return the entry with a version published, in a shard with this `collected_before`."""
    entry = entry or StoreEntry()
    if entry.deleted is not None and version.epoch <= entry.deleted.epoch:
        return entry, Published.DELETED
    newest = entry.newest
    if newest is not None and version.order <= newest.order:
        return entry, Published.OLDER
    if version.taken < collected_before:
        return entry, Published.COLLECTED
    return replace(entry, versions=(version, *entry.versions), deleted=None), Published.NEWEST


def pruned(entry: StoreEntry, keep: KeepPolicy, now_ms: int) -> StoreEntry:
    """Return the entry without the versions that the policy does not keep."""
    horizon = now_ms - int(keep.days * 86_400_000)
    versions = entry.versions
    # A version shows the store until the time when the next one was taken.
    kept = tuple(
        version
        for index, version in enumerate(versions[: max(1, keep.count)])
        if index == 0 or versions[index - 1].taken >= horizon
    )
    return entry if len(kept) == len(versions) else replace(entry, versions=kept)


def deleted(entry: StoreEntry | None, tombstone: Tombstone) -> StoreEntry:
    """Return the entry of a deleted store: no versions, and a tombstone."""
    before = entry.deleted if entry is not None else None
    return StoreEntry(deleted=max(before, tombstone) if before is not None else tombstone)


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
        zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, IndexError
    ) as error:  # fmt: skip
        raise ObjectDamagedError(key=key, reason=f"not a manifest: {error}") from error


def _decompressed(body: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_SHARD_BYTES)


def _check_format(key: str, found: int) -> None:
    if found > _SHARD_FORMAT:
        raise NewerFormatError(what=key, found=found, known=_SHARD_FORMAT)


class Manifests:
    """The manifests of one bucket. Blocking and thread-safe; all methods raise BucketError."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._lock = threading.Lock()
        self._kept: dict[int, Object] = {}

    def read(self, number: int) -> Shard:
        """Return a shard as it is now; an empty one if nothing was ever published to it.

        Raises ObjectDamagedError, NewerFormatError.
        """
        return self._read(number)[0]

    def find(self, store: StoreId) -> StoreEntry | None:
        """Return a store's entry as it is now."""
        number = shard_of(store)
        key = shard_key(number)
        with self._lock:
            found = self._kept.get(number)
        try:
            if found is None or self.bucket.head(key).version != found.version:
                found = self.bucket.get(key)
        except ObjectMissingError:
            return None
        with self._lock:
            self._kept.pop(number, None)
            # Checking whether a small shard has changed takes as long as reading it.
            if found.size_bytes > _SMALL_SHARD_BYTES:
                self._kept[number] = found
            while len(self._kept) > _KEPT_SHARDS:
                del self._kept[next(iter(self._kept))]
        return find_entry(key, found.body, store)

    def entries(self) -> Iterator[tuple[StoreId, StoreEntry]]:
        """Yield every entry of every shard, with one shard in memory at a time."""
        for listed in self.bucket.list(MANIFEST_PREFIX):
            number = listed.key.removeprefix(MANIFEST_PREFIX)
            if listed.key == shard_key(int(number, 16)):
                yield from self.read(int(number, 16)).entries()

    def update(
        self,
        number: int,
        change: Callable[[Shard], Mapping[StoreId, StoreEntry | None]],
    ) -> Shard:
        """Change entries of a shard and return it.

        `change` returns the changed entries. It is called again whenever another writer was faster.
        If it returns none, nothing is written.

        Raises BucketUnavailableError, also if others were always faster, and OutcomeUnknownError.
        """

        def next_of(shard: Shard) -> Shard | None:
            entries = change(shard)
            return shard.changed(entries) if entries else None

        return self._replace(number, next_of)

    def collect_before(self, number: int, before: int) -> Shard:
        """Close a shard to everything that was taken before `before`, and return it as it is then.

        If the returned shard does not name something that old, it never will. Raises as `update`.
        """

        def next_of(shard: Shard) -> Shard | None:
            return shard.collecting(before) if shard.collected_before < before else None

        return self._replace(number, next_of)

    def _replace(self, number: int, next_of: Callable[[Shard], Shard | None]) -> Shard:
        key = shard_key(number)
        for _ in range(_CAS_TRIES):
            shard, version = self._read(number)
            newer = next_of(shard)
            if newer is None:
                return shard
            try:
                if version is None:
                    self.bucket.put_new(key, newer.encode())
                else:
                    self.bucket.replace(key, newer.encode(), version)
            except (ObjectConflictError, ObjectExistsError):
                continue
            return newer
        raise BucketUnavailableError(
            request="replace", key=key, tries=_CAS_TRIES, reason="others keep changing it"
        )

    def update_entry(
        self, store: StoreId, change: Callable[[StoreEntry | None], StoreEntry | None]
    ) -> StoreEntry | None:
        """Change one store's entry and return it; None if it has none. Raises as `update`."""

        def change_one(shard: Shard) -> Mapping[StoreId, StoreEntry | None]:
            before = shard.get(store)
            after = change(before)
            return {} if after == before else {store: after}

        return self.update(shard_of(store), change_one).get(store)

    def publish(
        self, versions: Iterable[tuple[StoreId, SnapshotVersion]], keep: KeepPolicy, now_ms: int
    ) -> dict[StoreId, Published]:
        """Publish at most one version of each store, with one write per shard; return the outcomes.

        Versions beyond `keep` are dropped. Raises as `update`: then some shards may have their
        versions, and publishing again does no harm.
        """
        by_shard: dict[int, dict[StoreId, SnapshotVersion]] = {}
        for store, version in versions:
            by_shard.setdefault(shard_of(store), {})[store] = version
        outcomes: dict[StoreId, Published] = {}
        for number, wanted in sorted(by_shard.items()):

            def add(
                shard: Shard, wanted: Mapping[StoreId, SnapshotVersion] = wanted
            ) -> Mapping[StoreId, StoreEntry | None]:
                entries = {}
                for store, version in wanted.items():
                    entry, outcomes[store] = with_version(
                        shard.get(store), version, shard.collected_before
                    )
                    if outcomes[store] is Published.NEWEST:
                        entries[store] = pruned(entry, keep, now_ms)
                return entries

            self.update(number, add)
        return outcomes

    def _read(self, number: int) -> tuple[Shard, str | None]:
        key = shard_key(number)
        try:
            found = self.bucket.get(key)
        except ObjectMissingError:
            return Shard(), None
        return Shard.decode(key, found.body), found.version


def open_manifests(bucket: Bucket) -> Manifests:
    """Return the manifests of a bucket; mark the bucket as ours if it is not yet.

    Raises as `check_format`.
    """
    for _ in range(2):
        try:
            check_format(bucket)
        except ObjectMissingError:
            try:
                bucket.put_new(FORMAT_KEY, f"{_FORMAT_TEXT}{FORMAT_VERSION}\n".encode())
            except ObjectExistsError:
                continue
        return Manifests(bucket)
    raise ObjectDamagedError(key=FORMAT_KEY, reason="it comes and goes")


def check_format(bucket: Bucket) -> None:
    """Check the FORMAT object of a bucket.

    Raises ObjectMissingError for a bucket that is not ours yet, NewerFormatError for one of a later
    holdfast, ObjectDamagedError for a FORMAT object that is not ours, BucketError.
    """
    text = bucket.get(FORMAT_KEY).body.decode(errors="replace").strip()
    version = text.removeprefix(_FORMAT_TEXT)
    if version == text or not (version.isascii() and version.isdigit()):
        raise ObjectDamagedError(key=FORMAT_KEY, reason="it is not holdfast's")
    if int(version) > FORMAT_VERSION:
        raise NewerFormatError(what=bucket.name, found=int(version), known=FORMAT_VERSION)


_VERSION_FIELDS: Final = tuple(each.name for each in fields(SnapshotVersion))
_values_of: Final = attrgetter(*_VERSION_FIELDS)
_SHA256: Final = _VERSION_FIELDS.index("sha256")


def _row_of(entry: StoreEntry) -> Sequence[Any]:
    versions = []
    for version in entry.versions:
        values = list(_values_of(version))
        values[_SHA256] = bytes.fromhex(version.sha256)
        versions.append(values)
    row = (versions, entry.archived_seq, entry.deleted)
    return row if entry.archive is None else (*row, entry.archive)


def _entry_of(row: Sequence[Any]) -> StoreEntry:
    # Later formats may append values, which this version ignores.
    rows, archived_seq, tombstone = row[:3]
    versions = []
    for values in rows:
        named = dict(zip(_VERSION_FIELDS, values, strict=False))
        named["sha256"] = named["sha256"].hex()
        versions.append(SnapshotVersion(**named))
    return StoreEntry(
        tuple(versions),
        archived_seq,
        Tombstone(*tombstone[:3]) if tombstone is not None else None,
        ArchiveMark(*row[3][:3]) if len(row) > 3 and row[3] is not None else None,
    )
