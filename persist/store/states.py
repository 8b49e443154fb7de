"""The states of an open store, and their transitions.

Two independent questions are asked of an open store, so each has an enum and a table of its own.
First: who has its file (`OpenState`)?

    SERVING ◀──▶ LENT       a thread reads or syncs the file; what needs no file goes on
       │   ▲      │  │
       │   │      ▼  │
       ├───┴──▶ HELD │      the store is being handed over or written whole: everything waits
       │          │  │
       └──────────┴──┴──▶ CLOSED   this incarnation never serves this object again

Second: what does the cluster know of it (`Standing`)?

    UNWRITTEN            it may only be read: a grant to create it opens another in its place
    COLD ──▶ NEW         the first change of a cold store makes it one that must be confirmed
             NEW ──▶ DURABLE      the coordinator knows that its file exists

Pure. Any other transition is a bug of ours and raises IllegalTransitionError. Leases (`leases.py`)
make nearly all transitions of the first kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class IllegalTransitionError(Exception):
    """A transition that the tables do not allow: a bug of ours."""

    def __init__(self, before: StrEnum, after: StrEnum) -> None:
        super().__init__(f"{type(before).__name__} {before} is never followed by {after}")
        self.before, self.after = before, after


class OpenState(StrEnum):
    """Who has the file of an open store."""

    #: Nobody in particular: the loop reads and writes it as needed.
    SERVING = "serving"
    #: A lease. Appends go on, because they need no file.
    LENT = "lent"
    #: A lease. Everything else waits.
    HELD = "held"
    #: Nobody: the file is closed, or another object serves the store.
    CLOSED = "closed"


class Standing(StrEnum):
    """What the cluster knows of an open store, which decides what its next change needs."""

    #: Never written, or opened in memory to be read: it takes no writes.
    UNWRITTEN = "unwritten"
    #: The coordinator does not know that its file exists. The log proves it.
    NEW = "new"
    #: The bucket has all of it, and its file may be dropped, until the first change.
    COLD = "cold"
    #: The coordinator knows that its file exists.
    DURABLE = "durable"


OPEN_TRANSITIONS: Final[Mapping[OpenState, frozenset[OpenState]]] = {
    OpenState.SERVING: frozenset((OpenState.LENT, OpenState.HELD, OpenState.CLOSED)),
    # LENT to CLOSED: a store that is only read was replaced by one that can be written.
    OpenState.LENT: frozenset((OpenState.SERVING, OpenState.HELD, OpenState.CLOSED)),
    OpenState.HELD: frozenset((OpenState.SERVING, OpenState.CLOSED)),
    OpenState.CLOSED: frozenset(),
}
STANDING_TRANSITIONS: Final[Mapping[Standing, frozenset[Standing]]] = {
    Standing.UNWRITTEN: frozenset(),
    Standing.NEW: frozenset((Standing.DURABLE,)),
    Standing.COLD: frozenset((Standing.NEW,)),
    Standing.DURABLE: frozenset(),
}


def check_open(before: OpenState, after: OpenState) -> OpenState:
    """Return `after` if it may follow `before`. Raises IllegalTransitionError."""
    if after not in OPEN_TRANSITIONS[before]:
        raise IllegalTransitionError(before, after)
    return after


def check_standing(before: Standing, after: Standing) -> Standing:
    """Return `after` if it may follow `before`. Raises IllegalTransitionError."""
    if after not in STANDING_TRANSITIONS[before]:
        raise IllegalTransitionError(before, after)
    return after
