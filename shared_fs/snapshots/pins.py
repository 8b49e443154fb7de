"""Pins: objects in the bucket that somebody reads for longer than a moment, so nobody removes them.

    pins/<expires_ms:013d>-<nonce>      what is read, and why

A restore or an export pins what it reads, and renews the pin as long as it reads. If it is killed,
the pin expires. A pin keeps objects from being removed, but not from being dropped from a manifest.

Invariant: a reader that pins first and then reads the manifest (`pinned`) reads nothing that is
removed before the pin expires, since the collector lists the pins after it has seen that an object
is no longer named. After that time the reader gets ObjectMissingError, and never other bytes. A
reader that does not know yet what it will read pins everything, looks, and then pins only that.

To renew a pin, the next one is put before the last one is deleted. So if one of the listed pins is
missing when it is read, the pins are listed again.

Blocking. All raise BucketError.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketError,
    ObjectDamagedError,
    ObjectMissingError,
)
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import StoreEntry

PIN_PREFIX: Final = "pins/"
#: Longer than any part of a restore between two renewals: reading one large snapshot.
PIN_SECONDS: Final = 6 * 3600.0
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin in the bucket.

    With `logs`, no slot of any log may be removed; with `everything`, no object.
    """

    key: str
    expires: int
    keys: frozenset[str] = field(default_factory=frozenset)
    logs: bool = False
    reason: str = ""
    everything: bool = False


class Pinning:
    """A pin that somebody holds."""

    def __init__(self, bucket: Bucket, clock_ms: Callable[[], int], reason: str) -> None:
        self._bucket = bucket
        self._clock_ms = clock_ms
        self._reason = reason
        self._key: str | None = None

    def hold(
        self,
        keys: Iterable[str],
        *,
        logs: bool = False,
        everything: bool = False,
        seconds: float = PIN_SECONDS,
    ) -> None:
        """Pin these objects instead of those pinned before."""
        before = self._key
        expires = self._clock_ms() + int(seconds * 1000)
        key = f"{PIN_PREFIX}{expires:013d}-{secrets.token_hex(8)}"
        body = msgpack.packb([_FORMAT, sorted(keys), logs, self._reason, everything])
        self._bucket.put_new(key, body)
        self._key = key
        if before is not None:
            self._bucket.delete(before)

    def release(self) -> None:
        """Remove the pin."""
        key, self._key = self._key, None
        if key is not None:
            self._bucket.delete(key)


@contextmanager
def pinned(
    manifests: Manifests,
    store: StoreId,
    clock_ms: Callable[[], int],
    reason: str,
    *,
    logs: bool = False,
) -> Iterator[StoreEntry]:
    """Pin every version of a store, and all logs if requested, while
    the body runs; yield the entry."""
    pinning = Pinning(manifests.bucket, clock_ms, reason)
    try:
        keys: set[str] | None = None
        entry = manifests.find(store) or StoreEntry()
        # What the manifest names while the pin exists stays until the pin expires.
        while keys is None or not keys >= {version.key for version in entry.versions}:
            keys = {version.key for version in entry.versions}
            pinning.hold(keys, logs=logs)
            entry = manifests.find(store) or StoreEntry()
        yield entry
    finally:
        # If this fails, the pin expires.
        with suppress(BucketError):
            pinning.release()


def live_pins(bucket: Bucket, now_ms: int) -> list[Pin]:
    """Return the pins that have not expired. Raises
    ObjectDamagedError: then nothing may be removed."""
    while True:
        with suppress(ObjectMissingError):
            return [
                _decode(listed.key, expires, bucket.get(listed.key).body)
                for listed in bucket.list(PIN_PREFIX)
                if (expires := expiry_of(listed.key)) is not None and expires >= now_ms
            ]


def expiry_of(key: str) -> int | None:
    """Return when a pin expires, in milliseconds since the epoch;
    None if the key is not a pin's."""
    number = key.removeprefix(PIN_PREFIX).partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else None


def _decode(key: str, expires: int, body: bytes) -> Pin:
    try:
        content: Any = msgpack.unpackb(body)
        _, keys, logs, reason, *later = content
        # Earlier versions do not have this element.
        everything = bool(later and later[0])
        return Pin(key, expires, frozenset(keys), bool(logs), str(reason), everything)
    except (ValueError, TypeError) as error:
        raise ObjectDamagedError(key=key, reason=f"not a pin: {error}") from error
