"""Which gateways of a tenant are alive. Pure.

A gateway says so every HEARTBEAT_SECONDS, and its own subject has interest for as long as it is
connected to NATS: the leafnode connection of all others hears at once when that ends. Silence
counts too, for a gateway that hangs. It is counted in looks and not in seconds, so a gateway that
was stopped itself takes nobody for dead before it has read what waits in its socket. Nor does one
look while its own heartbeats do not come back: then it hears nobody.

Nothing depends on all gateways having the same view, nor on its being right: the serving epoch in a
stream's store decides who may write. A wrong view costs time.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.limits import MAX_GATEWAYS

#: How often a gateway says that it is alive, and looks who has.
HEARTBEAT_SECONDS: Final = 0.5
#: A gateway is taken for dead after so many looks without a heartbeat: some may get lost, or its
#: loop may be busy for a moment.
DEAD_LOOKS: Final = 4
#: After so many it is forgotten.
_FORGOTTEN_LOOKS: Final = 40


class _Member:
    __slots__ = ("connected", "leaving", "silent_looks")

    def __init__(self) -> None:
        self.silent_looks = 0
        #: Whether it takes no more streams, and gives up those that it has.
        self.leaving = False
        #: Whether its subject has interest; None until the leafnode connection has told.
        self.connected: bool | None = None


class LiveGateways:
    """The gateways that one gateway knows. Methods that return a bool tell whether `live` or
    `leaving` has changed."""

    def __init__(self, own: str) -> None:
        self.own = own
        self._members: dict[str, _Member] = {}
        #: The gateways that are alive and stay, in order of their ids; this one too unless it
        #: leaves.
        self.live: tuple[str, ...] = (own,)
        #: Other gateways that are alive and leave.
        self.leaving: tuple[str, ...] = ()
        #: Whether this gateway counts itself: not once it leaves.
        self._stays = True

    def knows(self, gateway: str) -> bool:
        """Tell whether this gateway is among those whose interest counts."""
        return gateway in self._members

    def heard(self, gateway: str, *, leaving: bool = False) -> bool:
        """A gateway has said that it is alive, or that it leaves."""
        if gateway == self.own:
            return False
        member = self._members.get(gateway)
        if member is None:
            if len(self._members) >= MAX_GATEWAYS:
                return False
            member = self._members[gateway] = _Member()
        member.silent_looks = 0
        member.leaving = member.leaving or leaving
        return self._decide()

    def interest(self, gateway: str, connected: bool) -> bool:
        """The subject of a gateway has interest now, or has none any more."""
        member = self._members.get(gateway)
        if member is None:
            return False
        member.connected = connected
        return self._decide()

    def leave(self) -> bool:
        """This gateway leaves."""
        self._stays = False
        return self._decide()

    def look(self) -> bool:
        """Another HEARTBEAT_SECONDS have passed."""
        for member in self._members.values():
            member.silent_looks += 1
        return self._decide()

    def forgotten(self) -> list[str]:
        """Forget the gateways that have been dead for long, and return them."""
        members = self._members
        old = [name for name in members if members[name].silent_looks >= _FORGOTTEN_LOOKS]
        for gateway in old:
            del members[gateway]
        return old

    def _decide(self) -> bool:
        before = self.live, self.leaving
        alive = [
            (gateway, member)
            for gateway, member in self._members.items()
            if member.connected is not False and member.silent_looks < DEAD_LOOKS
        ]
        live = [gateway for gateway, member in alive if not member.leaving]
        if self._stays:
            live.append(self.own)
        self.live = tuple(sorted(live))
        self.leaving = tuple(sorted(gateway for gateway, member in alive if member.leaving))
        return before != (self.live, self.leaving)
