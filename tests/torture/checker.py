"""The checker: does what clients were told agree with what is there? Pure.

For each store, from its timeline (`timeline.py`) and what was read back at the end:

- folding all changes in the order of their revisions gives exactly what was read back: nothing that
  was acknowledged is lost, nothing comes back;
- seqs are given out densely and never again;
- an operation that began after another one was answered has the higher revision;
- a conditional write found what it expected;
- a read sees every write that was answered before it began;
- a follower is told each change once, in order, leaves out only what was overwritten later, and
  ends in the final state;
- errors are those that the faults may cause.

Writes without an answer may have happened or not; they excuse only what they can have done.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from torture.history import (
    FinalState,
    History,
    Operation,
    OperationKind,
    Outcome,
    Seen,
    SeenKind,
    Session,
    Target,
)
from torture.timeline import Known, Rule, Timeline, Violation, trims

#: What a client may be told while parts of the cluster are away, or because of what others did.
EXPECTED_ERRORS = frozenset(
    {
        "timeout",
        "no_server",
        "no_coordinator",
        "connection_failed",
        "wrong_last_seq",
        "wrong_revision",
        "invalid_seq",
        "stale_write",
    }
)

State = dict[Target, tuple[str, int]]
"""The value and the revision of each target that is there."""


def check(history: History, final: Iterable[FinalState]) -> list[Violation]:
    """Return everything that is wrong, store by store."""
    found: list[Violation] = []
    read_back = {state.store: state for state in final}
    for store in history.stores:
        found += check_store(
            history.operations.get(store, []), history.sessions.get(store, []), read_back[store]
        )
    return found


def check_store(
    operations: Sequence[Operation], sessions: Sequence[Session], final: FinalState
) -> list[Violation]:
    """Return everything that is wrong with one store."""
    timeline = Timeline(operations, sessions, final)
    _check_rows(timeline)
    _check_fold(timeline)
    _check_real_time(timeline)
    _check_reads(timeline)
    _check_errors(timeline)
    superseded = _superseded(timeline)
    for session in sessions:
        _check_session(timeline, session, superseded)
    return timeline.violations


def apply(state: State, seen: Seen) -> None:
    """Change `state` as `seen` says."""
    if seen.kind is SeenKind.SET:
        state[seen.targets[0]] = (seen.value, seen.revision)
    elif seen.kind is SeenKind.DELETE:
        for target in seen.targets:
            state.pop(target, None)
    elif seen.kind is SeenKind.TRIM:
        for target in [target for target in state if trims(seen.end_seq, target)]:
            del state[target]


def _check_rows(timeline: Timeline) -> None:
    final = timeline.final
    if final.count != len(final.rows):
        timeline.violate(
            Rule.LOST, f"the head counts {final.count}, {len(final.rows)} were read back"
        )
    targets = [place.target for _, place in final.rows]
    if any(not one < other for one, other in pairwise(targets)):  # type: ignore[operator]
        timeline.violate(Rule.ORDER, "read back out of order")


def _check_fold(timeline: Timeline) -> None:
    state: State = {}
    last_seq = 0
    previous_revision = 0
    conditional: set[str] = set()
    for revision, known in timeline.in_order():
        if revision > timeline.final.revision:
            break
        operation, seen = known.operation, known.seen
        if operation is not None and operation.id not in conditional:
            conditional.add(operation.id)
            if operation.outcome is Outcome.OK:
                _check_condition(timeline, operation, state, last_seq)
        apply(state, seen)
        if seen.kind is SeenKind.SET and isinstance(seen.targets[0], int):
            unseen = revision - previous_revision - 1
            last_seq = _check_seq(timeline, known, last_seq, unseen)
        previous_revision = revision
    _compare(timeline, state)
    if last_seq > timeline.final.last_seq:
        timeline.violate(Rule.LOST, f"seq {last_seq}: the store ends at {timeline.final.last_seq}")


def _check_seq(timeline: Timeline, known: Known, last_seq: int, unseen: int) -> int:
    """Return the last seq after this change. `unseen` changes before it may have been appends."""
    seq, operation = known.seen.targets[0], known.operation
    assert isinstance(seq, int)
    is_append = operation is not None and operation.kind is OperationKind.APPEND
    if is_append and seq <= last_seq:
        timeline.violate(Rule.SEQ, f"seq {seq} was given out again, to {known.seen.value}")
    if seq > last_seq + 1 + unseen:
        timeline.violate(Rule.SEQ, f"seq {seq} follows {last_seq}")
    return max(last_seq, seq)


def _check_condition(timeline: Timeline, operation: Operation, state: State, last_seq: int) -> None:
    """Check that a conditional write that succeeded had met what it expected."""
    expected_seq = operation.expected_last_seq
    if expected_seq not in (None, last_seq) and timeline.gap_count == 0:
        timeline.violate(
            Rule.ORDER, f"{operation.id} expected last seq {expected_seq}, it was {last_seq}"
        )
    if operation.expected_revision is None:
        return
    target = operation.targets[0]
    actual = state[target][1] if target in state else 0
    if actual != operation.expected_revision and not (
        timeline.may_set(target) or timeline.may_remove(target)
    ):
        timeline.violate(
            Rule.ORDER,
            f"{operation.id} expected {target} at {operation.expected_revision}, not at {actual}",
        )


def _compare(timeline: Timeline, expected: State) -> None:
    """Check that the changes folded together are what was read back."""
    actual = {place.target: (value, place.revision) for value, place in timeline.final.rows}
    for target in expected.keys() | actual.keys():
        wanted, found = expected.get(target), actual.get(target)
        if wanted == found:
            continue
        if wanted is not None and found is None:
            if not timeline.may_remove(target):
                value, revision = wanted
                timeline.violate(Rule.LOST, f"{value} in {target} at {revision} is not there")
        else:
            timeline.violate(
                Rule.LOST, f"{target} is {found}, though a later change made it {wanted}"
            )


def _check_real_time(timeline: Timeline) -> None:
    """Check that what was answered before another operation began has the lower revision."""
    latest: Operation | None = None
    for revision, known in timeline.in_order():
        operation = known.operation
        if operation is None or operation.outcome is not Outcome.OK:
            continue
        if latest is not None and operation.returned_at < latest.invoked_at:
            timeline.violate(
                Rule.ORDER,
                f"{operation.id} was answered before {latest.id} began, and has the higher "
                f"revision {revision}",
            )
        if latest is None or operation.invoked_at > latest.invoked_at:
            latest = operation


class _Answered:
    """Which revisions of a target were answered, or seen, up to a moment."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []

    def add(self, at: float, revision: int) -> None:
        """In order of `at`."""
        highest = max(revision, self._highest[-1] if self._highest else 0)
        self._times.append(at)
        self._highest.append(highest)

    def before(self, at: float) -> int:
        """Return the highest revision answered before `at`, or 0."""
        index = bisect_right(self._times, at)
        return self._highest[index - 1] if index else 0


