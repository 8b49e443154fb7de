"""What a coordinator hears of the servers before it is the active one.

A standby listens to the heartbeats, so when it takes over it knows who has been silent and for how
long: a server that stopped or died shortly before its coordinator did is found out as if nothing
had happened to the coordinator, also when several die one after the other.

It must have proof that it hears at all: a connection may deliver nothing and look well. So each
coordinator, also a standby, publishes numbered messages where the heartbeats arrive, and what comes
back proves that all that arrived before it was sent was delivered. Silence counts only as far as
that.

Pure; forgets everything when the bus was away, since silence said nothing meanwhile. Bounded.
Judges nobody: that is `membership.py`'s, once this process is active.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.protocol.control import Heartbeat

#: Servers remembered; beyond it, those heard longest ago go. They count as not heard, see `since`.
MAX_HEARD: Final = 4096


class Heard(NamedTuple):
    """The last heartbeat of a server, and when it arrived."""

    heartbeat: Heartbeat
    at: float


class Proof:
    """Until when a coordinator has proof that it hears: its own messages come back, none
    missing."""

    def __init__(self, now: float) -> None:
        self.until = now
        self._number = 0

    def arrived(self, number: int, sent_at: float) -> float:
        """An own message came back. Return for how long before it nothing is proven: those between
        are missing, and with them perhaps heartbeats."""
        if number <= self._number:
            return 0.0
        unproven_seconds = sent_at - self.until if number > self._number + 1 else 0.0
        self._number = number
        self.until = max(self.until, sent_at)
        return max(0.0, unproven_seconds)

    def restart(self, now: float, number: int) -> None:
        """The bus was connected again, and `number` was the last message before."""
        self.until = now
        self._number = max(self._number, number)

    def missing(self, number: int) -> int:
        """Return how many messages have not come back, of `number` that were sent."""
        return number - self._number


class StandbyHeartbeats:
    """The last heartbeat of each server on this connection of the bus."""

    def __init__(self, now: float) -> None:
        self.proof = Proof(now)
        #: When it began to listen: who is not remembered has been silent since, or for longer.
        self.since = now
        #: In the order of hearing.
        self._heard: dict[str, Heard] = {}

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat arrived."""
        if heartbeat.hangs:
            return
        self._heard.pop(heartbeat.server, None)
        self._heard[heartbeat.server] = Heard(heartbeat, now)
        if len(self._heard) > MAX_HEARD:
            del self._heard[next(iter(self._heard))]

    def own_message(self, number: int, sent_at: float) -> None:
        """A message of this coordinator itself came back."""
        if self.proof.arrived(number, sent_at):
            self._forget(sent_at)

    def missing_own_messages(self, number: int) -> int:
        """Return how many messages of this coordinator have not come back, of `number` sent."""
        return self.proof.missing(number)

    def connected(self, now: float, last_number: int = 0) -> None:
        """The bus was connected again; `last_number` is that of the last message before."""
        self.proof.restart(now, last_number)
        self._forget(now)

    def _forget(self, now: float) -> None:
        self._heard.clear()
        self.since = now

    def of(self, server: str, incarnation: str) -> Heard | None:
        """Return the last heartbeat of an incarnation; None if another came after it."""
        heard = self._heard.get(server)
        return heard if heard is not None and heard.heartbeat.incarnation == incarnation else None
