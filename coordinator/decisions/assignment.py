"""Decides which server gets a store. Pure and deterministic.

Invariants:

- An assignment changes only when its owner's incarnation has ended or has released the store.
- The epoch of a name grows with each change of owner, even if the row of the name was deleted in
  between: `first_epoch` is above the epochs of all deleted rows.
- New stores go to the least loaded server that takes new stores; ties are broken by name. Each
  choice counts at once, so a burst is spread.
- Zones only restrict that choice, and only as long as no server gets far more than others for it.

Whether an incarnation has ended is recorded with the assignment. Whether a server is alive is
decided in `membership.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.protocol.control import Owner, ServerState
from holdfast.protocol.work.zones import NOWHERE

#: This many operations per second weigh as much as one assigned store. Most stores are idle, so
#: counting stores alone would pile busy ones on one server; counting operations alone would send a
#: whole burst of new stores to one server.
OPERATIONS_PER_STORE: Final = 10.0
#: A zone's stores go elsewhere while its least loaded server has more than so many times the load
#: of the least loaded of all, and so many stores more. Traffic between zones costs money; one
#: server with most stores of a cluster costs more.
ZONE_LOAD_RATIO: Final = 2.0
ZONE_SLACK_STORES: Final = 1000.0

#: Of (load, server, incarnation).
_Heap = list[tuple[float, str, str]]


class Candidate(NamedTuple):
    """A server that takes new stores, and its load."""

    server: str
    incarnation: str
    assigned_stores: int
    operations_per_second: float
    zone: str = NOWHERE


@dataclass(frozen=True, slots=True)
class Assignment:
    """The recorded owner of a store. After a release, `owner_ended` is true, and server and
    incarnation are empty."""

    server: str
    incarnation: str
    epoch: int
    owner_ended: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """The recorded owner keeps the store."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class Assign:
    """Record this owner, then answer with it."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class NoServer:
    """No server takes new stores."""


@dataclass(frozen=True, slots=True)
class NotOwner:
    """The server that asks does not own the store."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The recorded owner must hand the store over first."""

    owner: Owner


class Balancer:
    """Chooses the least loaded candidate repeatedly; each choice takes O(log servers)."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._loads: dict[tuple[str, str], float] = {}
        self._all: _Heap = []
        self._by_zone: dict[str, _Heap] = {}
        for each in candidates:
            load = each.assigned_stores + each.operations_per_second / OPERATIONS_PER_STORE
            self._loads[each.server, each.incarnation] = load
            entry = load, each.server, each.incarnation
            self._all.append(entry)
            self._by_zone.setdefault(each.zone, []).append(entry)
        for heap in (self._all, *self._by_zone.values()):
            heapq.heapify(heap)

    def choose(self, zones: Iterable[str] = ()) -> tuple[str, str] | None:
        """Return (server, incarnation) and count one more store for it; None without candidates.

        It is a server of the first of `zones` that has one, unless even its least loaded one has
        far more than the least loaded of all.
        """
        if not self._all:
            return None
        chosen = self._least(self._all)
        most = ZONE_LOAD_RATIO * self._loads[chosen] + ZONE_SLACK_STORES
        for zone in zones:
            if zone != NOWHERE and zone in self._by_zone:
                nearest = self._least(self._by_zone[zone])
                if self._loads[nearest] <= most:
                    chosen = nearest
                break
        self._loads[chosen] += 1.0
        return chosen

    def _least(self, heap: _Heap) -> tuple[str, str]:
        """Return the first of a heap. Loads have only grown since an entry was made."""
        while True:
            load, server, incarnation = heap[0]
            now = self._loads[server, incarnation]
            if load == now:
                return server, incarnation
            heapq.heapreplace(heap, (now, server, incarnation))


def decide(
    current: Assignment | None,
    balancer: Balancer,
    first_epoch: int = 1,
    zones: Iterable[str] = (),
) -> Keep | Assign | NoServer:
    """Decide who serves a store that a client asks for. `current` is None for a new store. In
    `zones` are those where it had best be, the best one first."""
    if current is not None and not current.owner_ended:
        return Keep(Owner(current.server, current.incarnation, current.epoch))
    chosen = balancer.choose(zones)
    if chosen is None:
        return NoServer()
    return Assign(Owner(*chosen, epoch=current.epoch + 1 if current else first_epoch))


def decide_open(
    current: Assignment | None,
    server: str,
    incarnation: str,
    state: ServerState | None,
    first_epoch: int = 1,
) -> Keep | Assign | NotOwner:
    """Decide whether a server may open a store. `state` is that of the asking
    server; None if it is not present.

    A store that no client has resolved goes to the server that a client used it on.
    """
    if state is None or state is ServerState.DEAD:
        return NotOwner()
    if current is None:
        if state is ServerState.LIVE:
            return Assign(Owner(server, incarnation, first_epoch))
        return NotOwner()
    if not current.owner_ended and (current.server, current.incarnation) == (server, incarnation):
        return Keep(Owner(server, incarnation, current.epoch))
    return NotOwner()


def decide_move(current: Assignment, server: str, incarnation: str) -> Keep | Assign | HandOver:
    """Decide how a store gets to a server that takes new stores: it is there, it is assigned since
    nobody owns it, or its owner must release it."""
    if current.owner_ended:
        return Assign(Owner(server, incarnation, current.epoch + 1))
    owner = Owner(current.server, current.incarnation, current.epoch)
    return Keep(owner) if current.server == server else HandOver(owner)


def decide_adopt(
    current: Assignment | None, server: str, incarnation: str, state: ServerState | None
) -> Keep | Assign | NotOwner:
    """Decide whether a server may adopt a store that no client asks
    for. `state` is as in `decide_open`.

    Allowed only if the store exists, its owner has ended, and the asking server is live.
    """
    if current is not None and current.owner_ended and state is ServerState.LIVE:
        return Assign(Owner(server, incarnation, current.epoch + 1))
    return decide_open(current, server, incarnation, state) if current is not None else NotOwner()
