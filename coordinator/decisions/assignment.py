"""Which server gets a store.

Pure and deterministic. Kept:

- An assignment changes only when its owner's incarnation has ended or has released the store.
- The epoch of a name grows with each change of owner, also where its row went meanwhile:
  `first_epoch` is above the epochs of all rows that went.
- New work goes to the least loaded server that takes new stores, ties by name; a burst is spread,
  since each choice counts at once.

Whether an incarnation has ended is a recorded fact that comes in with the assignment; whether a
server lives is `membership.py`'s.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.protocol.control import Owner, ServerState

#: How many operations per second weigh as much as one assigned store. Stores are mostly idle, so
#: counts alone would pile busy ones up; operations alone would send a whole burst to one server.
OPERATIONS_PER_STORE: Final = 10.0


class Candidate(NamedTuple):
    """A server that takes new stores, and its load."""

    server: str
    incarnation: str
    assigned_stores: int
    operations_per_second: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is recorded of a store. `owner_ended` also of a store that was released: then server and
    incarnation are empty."""

    server: str
    incarnation: str
    epoch: int
    owner_ended: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """The recorded owner stays."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class Assign:
    """Record this owner, then say so."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class NoServer:
    """No server takes new stores."""


@dataclass(frozen=True, slots=True)
class NotOwner:
    """The server that asks does not own the store."""


class Balancer:
    """Chooses the least loaded candidate, again and again: O(log servers) for each choice."""

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
        """Return server and incarnation, and count one more store for it; None without any."""
        if not self._heap:
            return None
        load, server, incarnation = self._heap[0]
        heapq.heapreplace(self._heap, (load + 1.0, server, incarnation))
        return server, incarnation


def decide(
    current: Assignment | None, balancer: Balancer, first_epoch: int = 1
) -> Keep | Assign | NoServer:
    """Return who serves a store that a client asks for; `current` is None of a new one."""
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
    """Return if a server may open a store. `state` is the asker's, None if it is not present.

    A store that nobody was ever asked for goes to the server that a client took it to.
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


def decide_adopt(
    current: Assignment | None, server: str, incarnation: str, state: ServerState | None
) -> Keep | Assign | NotOwner:
    """Return if a server may have a store that nobody asks for. `state` is as in `decide_open`.

    Only one that exists, has no owner any more, and is not for another server to be resolved to.
    """
    if current is not None and current.owner_ended and state is ServerState.LIVE:
        return Assign(Owner(server, incarnation, current.epoch + 1))
    return decide_open(current, server, incarnation, state) if current is not None else NotOwner()
