"""What slows the deliveries of a consumer down: flow control, a rate limit, the original pace.

Pure: times are milliseconds.
"""

from __future__ import annotations

from typing import Final

from holdfast.gateway.jetstream.consumers.ledger import NEVER

#: The largest window of flow control, and the part of it that a consumer begins with. These are
#: nats-server's numbers.
MAX_WINDOW_BYTES: Final = 32 * 1024 * 1024
FIRST_WINDOW_BYTES: Final = MAX_WINDOW_BYTES // 16


class FlowWindow:
    """How many bytes a push consumer may send before its client says that it keeps up.

    When more than half the window is out, the client is asked. Its answer takes off what was out
    when it was asked, and doubles the window. Beyond the window nothing is delivered.
    """

    def __init__(self) -> None:
        self.window_bytes = FIRST_WINDOW_BYTES
        self.out_bytes = 0
        #: The subject that the client is asked to answer to; "" while it is not asked.
        self.asked = ""
        self._asked_bytes = 0

    @property
    def closed(self) -> bool:
        """Whether nothing may be delivered until the client answers."""
        return self.out_bytes > self.window_bytes

    def sent(self, size_bytes: int) -> bool:
        """Count a delivery. Return whether the client must be asked: call `ask`."""
        self.out_bytes += size_bytes
        if not self.asked:
            return self.out_bytes > self.window_bytes // 2
        if self.out_bytes - self._asked_bytes >= self.window_bytes:
            # Whole windows went out behind the question: its answer takes them off too.
            self._asked_bytes += size_bytes
        return False

    def ask(self, subject: str) -> None:
        """Note that the client was asked to answer to `subject`."""
        self.asked, self._asked_bytes = subject, self.out_bytes

    def answered(self, subject: str) -> bool:
        """Note an answer. Return False if it is not that to the last question."""
        if not subject or subject != self.asked:
            return False
        self.window_bytes = min(2 * self.window_bytes, MAX_WINDOW_BYTES)
        self.out_bytes = max(0, self.out_bytes - self._asked_bytes)
        self.asked, self._asked_bytes = "", 0
        return True


class RateLimit:
    """A bucket that fills at so many bits a second, and holds `burst_bytes` at most."""

    def __init__(self, bits_per_second: int, burst_bytes: int) -> None:
        self._bytes_per_ms = bits_per_second / 8 / 1000
        self._burst_bytes = burst_bytes
        self._tokens = float(burst_bytes)
        self._filled_at = 0

    def ready_at(self, size_bytes: int, now: int) -> int:
        """Return when a message of this size may go: `now`, or later."""
        if now > self._filled_at:
            fill = (now - self._filled_at) * self._bytes_per_ms
            self._tokens = min(self._burst_bytes, self._tokens + fill)
            self._filled_at = now
        missing = min(size_bytes, self._burst_bytes) - self._tokens
        return now if missing <= 0 else now + int(missing / self._bytes_per_ms) + 1

    def sent(self, size_bytes: int) -> None:
        """Take a message out of the bucket."""
        self._tokens -= size_bytes


class OriginalPace:
    """Replays stored messages at the pace in which they came, up to the last one that was stored
    when the replay began."""

    def __init__(self, last_seq: int) -> None:
        self._last_seq = last_seq
        self._sent_at = NEVER
        self._stored_ms = 0

    def ready_at(self, seq: int, stored_ms: int, now: int) -> int:
        """Return when a message may go."""
        if self._sent_at == NEVER or seq > self._last_seq:
            return now
        return max(now, self._sent_at + stored_ms - self._stored_ms)

    def sent(self, stored_ms: int, now: int) -> None:
        """Note a delivery."""
        self._sent_at, self._stored_ms = now, stored_ms
