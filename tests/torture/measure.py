"""How long writers waited: the longest pause of each store, and after each kill. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from torture.faults import Fault, FaultKind
from torture.history import History, Operation, Outcome

#: A kill counts as alone if nothing else happened within this time of it.
ALONE_SECONDS: Final = 3.0


class Pause(NamedTuple):
    """The longest time that a store had writers waiting and gave no answer."""

    store: str
    seconds: float
    ended_at: float


class Recovery(NamedTuple):
    """The time from a kill to the first ack of a write that began after it."""

    store: str
    seconds: float


def longest_pause(store: str, operations: Iterable[Operation]) -> Pause:
    """Return the longest gap between answers to writes while at least one writer waited."""
    writes = sorted(
        (one for one in operations if one.is_write and one.returned_at < math.inf),
        key=lambda one: one.returned_at,
    )
    # Of what is under way the earliest counts. Those that ended are dropped when they surface.
    pending = [(one.invoked_at, one.returned_at) for one in writes]
    pending.sort(reverse=True)
    waiting: list[tuple[float, float]] = []
    longest = Pause(store, 0.0, 0.0)
    last_ack_at = -math.inf
    for operation in writes:
        if operation.outcome is not Outcome.OK:
            continue
        now = operation.returned_at
        while pending and pending[-1][0] <= now:
            heappush(waiting, pending.pop())
        while waiting and waiting[0][1] <= last_ack_at:
            heappop(waiting)
        since = waiting[0][0] if waiting else operation.invoked_at
        began_at = max(last_ack_at, since)
        if now - began_at > longest.seconds:
            longest = Pause(store, now - began_at, now)
        last_ack_at = now
    return longest


def pauses(history: History) -> list[Pause]:
    """Return the longest pause of every store, the longest first."""
    found = [longest_pause(store, operations) for store, operations in history.operations.items()]
    return sorted(found, key=lambda pause: -pause.seconds)


def recoveries(history: History, faults: Sequence[Fault]) -> list[Recovery]:
    """Return how long each store of each server that was killed alone took to give an ack again;
    stores that nobody wrote to are left out."""
    found = []
    for fault in faults:
        if fault.kind is not FaultKind.KILL or not _alone(fault, faults):
            continue
        for store in fault.stores:
            acked_at = min(
                (
                    one.returned_at
                    for one in history.operations.get(store, ())
                    if one.is_write and one.outcome is Outcome.OK and one.invoked_at > fault.at
                ),
                default=None,
            )
            if acked_at is not None:
                found.append(Recovery(store, acked_at - fault.at))
    return found


def _alone(fault: Fault, faults: Sequence[Fault]) -> bool:
    return all(
        other is fault
        or other.until < fault.at - ALONE_SECONDS
        or other.at > fault.at + ALONE_SECONDS
        for other in faults
    )
