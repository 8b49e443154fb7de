"""The log in the bucket as a small model, of which every order of every step is looked at.

An owner that puts slots, with answers that get lost and puts that arrive late, and that removes old
slots in another thread; two fencers; a reaper. The owner never learns the time, so it is its own
zombie: after a fence it goes on as long as the bucket lets it. Checked in each state:

- once a fence is there, a reader finds every slot that was acknowledged and is not covered by
  snapshots, before the fence;
- nothing is acknowledged in or behind a slot that a fencer has closed.

Each rule of `shared_fs/bucket_log/bucket_log.py` is then broken, one at a time, and the search must
notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import pytest

SLOTS: Final = 3

NOTHING, DATA, FENCE = ".", "d", "F"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the protocol does; a planted bug is one that is switched off."""

    mark_before_list: bool = True
    looks_for_mark: bool = True
    keeps_newest: bool = True
    keeps_fences: bool = True
    checks_put_id: bool = True
    stops_when_fenced: bool = True
    fences_first_hole: bool = True
    removes_fenced_only: bool = True


class Fencer(NamedTuple):
    step: str = "mark"
    slot: int = 0


class State(NamedTuple):
    slots: tuple[str, ...] = (NOTHING,) * SLOTS
    mark: bool = False
    #: The owner's writer: the next slot, and if it has ended.
    next: int = 0
    ended: bool = False
    #: A put of the next slot that may still arrive, or that nobody waits for any more.
    late: frozenset[int] = frozenset()
    #: The owner's other thread: what it is about to remove.
    oldest: int = 0
    retire_step: str = "idle"
    retire_end: int = 0
    #: Everything in slots below has a snapshot beyond it.
    covered: int = 0
    acked: frozenset[int] = frozenset()
    fencers: tuple[Fencer, Fencer] = (Fencer(), Fencer())
    reaper_at: int | None = None
    wrong: str = ""


def put(state: State, slot: int, content: str) -> State:
    slots = list(state.slots)
    slots[slot] = content
    return state._replace(slots=tuple(slots))


def closed_at(state: State) -> list[int]:
    return [fencer.slot for fencer in state.fencers if fencer.step == "done"]


def acknowledge(state: State) -> State:
    slot = state.next
    wrong = "acknowledged behind a fence" if any(end <= slot for end in closed_at(state)) else ""
    return state._replace(next=slot + 1, acked=state.acked | {slot}, wrong=wrong)


def owner_puts(state: State, rules: Rules) -> Iterator[State]:
    slot = state.next
    if state.ended or slot >= SLOTS:
        return
    found = state.slots[slot]
    if found == NOTHING:
        yield acknowledge(put(state, slot, DATA))
        # It took effect and the answer was lost; it got lost; it will arrive some time.
        yield put(state, slot, DATA)
        yield state._replace(late=state.late | {slot})
    elif found == DATA or not rules.checks_put_id:
        yield acknowledge(state)
    elif rules.stops_when_fenced:
        yield state._replace(ended=True)
    else:
        yield state._replace(next=slot + 1)


def late_puts_arrive(state: State) -> Iterator[State]:
    for slot in state.late:
        arrived = state._replace(late=state.late - {slot})
        yield put(arrived, slot, DATA) if state.slots[slot] == NOTHING else arrived


def owner_retires(state: State, rules: Rules) -> Iterator[State]:
    if state.retire_step == "idle":
        newest = state.next - 1 if rules.keeps_newest else state.next
        end = min(state.covered, newest)
        if end > state.oldest:
            yield state._replace(retire_step="look", retire_end=end)
    elif state.retire_step == "look":
        stopped = state.mark and rules.looks_for_mark
        yield state._replace(retire_step="stopped" if stopped else "remove")
    elif state.retire_step == "remove":
        removed = put(state, state.oldest, NOTHING)._replace(oldest=state.oldest + 1)
        step = "idle" if removed.oldest == state.retire_end else "remove"
        yield removed._replace(retire_step=step)


def fencer_steps(state: State, index: int, rules: Rules) -> Iterator[State]:
    fencer = state.fencers[index]

    def become(step: str, slot: int, after: State = state) -> State:
        # Which of the two it is makes no difference: half as many states.
        first, second = sorted((Fencer(step, slot), after.fencers[1 - index]))
        return after._replace(fencers=(first, second))

    there = [slot for slot in range(SLOTS) if state.slots[slot] != NOTHING]
    newest = max(there, default=0)
    match fencer.step:
        case "mark" if rules.mark_before_list:
            yield become("list", 0, state._replace(mark=True))
        case "mark":
            yield become("late mark", newest)
        case "late mark":
            yield become("put", fencer.slot, state._replace(mark=True))
        case "list" if rules.fences_first_hole:
            yield become("put", newest)
        case "list":
            yield become("put", SLOTS - 1)
        case "put" if fencer.slot >= SLOTS:
            return
        case "put" if state.slots[fencer.slot] == NOTHING:
            fenced = put(state, fencer.slot, FENCE)
            yield become("done", fencer.slot, fenced)
            # The answer was lost: it is put again.
            yield fenced
        case "put" if state.slots[fencer.slot] == FENCE:
            yield become("done", fencer.slot)
        case "put":
            yield become("put", fencer.slot + 1)


def reaper_steps(state: State, rules: Rules) -> Iterator[State]:
    """Removes the slots of a log that ends with a fence and that no store needs."""
    there = [slot for slot in range(SLOTS) if state.slots[slot] != NOTHING]
    if not there:
        return
    if state.reaper_at is None:
        fenced = state.slots[there[-1]] == FENCE or not rules.removes_fenced_only
        needless = all(state.slots[slot] == FENCE or slot < state.covered for slot in there)
        if fenced and needless:
            yield state._replace(reaper_at=0)
        return
    end = there[-1] + 1 if not (rules.keeps_fences and rules.removes_fenced_only) else there[-1]
    if state.reaper_at < end:
        yield put(state, state.reaper_at, NOTHING)._replace(reaper_at=state.reaper_at + 1)


def following(state: State, rules: Rules) -> Iterator[State]:
    yield from owner_puts(state, rules)
    yield from late_puts_arrive(state)
    if state.covered < state.next:
        # Every change that is committed has been snapshotted.
        yield state._replace(covered=state.next)
    yield from owner_retires(state, rules)
    for index in range(2):
        yield from fencer_steps(state, index, rules)
    yield from reaper_steps(state, rules)


def what_is_wrong(state: State) -> str:
    if state.wrong or not closed_at(state):
        return state.wrong
    for slot in state.acked:
        if slot < state.covered:
            continue
        if state.slots[slot] != DATA:
            return f"slot {slot} was acknowledged and is gone"
        if FENCE in state.slots[:slot]:
            return f"slot {slot} was acknowledged and lies behind the fence"
    return ""


def search(rules: Rules) -> tuple[str, int]:
    """Return what went wrong in some order of steps, and how many states were looked at."""
    start = State()
    seen = {start}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        for after in following(state, rules):
            if after in seen:
                continue
            wrong = what_is_wrong(after)
            if wrong:
                return wrong, len(seen)
            seen.add(after)
            waiting.append(after)
    return "", len(seen)


def test_in_no_order_of_steps_is_anything_acknowledged_lost_or_acknowledged_after_the_fence() -> (
    None
):
    wrong, count = search(Rules())
    assert not wrong
    assert count > 1_000


@pytest.mark.parametrize("rule", [each.name for each in fields(Rules)])
def test_the_search_notices_when_a_rule_is_broken(rule: str) -> None:
    wrong, _ = search(Rules(**{rule: False}))
    assert wrong
