"""How a store's limits affect each write, and when something is due to expire.

Pure; `now` is the store's time in int milliseconds. Invariants:

- A refused write has changed nothing, used up no rate and evicted nothing. Size and totals are
  checked before the rate, and all of them before the write.
- A limit on the total never refuses a write that does not make the store larger: overwriting a
  key counts once.
- With `discard` old, a write is refused only if it is larger than the limit by itself.
- `due_at` is never later than the time at which the next message or key expires.

A store without limits and ttls has no Retention. Rates live in memory: a new owner starts afresh.
`eviction.py` finds what to remove, and in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from holdfast.protocol.errors import LimitExceededError, RateLimitedError
from holdfast.protocol.store_config import DEFAULT_CONFIG, Discard, StoreConfig
from holdfast.shared_fs.store_file.reading.going_rows import Front

NEVER: Final = (1 << 63) - 1
#: The burst that a rate allows: what it yields in this time.
_BURST_SECONDS: Final = 1


class UncountedFront(NamedTuple):
    """The front of a stream from a seq on, of which much has reached the maximum age."""

    after_seq: int
    #: The last seq in the file then. What waited for the file may be changed by what waited too.
    end_seq: int
    #: `Retention.front_changes` then.
    front_changes: int


class MeasuredFront(NamedTuple):
    """The messages of an `UncountedFront` that have reached the maximum age."""

    front: Front
    front_changes: int


class TokenBucket:
    """A token bucket. Levels are in thousandths, so that milliseconds need no fractions.

    An amount larger than the bucket waits until the bucket is full and then leaves a debt. So a
    batch of any size gets through, and the rate over time still holds.
    """

    __slots__ = ("_at", "_capacity", "_level", "_per_second")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._capacity = max(1.0, per_second * _BURST_SECONDS) * 1000
        self._level = self._capacity
        self._at: int | None = None

    def change(self, per_second: float) -> None:
        """Yield another rate from now on. What is in the bucket stays, and so does a debt."""
        self._per_second = per_second
        self._capacity = max(1.0, per_second * _BURST_SECONDS) * 1000
        self._level = min(self._level, self._capacity)

    def wait_seconds(self, now: int, amount: int) -> float:
        """Return how long `amount` must wait. If that is 0, call `take`."""
        if self._at is not None:
            self._level += (now - self._at) * self._per_second
        self._level = min(self._level, self._capacity)
        self._at = now
        missing = min(amount * 1000, self._capacity) - self._level
        return max(0.0, missing / self._per_second / 1000)

    def take(self, amount: int) -> None:
        """Take an amount that need not wait."""
        self._level -= amount * 1000


class Retention:
    """The limits of one open store. A change of the limits replaces the whole object."""

    __slots__ = (
        "_byte_rate",
        "_message_rate",
        "config",
        "due_at",
        "front_changes",
        "has_ttl",
        "hurries",
        "max_age_ms",
        "measured",
        "swept_to",
        "touched",
        "uncounted",
    )

    def __init__(self, config: StoreConfig, *, has_ttl: bool) -> None:
        self.config = config
        #: Some row may have its own ttl.
        self.has_ttl = has_ttl
        self.max_age_ms = (
            None if config.max_age_seconds is None else max(1, round(config.max_age_seconds * 1000))
        )
        #: When to look for expired rows. 0 means that it is not known.
        self.due_at = 0
        #: Grows with each change to messages that exist. Appends do not count.
        self.front_changes = 0
        self.measured: MeasuredFront | None = None
        #: Much more has reached the maximum age, for a thread to count.
        self.uncounted: UncountedFront | None = None
        #: Subjects that may have more messages than `max_messages_per_subject`.
        self.touched: dict[str, None] = {}
        #: All subjects of the file beyond this id may; None: no others do. They are looked through
        #: at once after a new limit, and else when there is something to do anyway.
        self.swept_to: int | None = None
        self.hurries = False
        message_rate, byte_rate = config.max_messages_per_second, config.max_bytes_per_second
        self._message_rate = None if message_rate is None else TokenBucket(message_rate)
        self._byte_rate = None if byte_rate is None else TokenBucket(byte_rate)

    @classmethod
    def kept(cls, config: dict[str, Any], has_ttl: bool) -> Retention | None:
        """Return the Retention that a store's file asks for, or None if it needs none."""
        if not (config or has_ttl):
            return None
        return cls.needed(StoreConfig.from_wire(config), has_ttl=has_ttl)

    @classmethod
    def needed(cls, config: StoreConfig, *, has_ttl: bool) -> Self | None:
        """Return a Retention, or None if there is nothing to enforce."""
        return cls(config, has_ttl=has_ttl) if has_ttl or config != DEFAULT_CONFIG else None

    # When something expires
    def is_due(self, now: int) -> bool:
        """Tell if something may have expired."""
        return self.due_at <= now

    def take_measured(self) -> Front | None:
        """Return the front that a thread has counted, once, unless something in it has changed
        since."""
        measured, self.measured = self.measured, None
        if measured is None or measured.front_changes != self.front_changes:
            return None
        return measured.front

    def wrote(self, now: int) -> None:
        """Note a write, which may reach the maximum age whatever its own ttl is."""
        if self.max_age_ms is not None:
            self.due_at = min(self.due_at, now + self.max_age_ms)

    def wrote_expiring(self, expires: int) -> None:
        """Note a write that expires at `expires` at the latest."""
        self.has_ttl = True
        self.due_at = min(self.due_at, expires)

    def wrote_subject(self, subject: str) -> None:
        """Note that a subject got a message."""
        if self.config.max_messages_per_subject is not None:
            self.touched[subject] = None

    def wrote_subjects(self, subjects: dict[str, None]) -> None:
        """`wrote_subject` for each of them."""
        if self.config.max_messages_per_subject is not None:
            self.touched.update(subjects)

    def sweep(self, before: Retention | None = None) -> None:
        """Look through all subjects at once, unless they are within the limits `before` these."""
        limit = self.config.max_messages_per_subject
        if limit is None:
            return
        old_limit = None if before is None else before.config.max_messages_per_subject
        if before is None or old_limit is None or limit < old_limit:
            self.swept_to, self.hurries = 0, True
        else:
            self.swept_to, self.hurries = before.swept_to, before.hurries
            self.touched.update(before.touched)

    def look_through(self) -> None:
        """Look through all subjects in time: the last owner may have died before it was done."""
        if self.config.max_messages_per_subject is not None:
            self.swept_to = 0

    # What a write may do
    def takes_any(self, sizes: Sequence[int]) -> bool:
        """Tell if new messages of these sizes can be accepted without checking each of them."""
        config = self.config
        if self._message_rate is not None or self._byte_rate is not None or config.sealed:
            return False
        if config.discard is Discard.NEW and (config.max_messages or config.max_bytes):
            return False
        largest = max(sizes)
        return largest <= (config.max_message_bytes or largest) and (
            largest <= (config.max_bytes or largest)
        )

    def check_size(self, size_bytes: int, given_bytes: int | None = None) -> None:
        """Raise LimitExceededError if a message or entry of this size could never be kept.
        `given_bytes` is the size that the caller gave, if what holdfast adds or saves
        makes it differ."""
        given_bytes = size_bytes if given_bytes is None else given_bytes
        _check("max_message_bytes", self.config.max_message_bytes, given_bytes)
        _check("max_bytes", self.config.max_bytes, size_bytes)

    def check_total(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Raise LimitExceededError if the store may not grow from `before` to `after`, both
        `(count, bytes)`."""
        if self.config.discard is Discard.NEW:
            if after[0] > before[0]:
                _check("max_messages", self.config.max_messages, after[0])
            if after[1] > before[1]:
                _check("max_bytes", self.config.max_bytes, after[1])

    def keeps_whole(self, count: int) -> bool:
        """Tell if `check_batch` allows a batch of `count` messages, whatever their sizes."""
        config = self.config
        return not config.max_bytes and count <= (config.max_messages or count)

    def check_batch(self, count: int, size_bytes: int) -> None:
        """Raise LimitExceededError if a batch of this size could be kept only in part."""
        _check("max_messages", self.config.max_messages, count)
        _check("max_bytes", self.config.max_bytes, size_bytes)

    def take(self, now: int, count: int, size_bytes: int) -> None:
        """Take messages from the rates. If it raises RateLimitedError, nothing was taken."""
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
