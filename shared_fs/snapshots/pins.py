"""Pins: what somebody reads in the bucket for longer than a moment, so that the collector leaves
it.

    pins/<expires_ms:013d>-<nonce>      what is read, and why

A restore or an export pins what it reads, and renews the pin as long as it reads. One that is
killed leaves a pin that expires. A pin keeps objects from being removed, never from being dropped
out of a manifest. Invariant: who pins first and looks into the manifest then (`pinned`) reads
nothing that is removed before the pin expires, since the collector asks for the pins after it has
seen that an object is not named any more. Beyond that the reader gets ObjectMissingError, and never
other bytes. Who does not know yet what it will read pins everything, looks, and then pins only
that.

A pin is renewed by putting the next one before the last one is deleted, so whoever lists pins and
finds that one of them is gone lists them again.

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
from holdfast.shared_fs.snapshots.manifest import Manifests, StoreEntry

PIN_PREFIX: Final = "pins/"
#: Longer than any part of a restore between two renewals: reading one large snapshot.
PIN_SECONDS: Final = 6 * 3600.0
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin as it is in the bucket. `logs`: no slot of any log may go; `everything`: no
    object."""

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
        """Pin these objects, in the place of what was pinned so far."""
        before = self._key
        expires = self._clock_ms() + int(seconds * 1000)
        key = f"{PIN_PREFIX}{expires:013d}-{secrets.token_hex(8)}"
        body = msgpack.packb([_FORMAT, sorted(keys), logs, self._reason, everything])
        self._bucket.put_new(key, body)
        self._key = key
        if before is not None:
            self._bucket.delete(before)

    def release(self) -> None:
        """Pin nothing any more."""
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
    """Pin every version of a store around the body, which gets them, and all logs if wanted."""
    pinning = Pinning(manifests.bucket, clock_ms, reason)
    try:
        keys: set[str] | None = None
        entry = manifests.find(store) or StoreEntry()
        # What the manifest names with the pin in its place stays until that expires.
        while keys is None or not keys >= {version.key for version in entry.versions}:
            keys = {version.key for version in entry.versions}
            pinning.hold(keys, logs=logs)
            entry = manifests.find(store) or StoreEntry()
        yield entry
    finally:
        # Otherwise it expires.
        with suppress(BucketError):
            pinning.release()


def live_pins(bucket: Bucket, now_ms: int) -> list[Pin]:
    """Return the pins that have not expired. Raises ObjectDamagedError: then nothing may go."""
    while True:
        with suppress(ObjectMissingError):
            return [
                _decode(listed.key, expires, bucket.get(listed.key).body)
                for listed in bucket.list(PIN_PREFIX)
                if (expires := expiry_of(listed.key)) is not None and expires >= now_ms
            ]


def expiry_of(key: str) -> int | None:
    """Return when a pin expires, in milliseconds since the epoch; None of what is no pin."""
    number = key.removeprefix(PIN_PREFIX).partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else None


def _decode(key: str, expires: int, body: bytes) -> Pin:
    try:
        content: Any = msgpack.unpackb(body)
        _, keys, logs, reason, *later = content
        # Earlier versions do not say it.
        everything = bool(later and later[0])
        return Pin(key, expires, frozenset(keys), bool(logs), str(reason), everything)
    except (ValueError, TypeError) as error:
        raise ObjectDamagedError(key=key, reason=f"not a pin: {error}") from error