def _check_reads(timeline: Timeline) -> None:
    answered: dict[Target, _Answered] = {}
    for operation in sorted(timeline.operations, key=lambda one: one.returned_at):
        if operation.outcome is not Outcome.OK:
            continue
        for place in operation.places:
            answered.setdefault(place.target, _Answered()).add(
                operation.returned_at, place.revision
            )
        if operation.found is not None:
            place = operation.found[1]
            answered.setdefault(place.target, _Answered()).add(
                operation.returned_at, place.revision
            )
    removals = [
        (revision, known)
        for revision, known in timeline.in_order()
        if known.seen.kind in (SeenKind.DELETE, SeenKind.TRIM)
    ]
    for operation in timeline.operations:
        if operation.kind is not OperationKind.GET or operation.outcome is not Outcome.OK:
            continue
        target = operation.targets[0]
        floor = answered[target].before(operation.invoked_at) if target in answered else 0
        _check_read(timeline, operation, floor, removals)


def _check_read(
    timeline: Timeline,
    operation: Operation,
    floor: int,
    removals: Sequence[tuple[int, Known]],
) -> None:
    """Check one read against the highest revision of its target answered before it began."""
    target = operation.targets[0]
    removed = [
        revision
        for revision, known in removals
        if revision > floor
        and (
            trims(known.seen.end_seq, target)
            if known.seen.kind is SeenKind.TRIM
            else target in known.seen.targets
        )
    ]
    if operation.found is None:
        if floor and not removed and not timeline.may_remove(target):
            timeline.violate(
                Rule.READ, f"{operation.id} found nothing in {target}, after revision {floor}"
            )
        return
    value, place = operation.found
    if place.revision < floor:
        timeline.violate(
            Rule.READ,
            f"{operation.id} found {target} at {place.revision}, after revision {floor}",
        )
    writer = timeline.writer_of.get(value)
    if writer is not None and writer.invoked_at > operation.returned_at:
        timeline.violate(Rule.READ, f"{operation.id} found {value} before it was written")
    for revision in removed:
        remover = timeline.changes[revision].operation
        if (
            revision > place.revision
            and remover is not None
            and remover.outcome is Outcome.OK
            and remover.returned_at < operation.invoked_at
        ):
            timeline.violate(
                Rule.READ, f"{operation.id} found {value} in {target}, deleted at {revision}"
            )


