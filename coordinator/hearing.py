"""What a coordinator hears of the servers before it is the active one.

A standby listens to the heartbeats, so when it takes over it knows who has been silent and for how
long: a server that stopped or died shortly before its coordinator did is found out as if nothing had
happened to the coordinator, also when several die one after the other.

Pure; forgets everything when the bus was away, since silence said nothing meanwhile. Bounded. Judges
nobody: that is `membership.py`'s, once this process is active.
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


class Hearing:
    """The last heartbeat of each server on this connection of the bus."""

    def __init__(self, now: float) -> None:
        #: When it began to listen: who is not remembered has been silent since, or for longer.
        self.since = now
        #: In the order of hearing.
        self._heard: dict[str, Heard] = {}

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat arrived."""
        self._heard.pop(heartbeat.server, None)
        self._heard[heartbeat.server] = Heard(heartbeat, now)
        if len(self._heard) > MAX_HEARD:
            del self._heard[next(iter(self._heard))]

    def connected(self, now: float) -> None:
        """The bus was connected again."""
        self._heard.clear()
        self.since = now

    def of(self, server: str, incarnation: str) -> Heard | None:
        """Return the last heartbeat of an incarnation; None if another came after it."""
        heard = self._heard.get(server)
        return heard if heard is not None and heard.heartbeat.incarnation == incarnation else None
