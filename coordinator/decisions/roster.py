"""The incarnations in a cluster: the newest one of each server, and those that ended before it.

A server has at most one incarnation that is not dead. A dead incarnation is dead for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.coordinator.decisions.member import Doubt, Member, MemberView, ServerStanding

#: How many ended incarnations are kept in memory, so that their heartbeats are ignored. An older
#: one is asked to register, and the state file or its fence then refuses it: the memory saves
#: messages, and safety does not depend on it.
MAX_ENDED_REMEMBERED: Final = 1024


class Roster:
    """The members of a cluster."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        #: In the order in which they ended.
        self._ended: dict[tuple[str, str], None] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def newest(self, server: str) -> Member | None:
        """Return the newest incarnation of a server, dead or not."""
        return self._members.get(server)

    def present(self, server: str, incarnation: str) -> Member | None:
        """Return an incarnation, if it is the newest one and not dead."""
        member = self._members.get(server)
        if member is None or member.dead or member.incarnation != incarnation:
            return None
        return member

    def put(self, member: Member) -> None:
        """Make an incarnation the newest of its server."""
        older = self._members.get(member.server)
        assert older is None or older.dead
        self._members[member.server] = member

    def forget(self, server: str) -> None:
        """Drop a dead server from the members. Its incarnation stays among the ended ones."""
        member = self._members.get(server)
        if member is not None and member.dead:
            del self._members[server]

    def remember_ended(self, server: str, incarnation: str) -> None:
        """Remember that an incarnation has ended."""
        self._ended[server, incarnation] = None
        while len(self._ended) > MAX_ENDED_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def standing(self, server: str, incarnation: str) -> ServerStanding:
        """Return how an incarnation stands."""
        if (server, incarnation) in self._ended:
            return ServerStanding.ENDED
        member = self._members.get(server)
        if member is None:
            return ServerStanding.UNKNOWN
        if member.incarnation == incarnation:
            if member.dead:
                return ServerStanding.ENDED
            is_fenced = member.doubt is Doubt.FENCING
            return ServerStanding.FENCING if is_fenced else ServerStanding.PRESENT
        return ServerStanding.JOINING if member.successor == incarnation else ServerStanding.UNKNOWN

    def views(self, now: float) -> list[MemberView]:
        """Return the newest incarnation of each server, by server name."""
        return [member.view(now) for _, member in sorted(self._members.items())]

    def validate(self) -> None:
        """Check the invariants. Raises AssertionError."""
        for server, member in self._members.items():
            assert member.server == server
            assert ((server, member.incarnation) in self._ended) <= member.dead
            assert (server, member.successor) not in self._ended
            member.validate()
        assert len(self._ended) <= MAX_ENDED_REMEMBERED