def _check_errors(timeline: Timeline) -> None:
    for operation in timeline.operations:
        if operation.code and operation.code not in EXPECTED_ERRORS:
            timeline.violate(
                Rule.ERROR,
                f"{operation.id} ({operation.label}): {operation.code}: {operation.text}",
            )


def _superseded(timeline: Timeline) -> dict[int, float]:
    """Return for each revision from which one on nothing of it is left; absent if that is never."""
    touched: dict[Target, int] = {}
    trimmed: list[tuple[int, int | None]] = []
    gone_at: dict[int, float] = {}

    def next_touch(target: Target) -> float:
        # The list has the latest trim first.
        trim = next((at for at, end_seq in reversed(trimmed) if trims(end_seq, target)), math.inf)
        return min(trim, touched.get(target, math.inf))

    for revision in sorted(timeline.changes, reverse=True):
        seen = timeline.changes[revision].seen
        if seen.kind is SeenKind.TRIM:
            later = [
                other
                for other, end_seq in trimmed
                if end_seq is None or (seen.end_seq is not None and end_seq >= seen.end_seq)
            ]
            if later:
                gone_at[revision] = min(later)
            trimmed.append((revision, seen.end_seq))
            continue
        gone_at[revision] = max(map(next_touch, seen.targets))
        for target in seen.targets:
            touched[target] = revision
    return gone_at


def _check_session(timeline: Timeline, session: Session, superseded: dict[int, float]) -> None:
    def violate(text: str) -> None:
        timeline.violate(Rule.FOLLOWER, f"{session.id}: {text}")

    segments: list[list[Seen]] = [[]]
    whole = session.whole
    for seen in session.changes:
        if seen.kind is SeenKind.RESET:
            segments.append([])
            whole = True
        else:
            segments[-1].append(seen)
    for number, segment in enumerate(segments):
        ready = next((i for i, seen in enumerate(segment) if seen.kind is SeenKind.READY), None)
        if ready is not None:
            mark = segment.pop(ready).revision
            if any(seen.revision > mark for seen in segment[:ready]) or any(
                seen.revision <= mark for seen in segment[ready:]
            ):
                violate(f"ready at {mark} is in the wrong place")
        live_from = _begin_of_live(segment)
        if live_from is None:
            violate("told changes out of order, or twice")
            continue
        if not whole and live_from > 0:
            violate("told of what was before it began")
        # After a reset nobody knows where the new state ends; that it adds up is checked below.
        if number == 0:
            live = [seen for seen in segment[live_from:] if seen.revision > session.live_after]
            _check_live(timeline, session.live_after, live, superseded, violate)
    if session.last:
        _check_end(timeline, segments[-1], whole, violate)


def _begin_of_live(segment: Sequence[Seen]) -> int | None:
    """Return where a segment's history or state, in order of targets, ends, and where what is in
    order of revisions begins; None if there is no such place."""
    begin = len(segment)
    while begin > 0 and (
        begin == len(segment) or segment[begin - 1].revision < segment[begin].revision
    ):
        begin -= 1
    highest = max((seen.revision for seen in segment[:begin]), default=0)
    for index in range(begin):
        if segment[index].kind is not SeenKind.SET:
            return None
        if index and not segment[index - 1].targets < segment[index].targets:
            return None
    # Rows whose revisions happen to grow belong to the history too.
    while begin < len(segment) and segment[begin].revision <= highest:
        in_order = begin == 0 or segment[begin - 1].targets < segment[begin].targets
        if segment[begin].kind is not SeenKind.SET or not in_order:
            return None
        begin += 1
    return begin


def _check_live(
    timeline: Timeline,
    live_after: int,
    live: Sequence[Seen],
    superseded: dict[int, float],
    violate: Callable[[str], None],
) -> None:
    """Check that nothing is left out but what was overwritten before the end."""
    if not live:
        return
    told = {seen.revision for seen in live}
    end = live[-1].revision
    for revision in range(live_after + 1, end):
        if revision in told or revision not in timeline.changes:
            continue
        if superseded.get(revision, math.inf) > end:
            violate(f"revision {revision} was left out")


def _check_end(
    timeline: Timeline, segment: Sequence[Seen], whole: bool, violate: Callable[[str], None]
) -> None:
    """Check that what a follower was told adds up to the final state."""
    state: State = {}
    touched: set[Target] = set()
    for seen in segment:
        apply(state, seen)
        touched.update(seen.targets)
    final = {place.target: (value, place.revision) for value, place in timeline.final.rows}
    targets = state.keys() | final.keys() if whole else touched
    wrong = sorted((t for t in targets if state.get(t) != final.get(t)), key=str)
    if wrong:
        first = wrong[0]
        violate(
            f"{len(wrong)} differ in the end, first {first}: told {state.get(first)}, "
            f"is {final.get(first)}"
        )
