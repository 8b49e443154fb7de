"""Decides when a server puts the next object of its log into the bucket.

Each put costs money, however small it is, so puts are spaced: on average one every
`interval_seconds`, one LOG_OBJECT_IDLE_SECONDS after the first change that follows an idle spell,
and none while nothing changes. The interval is LOG_OBJECT_SECONDS, unless a budget makes it longer.
If LOG_OBJECT_BYTES wait, they are put at once, since then the bytes are what costs. One put runs at
a time, so slots are acknowledged in order and a hole ends the log.

Pure: `now` is an argument, in seconds of any one clock.
"""

from __future__ import annotations

from holdfast.protocol.limits import (
    LOG_OBJECT_BYTES,
    LOG_OBJECT_IDLE_SECONDS,
    LOG_OBJECT_SECONDS,
)


class LogPace:
    """The pace of one incarnation."""

    def __init__(self) -> None:
        #: From the beginning of one put to that of the next, at least.
        self.interval_seconds = LOG_OBJECT_SECONDS
        #: How many puts were begun.
        self.put_count = 0
        self._waiting_bytes = 0
        self._first_at: float | None = None
        self._begun_at = float("-inf")
        self._under_way = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that no put has taken yet."""
        return self._waiting_bytes

    def added(self, now: float, size_bytes: int) -> None:
        """Add changes of `size_bytes` to what waits."""
        self._waiting_bytes += size_bytes
        if self._first_at is None:
            self._first_at = now

    def due_at(self) -> float | None:
        """Return when to begin the next put; None while nothing waits or a put is running."""
        if self._first_at is None or self._under_way:
            return None
        spaced_at = self._spaced_at()
        return self._first_at if spaced_at is None else spaced_at

    def begun(self, now: float) -> None:
        """Begin a put of everything that waits.

        If it begins a little late, because of a busy loop or a slow put before it, the later puts
        are not delayed: only the average pace costs.
        """
        assert not self._under_way
        spaced_at = self._spaced_at()
        is_late = spaced_at is not None and now - self.interval_seconds < spaced_at < now
        self._under_way = True
        self.put_count += 1
        self._waiting_bytes = 0
        self._first_at = None
        self._begun_at = spaced_at if is_late and spaced_at is not None else now

    def ended(self) -> None:
        """End the put, which succeeded."""
        assert self._under_way
        self._under_way = False

    def _spaced_at(self) -> float | None:
        """Return when the waiting changes are due; None if so much waits that it is put at once."""
        if self._first_at is None or self._waiting_bytes >= LOG_OBJECT_BYTES:
            return None
        return max(self._first_at + LOG_OBJECT_IDLE_SECONDS, self._begun_at + self.interval_seconds)
