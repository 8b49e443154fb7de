"""Grants that owners are told before they ask: a client has just been told of the owner, which will
need the grant in a moment. Pure.

Only a grant that records nothing can be told: that of a store that is durable and hot. The others
must be asked for: a store that was never written may exceed a quota and is recorded with its first
grant, and a cold one must be brought first. Only few are told at once, since a client may ask for
thousands of stores; and only to servers that say how much they have given up, which the grant
repeats: it is void if they have given up more by then (`persist/peers/early_grants.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.coordinator.decisions.member import MemberView
from holdfast.protocol.control import Owner, StoreState
from holdfast.protocol.limits import MAX_TOLD_GRANTS
from holdfast.protocol.names import StoreId


@dataclass(slots=True)
class ToldGrants:
    """What one incarnation is told."""

    server: str
    incarnation: str
    #: What it had told of itself before any of these grants was made.
    given_up: int
    #: Of each store its epoch, and the revision that it has reached at least.
    stores: list[tuple[StoreId, int, int]] = field(default_factory=list)


class GrantsToTell:
    """Collects the grants to tell after one transaction."""

    def __init__(self, members: Iterable[MemberView]) -> None:
        self._given_up = {
            (member.server, member.incarnation): member.given_up
            for member in members
            if member.given_up is not None
        }
        self._count = 0
        self._told: dict[tuple[str, str], ToldGrants] = {}

    @property
    def told(self) -> list[ToldGrants]:
        return list(self._told.values())

    def named(
        self, store: StoreId, owner: Owner, *, state: int, cold: int | None, revision: int
    ) -> None:
        """Note that a client is told of the owner of a recorded store."""
        if state != StoreState.DURABLE or cold is not None or self._count >= MAX_TOLD_GRANTS:
            return
        key = owner.server, owner.incarnation
        given_up = self._given_up.get(key)
        if given_up is None:
            return
        self._count += 1
        told = self._told.setdefault(key, ToldGrants(*key, given_up))
        told.stores.append((store, owner.epoch, revision))
