"""Decides which server gets a store. Pure and deterministic.

Invariants:

- An assignment changes only when its owner's incarnation has ended or has released the store.
- The epoch of a name grows with each change of owner, even if the row of the name was deleted in
  between: `first_epoch` is above the epochs of all deleted rows.
- New stores go to the least loaded server that takes new stores; ties are broken by name. Each
  choice counts at once, so a burst is spread.

Whether an incarnation has ended is recorded with the assignment. Whether a server is alive is
decided in `membership.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.protocol.control import Owner, ServerState

#: This many operations per second weigh as much as one assigned store. Most stores are idle, so
#: counting stores alone would pile busy ones on one server; counting operations alone would send a
#: whole burst of new stores to one server.
OPERATIONS_PER_STORE: Final = 10.0


class Candidate(NamedTuple):
    """A server that takes new stores, and its load."""

    server: str
    incarnation: str
    assigned_stores: int
    operations_per_second: float


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
        self._heap = [
            (
                candidate.assigned_stores + candidate.operations_per_second / OPERATIONS_PER_STORE,
                candidate.server,
                candidate.incarnation,
            )
            for candidate in candidates
        ]
        heapq.heapify(self._heap)

    def choose(self) -> tuple[str, str] | None:
        """Return (server, incarnation) and count one more store for it; None without candidates."""
        if not self._heap:
            return None
        load, server, incarnation = self._heap[0]
        heapq.heapreplace(self._heap, (load + 1.0, server, incarnation))
        return server, incarnation


def decide(
    current: Assignment | None, balancer: Balancer, first_epoch: int = 1
) -> Keep | Assign | NoServer:
    """Decide who serves a store that a client asks for. `current` is None for a new store."""
    if current is not None and not current.owner_ended:
        return Keep(Owner(current.server, current.incarnation, current.epoch))
    chosen = balancer.choose()
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
