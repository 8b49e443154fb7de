"""Manifests: the small records in the bucket that say which snapshots of each store count.

    FORMAT                  put once: the format version of everything of ours in the bucket
    manifests/<shard:02x>   the entries (`store_entry.py`) of many stores (`shard.py`)

This module reads and changes them in a bucket, and blocks. Invariants:

- A shard changes only by compare-and-set.
- The publisher adds a version only after its object was put and verified.
- The collector raises `collected_before` in a shard before it removes an object
  (`collecting.py`). What was taken earlier is never published, because its object may be gone.

The collector deletes the objects that no version names.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Final

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import KIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import Object
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketUnavailableError,
    ObjectConflictError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
)
from holdfast.shared_fs.snapshots.shard import (
    MANIFEST_PREFIX,
    Shard,
    find_entry,
    shard_key,
    shard_of,
)
from holdfast.shared_fs.snapshots.store_entry import (
    KeepPolicy,
    Published,
    SnapshotVersion,
    StoreEntry,
    pruned,
    with_version,
)

FORMAT_KEY: Final = "FORMAT"
#: Of a new bucket.
FORMAT_VERSION: Final = 1
#: Of a bucket in which a tenant has had a bucket of its own (`places.py`). Versions that know only
#: the first format refuse it when they start, rather than take that tenant's snapshots for lost.
PLACES_FORMAT: Final = 2
#: Of a bucket in which stores have been forked. A version that does not know it would remove the
#: objects of a deleted store that its forks hold.
FORKS_FORMAT: Final = 3
#: Of a bucket that has a snapshot in frames. A version that does not know them would read its first
#: frame, and take the snapshot for damaged.
FRAMES_FORMAT: Final = 4
#: The latest format that this version reads.
LATEST_FORMAT: Final = FRAMES_FORMAT
_FORMAT_TEXT: Final = "holdfast bucket, format "
#: Tries of one compare-and-set. Each one is lost to another publisher that won, so others would
#: have to be this many times as fast to make one give up.
_CAS_TRIES: Final = 32
#: Large shards whose bodies are kept after reading, and the size from which a shard is large.
_KEPT_SHARDS: Final = 32
_SMALL_SHARD_BYTES: Final = 32 * KIB
#: Shards that are fetched before they are wanted. One of a bucket of ten million stores has 5 MB.
_FETCHED_AHEAD: Final = 8


class Manifests:
    """The manifests of one bucket. Blocking and thread-safe; all methods raise BucketError."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._lock = threading.Lock()
        self._kept: dict[int, Object] = {}
        self._may_have_frames = False

    def read(self, number: int) -> Shard:
        """Return a shard as it is now; an empty one if nothing was ever published to it.

        Raises ObjectDamagedError, NewerFormatError.
        """
        return self._read(number)[0]

    def read_each(self, numbers: Iterable[int]) -> Generator[Shard, None, None]:
        """Yield shards as they are now, in this order. Some are fetched ahead, several at once, and
        unpacked one at a time. Raises as `read`."""
        wanted = iter(numbers)
        with ThreadPoolExecutor(_FETCHED_AHEAD, "holdfast.manifests") as pool:
            ahead = deque(
                (number, pool.submit(self._fetch, number))
                for number in islice(wanted, _FETCHED_AHEAD)
            )
            try:
                while ahead:
                    number, fetched = ahead.popleft()
                    found = fetched.result()
                    if (following := next(wanted, None)) is not None:
                        ahead.append((following, pool.submit(self._fetch, following)))
                    yield _decoded(number, found)
            finally:
                for _, fetched in ahead:
                    fetched.cancel()

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
        for number in self.shard_numbers():
            yield from self.read(number).entries()

    def shard_numbers(self) -> Iterator[int]:
        """Yield the numbers of the shards that anything was published to, in ascending order."""
        for listed in self.bucket.list(MANIFEST_PREFIX):
            number = int(listed.key.removeprefix(MANIFEST_PREFIX), 16)
            if listed.key == shard_key(number):
                yield number

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
            if version.frames is not None:
                self._allow_frames()
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

    def _allow_frames(self) -> None:
        if not self._may_have_frames:
            raise_format(self.bucket, FRAMES_FORMAT)
            self._may_have_frames = True

    def _read(self, number: int) -> tuple[Shard, str | None]:
        found = self._fetch(number)
        return _decoded(number, found), None if found is None else found.version

    def _fetch(self, number: int) -> Object | None:
        try:
            return self.bucket.get(shard_key(number))
        except ObjectMissingError:
            return None


def _decoded(number: int, found: Object | None) -> Shard:
    return Shard() if found is None else Shard.decode(shard_key(number), found.body)


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


def raise_format(bucket: Bucket, version: int) -> None:
    """Mark a bucket as of a format, if its format is an earlier one. Raises as `check_format`."""
    while check_format(bucket) < version:
        body = f"{_FORMAT_TEXT}{version}\n".encode()
        with suppress(ObjectConflictError):
            bucket.replace(FORMAT_KEY, body, bucket.head(FORMAT_KEY).version)


def check_format(bucket: Bucket) -> int:
    """Check the FORMAT object of a bucket, and return its version.

    Raises ObjectMissingError for a bucket that is not ours yet, NewerFormatError for one of a later
    holdfast, ObjectDamagedError for a FORMAT object that is not ours, BucketError.
    """
    text = bucket.get(FORMAT_KEY).body.decode(errors="replace").strip()
    version = text.removeprefix(_FORMAT_TEXT)
    if version == text or not (version.isascii() and version.isdigit()):
        raise ObjectDamagedError(key=FORMAT_KEY, reason="it is not holdfast's")
    if int(version) > LATEST_FORMAT:
        raise NewerFormatError(what=bucket.name, found=int(version), known=LATEST_FORMAT)
    return int(version)
