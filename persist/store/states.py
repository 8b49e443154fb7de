"""The states of an open store, and which of them may follow which.

Two questions are asked of an open store, and the answer to one says nothing of the other, so each
has an enum and a table of its own. Who has its file (`OpenState`)?

    SERVING ◀──▶ LENT       somebody reads or syncs the file; what needs no file goes on
       │   ▲      │  │
       │   │      ▼  │
       ├───┴──▶ HELD │      the store is being handed over or written whole: everything waits
       │          │  │
       └──────────┴──┴──▶ CLOSED   this incarnation never serves this object again

What does the cluster know of it (`Standing`)?

    UNWRITTEN            it may only be read: a grant to create it opens another in its place
    COLD ──▶ NEW         the first change makes a store that was cold one to be confirmed
             NEW ──▶ DURABLE      the coordinator knows that its file exists

Pure. Anything else is a bug of ours and raises IllegalTransitionError. Leases (`leases.py`) make
nearly all transitions of the first kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class IllegalTransitionError(Exception):
    """A state of a store was to be followed by one that cannot follow it: a bug of ours."""

    def __init__(self, before: StrEnum, after: StrEnum) -> None:
        super().__init__(f"{type(before).__name__} {before} is never followed by {after}")
        self.before, self.after = before, after


class OpenState(StrEnum):
    """Who has the file of an open store."""

    #: Nobody in particular: the loop reads and writes it as it needs.
    SERVING = "serving"
    #: A lease, beside which appends go on: they need no file.
    LENT = "lent"
    #: A lease, for which everything waits.
    HELD = "held"
    #: Nobody: the file is closed, or another object serves the store.
    CLOSED = "closed"


class Standing(StrEnum):
    """What the cluster knows of an open store, which decides what its next change needs."""

    #: Nobody has written it, or it was opened in memory to be read: it takes no writes.
    UNWRITTEN = "unwritten"
    #: The coordinator does not know that its file exists: the log is what proves it.
    NEW = "new"
    #: The bucket has all of it, and its file may go: until the first change.
    COLD = "cold"
    #: The coordinator knows that its file exists.
    DURABLE = "durable"


OPEN_TRANSITIONS: Final[Mapping[OpenState, frozenset[OpenState]]] = {
    OpenState.SERVING: frozenset((OpenState.LENT, OpenState.HELD, OpenState.CLOSED)),
    # Closed while it is lent: one that is only read, and was opened anew to be written.
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
