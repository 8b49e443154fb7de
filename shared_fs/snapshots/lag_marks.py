"""Lag marks: what each server says of the changes that the bucket lacks.

    lag/<server>/<incarnation>     one mark, put again and again while the incarnation lives

A mark says that at a certain time the bucket had every acknowledged change of the stores of this
incarnation, but for those after `complete_until`. So whoever reads the marks first, and the
manifests then, knows how far behind the manifests may be. A server that ends with nothing behind
removes its mark. The mark of one that died stays until another server has looked for the stores
that it left behind; meanwhile nobody can say more of them than the mark does.

A mark is only information: no data depends on it. Servers whose log is in the bucket put none,
because the log has what snapshots lack. Blocking. All raise BucketError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Final

import msgpack

from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectConflictError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
)

LAG_PREFIX: Final = "lag/"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class LagMark:
    """What one incarnation said last. Times are milliseconds since the epoch."""

    server: str
    incarnation: str
    #: When it said that, and when it was going to say more at the latest.
    at: int
    next_at: int
    #: How many of its stores have changes that the bucket lacks.
    behind: int
    #: The bucket has every change before this time.
    complete_until: int
    #: How long it lets a change wait at most.
    bound_ms: int

    @property
    def key(self) -> str:
        return _key(self.server, self.incarnation)

    def is_overdue(self, now: int) -> bool:
        """Tell if it should have been replaced long ago: its server died, or cannot reach the
        bucket."""
        return now > self.next_at + (self.next_at - self.at)


def released_mark(mark: LagMark, store_count: int) -> LagMark:
    """Return a mark of its own for stores that a living incarnation has released before the bucket
    had all of them. Others look for them as if it had died."""
    name = f"{mark.incarnation}.{mark.at}"
    return replace(mark, incarnation=name, behind=store_count)


def put_mark(bucket: Bucket, mark: LagMark, version: str | None) -> str:
    """Put a mark in the place of its last version, and return the new version."""
    packed: bytes = msgpack.packb([_FORMAT, *astuple(mark)])
    for known in (version, None):
        try:
            if known is None:
                known = _version(bucket, mark.key)
            if known is None:
                return bucket.put_new(mark.key, packed)
            return bucket.replace(mark.key, packed, known)
        except (ObjectConflictError, ObjectExistsError):
            # An earlier put got no answer, and was done.
            continue
    return _version(bucket, mark.key) or ""


def remove_mark(bucket: Bucket, server: str, incarnation: str) -> None:
    """Remove a mark, if it is there."""
    bucket.delete(_key(server, incarnation))


def list_marks(bucket: Bucket) -> list[tuple[str, str]]:
    """Return the server and the incarnation of each mark."""
    found = []
    for listed in bucket.list(LAG_PREFIX):
        server, _, incarnation = listed.key.removeprefix(LAG_PREFIX).partition("/")
        if server and incarnation:
            found.append((server, incarnation))
    return found


def read_mark(bucket: Bucket, server: str, incarnation: str) -> LagMark | None:
    """Return a mark; None if it is gone. Raises ObjectDamagedError."""
    key = _key(server, incarnation)
    try:
        body = bucket.get(key).body
    except ObjectMissingError:
        return None
    try:
        # Later formats may append values, which this version ignores.
        _, *values = msgpack.unpackb(body)
        return LagMark(*values[:7])
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise ObjectDamagedError(key=key, reason=f"not a lag mark: {error}") from error


def read_marks(bucket: Bucket) -> Iterator[LagMark]:
    """Yield every mark."""
    for server, incarnation in list_marks(bucket):
        mark = read_mark(bucket, server, incarnation)
        if mark is not None:
            yield mark


def _key(server: str, incarnation: str) -> str:
    return f"{LAG_PREFIX}{server}/{incarnation}"


def _version(bucket: Bucket, key: str) -> str | None:
    try:
        return bucket.head(key).version
    except ObjectMissingError:
        return None
