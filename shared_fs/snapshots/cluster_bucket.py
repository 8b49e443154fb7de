"""The bucket of a cluster, as its processes use it: with the buckets of its tenants behind keys
that begin with `places/` (`places.py`).

A tenant's own bucket that is away concerns that tenant alone: its calls fail soon, and most of them
at once, while one of them finds out whether it is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Final

from holdfast.shared_fs.bucket.bucket import MAX_GET_BYTES, Bucket, open_backend, open_bucket
from holdfast.shared_fs.bucket.bucket_backend import Backend, ListedObject, Object, ObjectHead
from holdfast.shared_fs.bucket.bucket_capabilities import Ways
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    BucketUnavailableError,
    ObjectMissingError,
    PlaceUnavailableError,
)
from holdfast.shared_fs.bucket.bucket_tries import (
    DEFAULT_RETRY,
    REAL_SURROUNDINGS,
    Retry,
    Surroundings,
)
from holdfast.shared_fs.snapshots.places import (
    MARK_KEY,
    MAX_RECORD_BYTES,
    PLACE_PREFIX,
    PlaceMark,
    TenantPlace,
    identity,
    place_prefix,
    read_mark,
    read_record,
)

#: How long a server may go on using the place before, in seconds. Nothing depends on it.
LOOK_SECONDS: Final = 60.0
#: How long a place that did not answer is not asked again, in seconds, so that one tenant's bucket
#: does not take all the threads that wait for buckets.
PAUSE_SECONDS: Final = 5.0
#: As for a server's own bucket, but shorter: others wait for the same threads.
PLACE_RETRY: Final = Retry(max_tries=4, timeout_seconds=15.0)
_PLACE_CONNECTIONS: Final = 8


class ClusterBucket(Bucket):
    """The bucket of a cluster, with the tenants' own behind keys that begin with `places/`."""

    def __init__(
        self,
        backend: Backend,
        *,
        retry: Retry = DEFAULT_RETRY,
        surroundings: Surroundings = REAL_SURROUNDINGS,
        ways: Ways | None = None,
        url: str = "",
        open_place: Callable[[str], Bucket] | None = None,
    ) -> None:
        """`open_place` opens the bucket of a URL; it must not create one."""
        super().__init__(backend, retry=retry, surroundings=surroundings, ways=ways)
        self.url = url
        self.open_place = open_place or self._open_with_usage
        self._clock = surroundings.clock
        self._places_lock = threading.Lock()
        self._records_lock = threading.Lock()
        self._opened: dict[str, _OpenPlace] = {}
        self._records: dict[str, TenantPlace] = {}
        self._newest: dict[str, TenantPlace] = {}
        self._looked_at: float | None = None

    # Where new objects go
    def place_of(self, tenant: str) -> str:
        with self._records_lock:
            looked_at = self._looked_at
            if looked_at is None or self._clock() >= looked_at + LOOK_SECONDS:
                self._look()
        return self._prefix_of(tenant)

    def has_own_bucket(self, tenant: str) -> bool:
        return bool(self._prefix_of(tenant))

    def places(self) -> list[str]:
        return [each.prefix for each in self.records() if each.url is not None]

    def records(self) -> list[TenantPlace]:
        """Return the records of all tenants as they are now. Raises ObjectDamagedError,
        NewerFormatError, BucketError."""
        with self._records_lock:
            return self._look()

    def _look(self) -> list[TenantPlace]:
        now = self._clock()
        for listed in super().list(PLACE_PREFIX):
            self.record(listed.key)
        known = tuple(self._records.values())
        found = sorted(known, key=lambda each: (each.tenant, each.number))
        self._newest = {each.tenant: each for each in found}
        self._looked_at = now
        return found

    def _prefix_of(self, tenant: str) -> str:
        newest = self._newest.get(tenant)
        return newest.prefix if newest is not None else ""

    def record(self, key: str) -> TenantPlace:
        """Return a record. Raises ObjectMissingError, ObjectDamagedError, BucketError."""
        found = self._records.get(key)
        if found is None:
            found = self._records[key] = read_record(
                super().get(key, limit_bytes=MAX_RECORD_BYTES).body, key
            )
        return found

    # Objects
    def get(self, key: str, *, limit_bytes: int = MAX_GET_BYTES) -> Object:
        place = self._place(key)
        if place is None:
            return super().get(key, limit_bytes=limit_bytes)
        with place.asked(key) as (bucket, rest):
            return bucket.get(rest, limit_bytes=limit_bytes)

    def get_range(self, key: str, start: int, length: int) -> Object:
        place = self._place(key)
        if place is None:
            return super().get_range(key, start, length)
        with place.asked(key) as (bucket, rest):
            return bucket.get_range(rest, start, length)

    def get_tail(self, key: str, length: int) -> Object:
        place = self._place(key)
        if place is None:
            return super().get_tail(key, length)
        with place.asked(key) as (bucket, rest):
            return bucket.get_tail(rest, length)

    def get_to_file(self, key: str, path: Path) -> ObjectHead:
        place = self._place(key)
        if place is None:
            return super().get_to_file(key, path)
        with place.asked(key) as (bucket, rest):
            return bucket.get_to_file(rest, path)

    def head(self, key: str) -> ObjectHead:
        place = self._place(key)
        if place is None:
            return super().head(key)
        with place.asked(key) as (bucket, rest):
            return bucket.head(rest)

    def list(
        self, prefix: str = "", *, start_after: str = "", page_count: int | None = None
    ) -> Iterator[ListedObject]:
        place = self._place(prefix)
        if place is None:
            yield from super().list(prefix, start_after=start_after, page_count=page_count)
            return
        with place.asked(prefix) as (bucket, rest):
            after = start_after.removeprefix(place.prefix)
            for each in bucket.list(rest, start_after=after, page_count=page_count):
                yield ListedObject(
                    place.prefix + each.key, each.size_bytes, each.version, each.modified
                )

    def put_new(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> str:
        place = self._place(key)
        if place is None:
            return super().put_new(key, body, metadata)
        with place.changed(key) as (bucket, rest):
            return bucket.put_new(rest, body, metadata)

    def replace(
        self,
        key: str,
        body: bytes,
        expected_version: str,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        place = self._place(key)
        if place is None:
            return super().replace(key, body, expected_version, metadata)
        with place.changed(key) as (bucket, rest):
            return bucket.replace(rest, body, expected_version, metadata)

    def put_new_file(self, key: str, path: Path, metadata: Mapping[str, str] | None = None) -> str:
        place = self._place(key)
        if place is None:
            return super().put_new_file(key, path, metadata)
        with place.changed(key) as (bucket, rest):
            return bucket.put_new_file(rest, path, metadata)

    def put_new_in_parts(
        self,
        key: str,
        file: BufferedReader | BytesIO,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        place = self._place(key)
        if place is None:
            return super().put_new_in_parts(key, file, metadata)
        with place.changed(key) as (bucket, rest):
            return bucket.put_new_in_parts(rest, file, metadata)

    def delete(self, key: str, expected_version: str | None = None) -> None:
        place = self._place(key)
        if place is None:
            return super().delete(key, expected_version)
        with place.changed(key) as (bucket, rest):
            return bucket.delete(rest, expected_version)

    def close(self) -> None:
        for each in self._opened.values():
            each.close()
        super().close()

    def _place(self, key: str) -> _OpenPlace | None:
        """Return the place of a key; None for what is in the cluster's bucket itself."""
        prefix = place_prefix(key)
        if not prefix:
            return None
        with self._places_lock:
            found = self._opened.get(prefix)
            if found is None:
                found = self._opened[prefix] = _OpenPlace(self, prefix)
            return found

    def _open_with_usage(self, url: str) -> Bucket:
        return open_bucket(
            url,
            retry=PLACE_RETRY,
            connections=_PLACE_CONNECTIONS,
            make=False,
            usage=self.usage,
            profiles=True,
        )


class _OpenPlace:
    """A tenant's bucket as this process uses it. Thread-safe; opened when first asked."""

    def __init__(self, cluster: ClusterBucket, prefix: str) -> None:
        self.prefix = prefix
        self._tenant = prefix.split("/")[1]
        self._cluster = cluster
        self._lock = threading.Lock()
        self._bucket: Bucket | None = None
        self._mark: PlaceMark | None = None
        #: Why it did not answer, and when a call last found out or began to.
        self._failure: tuple[str, float] | None = None

    @contextmanager
    def asked(self, key: str) -> Iterator[tuple[Bucket, str]]:
        """Yield the bucket and the key in it. Raises BucketError."""
        begun_at = self._cluster._clock()
        failure = self._failure
        if failure is not None:
            self._check_pause(key, failure[1] + PAUSE_SECONDS > begun_at)
            # This call finds out for the others.
            self._failure = failure[0], begun_at
        url, place_id = self._address()
        try:
            with self._lock:
                if self._bucket is None:
                    failure = self._failure
                    # Another call, which this one waited for, found that it is away.
                    self._check_pause(key, failure is not None and failure[1] > begun_at)
                    self._bucket, self._mark = self._open(url, place_id)
            yield self._bucket, key.removeprefix(self.prefix)
        except PlaceUnavailableError:
            raise
        except BucketUnavailableError as error:
            self._failure = str(error.fields["reason"]), self._cluster._clock()
            raise PlaceUnavailableError(**(error.fields | {"tenant": self._tenant})) from error
        self._failure = None

    @contextmanager
    def changed(self, key: str) -> Iterator[tuple[Bucket, str]]:
        """As `asked`, for writing and deleting: refuses what is another cluster's. If it is not
        known yet whose the cluster's bucket is, that is looked up first."""
        self._cluster._may_write()
        with self.asked(key) as (bucket, rest):
            assert self._mark is not None
            if self._mark.cluster != identity(self._cluster):
                raise BucketRefusedError(
                    bucket=bucket.name, reason=f"it belongs to {self._mark.cluster}"
                )
            yield bucket, rest

    def close(self) -> None:
        if self._bucket is not None:
            self._bucket.close()

    def _check_pause(self, key: str, is_paused: bool) -> None:
        if is_paused:
            reason = self._failure[0] if self._failure is not None else "it did not answer"
            raise PlaceUnavailableError(
                tenant=self._tenant, request="any", key=key, tries=0, reason=reason
            )

    def _address(self) -> tuple[str, str]:
        """Return the URL and the id of the place, which the cluster's bucket knows."""
        key = self.prefix.rstrip("/")
        try:
            record = self._cluster.record(key)
        except ObjectMissingError as error:
            reason = f"it has no object {key!r}"
            raise BucketRefusedError(bucket=self._cluster.name, reason=reason) from error
        if record.url is None:
            reason = f"{key!r} names no bucket"
            raise BucketRefusedError(bucket=self._cluster.name, reason=reason)
        return record.url, record.id

    def _open(self, url: str, place_id: str) -> tuple[Bucket, PlaceMark]:
        bucket = self._cluster.open_place(url)
        try:
            mark = read_mark(bucket)
            if mark is None or (mark.id, mark.tenant) != (place_id, self._tenant):
                found = f"{MARK_KEY!r} is of something else" if mark else f"no object {MARK_KEY!r}"
                raise BucketRefusedError(
                    bucket=bucket.name,
                    reason=f"it is not the one that tenant {self._tenant!r} was given: {found}",
                )
        except BaseException:
            bucket.close()
            raise
        return bucket, mark


def open_cluster_bucket(
    url: str, *, retry: Retry = DEFAULT_RETRY, make: bool = True
) -> ClusterBucket:
    """Return the bucket of a cluster, with the buckets of its tenants. Raises as `open_bucket`."""
    backend, ways = open_backend(url, make=make)
    return ClusterBucket(backend, retry=retry, ways=ways, url=url)
