"""How long writers waited: the longest pause of each store, and after each kill. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from tests.support.checking.facts import name_of_store
from tests.support.checking.history import History, Operation, Outcome, Store
from tests.torture.faults import Fault, FaultKind

#: A kill counts as alone if nothing else happened within this time of it.
ALONE_SECONDS: Final = 3.0


class Pause(NamedTuple):
    """A time in which a store had writers waiting and gave no answer."""

    store: str
    seconds: float
    ended_at: float


class Recovery(NamedTuple):
    """The time from a kill to the first ack of a write that began after it, and until every
    follower of the store had heard of that write (None: nobody followed)."""

    store: Store
    seconds: float
    heard_seconds: float | None = None


def pauses_of(store: str, operations: Iterable[Operation]) -> Iterator[Pause]:
    """Yield each gap between answers to writes while at least one writer waited, in order."""
    writes = sorted(
        ((one.returned, one) for one in operations if one.changes and one.returned is not None),
        key=lambda each: each[0],
    )
    # Of what is under way the earliest counts. Those that ended are dropped when they surface.
    pending = [(one.invoked, returned) for returned, one in writes]
    pending.sort(reverse=True)
    waiting: list[tuple[float, float]] = []
    last_ack_at = -math.inf
    for now, operation in writes:
        if operation.outcome is not Outcome.OK:
            continue
        while pending and pending[-1][0] <= now:
            heappush(waiting, pending.pop())
        while waiting and waiting[0][1] <= last_ack_at:
            heappop(waiting)
        since = waiting[0][0] if waiting else operation.invoked
        yield Pause(store, now - max(last_ack_at, since), now)
        last_ack_at = now


def longest_pause(store: str, operations: Iterable[Operation]) -> Pause:
    """Return the longest of a store's pauses; none is 0 s long."""
    return max(pauses_of(store, operations), key=_seconds, default=Pause(store, 0.0, 0.0))


def pauses(history: History) -> list[Pause]:
    """Return the longest pause of every store, the longest first."""
    by_store = _by_store(history)
    found = [longest_pause(name_of_store(store), each) for store, each in by_store.items()]
    return sorted(found, key=_seconds, reverse=True)


def _seconds(pause: Pause) -> float:
    return pause.seconds


def _by_store(history: History) -> dict[Store, list[Operation]]:
    found: dict[Store, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        found[operation.store].append(operation)
    return found


def recoveries(history: History, faults: Sequence[Fault]) -> list[Recovery]:
    """Return how long each store of each server that was killed alone took to give an ack again;
    stores that nobody wrote to are left out."""
    by_store, found = _by_store(history), []
    for fault in faults:
        if fault.kind is not FaultKind.KILL or not _alone(fault, faults):
            continue
        for store in fault.stores:
            first = min(
                (
                    (one.returned, one.revisions[-1])
                    for one in by_store.get(store, ())
                    if one.changes
                    and one.outcome is Outcome.OK
                    and one.invoked > fault.at
                    and one.returned is not None
                ),
                default=None,
            )
            if first is not None:
                returned, revision = first
                heard_at = _heard_at(history, store, revision, fault.at)
                heard = None if heard_at is None else heard_at - fault.at
                found.append(Recovery(store, returned - fault.at, heard))
    return found


def _heard_at(history: History, store: Store, revision: int, fault_at: float) -> float | None:
    """Return when the last of the subscriptions that were live at the fault, and outlived it, was
    told something as new as `revision`."""
    heard = []
    for following in history.followings:
        told = following.told_at
        if following.store != store or not told or told[0] > fault_at:
            continue
        for (_, seen, _), told_at in zip(following.changes, told, strict=True):
            if told_at > fault_at and seen >= revision:
                heard.append(told_at)
                break
    return max(heard, default=None)


def _alone(fault: Fault, faults: Sequence[Fault]) -> bool:
    return all(
        other is fault
        or other.until < fault.at - ALONE_SECONDS
        or other.at > fault.at + ALONE_SECONDS
        for other in faults
    )
