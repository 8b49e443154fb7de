"""What a coordinator hears of the servers before it becomes the active one.

A standby listens to the heartbeats. When it takes over, it knows which servers are silent and since
when. So a server that died shortly before its coordinator is found as fast as if the coordinator
had lived on, even when several servers die in a row.

A connection may look healthy and deliver nothing, so a coordinator must prove that it hears.
Each coordinator, also a standby, publishes numbered messages on the heartbeats' subject. A
message that comes back proves that everything that arrived before it was sent was delivered.
Silence counts only up to that point.

Pure and bounded. All heartbeats are forgotten after a disconnection, since silence proved nothing
meanwhile. This module does not judge servers: `membership.py` does, once this process is active.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.protocol.control import Heartbeat

#: How many servers are remembered. Beyond that, those heard longest ago are dropped and count as
#: not heard; see `since`.
MAX_HEARD: Final = 4096


class Heard(NamedTuple):
    """The last heartbeat of a server, and when it arrived."""

    heartbeat: Heartbeat
    at: float


class Proof:
    """The time up to which the coordinator has proof that it hears: all its own
    messages up to then came back."""

    def __init__(self, now: float) -> None:
        self.until = now
        self._number = 0

    def arrived(self, number: int, sent_at: float) -> float:
        """Take an own message that came back; return how many seconds before it are unproven.

        Messages in between are missing, and heartbeats may be missing with them.
        """
        if number <= self._number:
            return 0.0
        unproven_seconds = sent_at - self.until if number > self._number + 1 else 0.0
        self._number = number
        self.until = max(self.until, sent_at)
        return max(0.0, unproven_seconds)

    def restart(self, now: float, number: int) -> None:
        """Start again after a reconnection; `number` is that of the last message sent before it."""
        self.until = now
        self._number = max(self._number, number)

    def missing(self, number: int) -> int:
        """Return how many of the `number` messages sent have not come back."""
        return number - self._number


class StandbyHeartbeats:
    """The last heartbeat of each server on this connection of the bus."""

    def __init__(self, now: float) -> None:
        self.proof = Proof(now)
        #: When listening began. A server that is not in `_heard` has
        #: been silent at least since then.
        self.since = now
        #: Ordered by time of arrival.
        self._heard: dict[str, Heard] = {}

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Remember a heartbeat that arrived."""
        if heartbeat.hangs:
            return
        self._heard.pop(heartbeat.server, None)
        self._heard[heartbeat.server] = Heard(heartbeat, now)
        if len(self._heard) > MAX_HEARD:
            del self._heard[next(iter(self._heard))]

    def own_message(self, number: int, sent_at: float) -> None:
        """Take a message of this coordinator that came back."""
        if self.proof.arrived(number, sent_at):
            self._forget(sent_at)

    def missing_own_messages(self, number: int) -> int:
        """Return how many of the `number` messages that this
        coordinator sent have not come back."""
        return self.proof.missing(number)

    def connected(self, now: float, last_number: int = 0) -> None:
        """Start again after a reconnection; `last_number` is that of the
        last message sent before it."""
        self.proof.restart(now, last_number)
        self._forget(now)

    def _forget(self, now: float) -> None:
        self._heard.clear()
        self.since = now

    def of(self, server: str, incarnation: str) -> Heard | None:
        """Return the last heartbeat of an incarnation; None if a different
        incarnation was heard later."""
        heard = self._heard.get(server)
        return heard if heard is not None and heard.heartbeat.incarnation == incarnation else None
