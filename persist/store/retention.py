"""What the configuration of a store says to each write, and when something is due to expire.

Pure; `now` is the store's time in int milliseconds. Invariants:

- A write that is refused has changed nothing, taken nothing from a rate and evicted nothing: size
  and totals are checked before the rate, and all of them before the write.
- A limit of the total never refuses what makes the store no larger: overwriting a key counts once.
- With `discard` old nothing is refused but what could not be kept at all, being larger than the
  limit.
- `due_at` is never later than the time at which the next message or key expires.

A store without limits and ttl has no Retention. Rates are kept in memory: a new owner begins anew.
What goes, and in which order, is for `eviction.py` to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from holdfast.protocol.errors import LimitExceededError, RateLimitedError
from holdfast.protocol.store_config import DEFAULT_CONFIG, Discard, StoreConfig

NEVER: Final = (1 << 63) - 1
#: What may come at once of a rate: as much as it gives in this time.
_BURST_SECONDS: Final = 1


class TokenBucket:
    """A rate over time, in thousandths so that milliseconds need no fractions.

    What is larger than the bucket waits until it is full and leaves a debt: a batch of any size
    gets through, and the rate over time holds all the same.
    """

    __slots__ = ("_at", "_capacity", "_level", "_per_second")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._capacity = max(1.0, per_second * _BURST_SECONDS) * 1000
        self._level = self._capacity
        self._at: int | None = None

    def wait_seconds(self, now: int, amount: int) -> float:
        """Return how long `amount` has to wait; 0: `take` it."""
        if self._at is not None:
            self._level += (now - self._at) * self._per_second
        self._level = min(self._level, self._capacity)
        self._at = now
        missing = min(amount * 1000, self._capacity) - self._level
        return max(0.0, missing / self._per_second / 1000)

    def take(self, amount: int) -> None:
        """Take what need not wait."""
        self._level -= amount * 1000


class Retention:
    """The limits of one open store. A new one takes its place when they change."""

    __slots__ = ("_byte_rate", "_message_rate", "config", "due_at", "has_ttl", "max_age_ms")

    def __init__(self, config: StoreConfig, *, has_ttl: bool) -> None:
        self.config = config
        #: Some row may have a ttl of its own.
        self.has_ttl = has_ttl
        self.max_age_ms = (
            None if config.max_age_seconds is None else max(1, round(config.max_age_seconds * 1000))
        )
        #: When to look for what has expired. 0: it is not known.
        self.due_at = 0
        message_rate, byte_rate = config.max_messages_per_second, config.max_bytes_per_second
        self._message_rate = None if message_rate is None else TokenBucket(message_rate)
        self._byte_rate = None if byte_rate is None else TokenBucket(byte_rate)

    @classmethod
    def kept(cls, config: dict[str, Any], has_ttl: bool) -> Retention | None:
        """Return what a store's file says."""
        if not (config or has_ttl):
            return None
        return cls.needed(StoreConfig.from_wire(config), has_ttl=has_ttl)

    @classmethod
    def needed(cls, config: StoreConfig, *, has_ttl: bool) -> Self | None:
        """Return one if there is something to watch over."""
        return cls(config, has_ttl=has_ttl) if has_ttl or config != DEFAULT_CONFIG else None

    # When something expires
    def is_due(self, now: int) -> bool:
        """Tell if something may have expired."""
        return self.due_at <= now

    def wrote(self, now: int) -> None:
        """Something was set, which may grow too old whatever ttl of its own it has."""
        if self.max_age_ms is not None:
            self.due_at = min(self.due_at, now + self.max_age_ms)

    def wrote_expiring(self, expires: int) -> None:
        """Something was set that is gone at `expires` at the latest."""
        self.has_ttl = True
        self.due_at = min(self.due_at, expires)

    # What a write may do
    def takes_any(self, sizes: Sequence[int]) -> bool:
        """Tell if new messages of these sizes are taken without a look at each of them."""
        config = self.config
        if self._message_rate is not None or self._byte_rate is not None:
            return False
        if config.discard is Discard.NEW and (config.max_messages or config.max_bytes):
            return False
        largest = max(sizes)
        return largest <= (config.max_message_bytes or largest) and (
            largest <= (config.max_bytes or largest)
        )

    def check_size(self, size_bytes: int, given_bytes: int | None = None) -> None:
        """Raise LimitExceededError if a message or entry of this size could never be kept.
        `given_bytes` is its size without what holdfast adds to it or saves, if that is another."""
        given_bytes = size_bytes if given_bytes is None else given_bytes
        _check("max_message_bytes", self.config.max_message_bytes, given_bytes)
        _check("max_bytes", self.config.max_bytes, size_bytes)

    def check_total(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Raise LimitExceededError if the store may not grow from `(count, bytes)` to another."""
        if self.config.discard is Discard.NEW:
            if after[0] > before[0]:
                _check("max_messages", self.config.max_messages, after[0])
            if after[1] > before[1]:
                _check("max_bytes", self.config.max_bytes, after[1])

    def check_batch(self, count: int, size_bytes: int) -> None:
        """Raise LimitExceededError if a batch that sets so much could only be kept in part."""
        _check("max_messages", self.config.max_messages, count)
        _check("max_bytes", self.config.max_bytes, size_bytes)

    def take(self, now: int, count: int, size_bytes: int) -> None:
        """Take messages from the rates. Raises RateLimitedError, and then nothing was taken."""
        wanted = (
            (self._message_rate, "max_messages_per_second", count),
            (self._byte_rate, "max_bytes_per_second", size_bytes),
        )
        for bucket, what, amount in wanted:
            if bucket is not None and (wait_seconds := bucket.wait_seconds(now, amount)) > 0:
                raise RateLimitedError(
                    what=what,
                    limit=getattr(self.config, what),
                    retry_after_seconds=round(wait_seconds, 3) or 0.001,
                )
        for bucket, _, amount in wanted:
            if bucket is not None:
                bucket.take(amount)


def _check(what: str, limit: int | None, value: int) -> None:
    if limit is not None and value > limit:
        raise LimitExceededError(what=what, limit=limit, value=value)
