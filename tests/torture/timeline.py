"""One store's timeline: which change each revision is, from all that anybody saw. Pure.

A revision is exactly one change. It is learnt from the ack of whoever made it, from the followers
and from what was read back, and all of them must agree:

- two acks for one revision, or an ack whose revision turned out to be another change, mean that two
  owners acknowledged at once: one of them was a zombie;
- a value at two revisions was stored twice;
- a value, a delete or a trim that nobody asked for, or that was refused, was invented.

An operation without an answer that was seen to have happened counts as what it is from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from torture.history import (
    DAMAGED,
    FinalState,
    Operation,
    OperationKind,
    Outcome,
    Place,
    Seen,
    SeenKind,
    Session,
    Target,
)


class Rule(StrEnum):
    """What a violation breaks."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    ZOMBIE = "zombie ack"
    INVENTED = "invented"
    ORDER = "out of order"
    SEQ = "seq not dense"
    READ = "wrong read"
    FOLLOWER = "wrong follower"
    ERROR = "unexpected error"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    rule: Rule
    store: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.store}: {self.text}"


@dataclass(slots=True)
class Known:
    """The change that a revision is. `targets` of an acked delete are those it asked for, until a
    follower says which were there (`exact`)."""

    seen: Seen
    operation: Operation | None = None
    exact: bool = True


class Timeline:
    """All changes of one store by revision, and what is wrong with them."""

    def __init__(
        self, operations: Iterable[Operation], sessions: Iterable[Session], final: FinalState
    ) -> None:
        self.final = final
        self.operations = list(operations)
        self.changes: dict[int, Known] = {}
        self.violations: list[Violation] = []
        #: Where each value was stored, by its name.
        self.places: dict[str, Place] = {}
        self.writer_of = {
            value: operation for operation in self.operations for value in operation.values
        }
        for operation in self.operations:
            if operation.outcome is Outcome.OK:
                self._acknowledged(operation)
        for seen in self._observations(sessions):
            self._observed(seen)
        self._complete_batches()
        self._attribute_deletes()
        #: Writes that may have happened, and were not seen to.
        self.open_writes = [
            operation
            for operation in self.operations
            if operation.outcome is Outcome.UNKNOWN
            and operation.is_write
            and id(operation) not in self._attributed
            and not any(value in self.places for value in operation.values)
        ]
        self.gap_count = sum(
            revision not in self.changes for revision in range(1, final.revision + 1)
        )
        self._check_extent()

    def violate(self, rule: Rule, text: str) -> None:
        self.violations.append(Violation(rule, self.final.store, text))

    def in_order(self) -> Iterator[tuple[int, Known]]:
        """Yield revisions and their changes."""
        for revision in sorted(self.changes):
            yield revision, self.changes[revision]

    def may_remove(self, target: Target) -> bool:
        """Tell if a delete or trim that was not seen to happen may have removed `target`."""
        return self.gap_count > 0 and any(covers(one, target) for one in self.open_writes)

    def may_set(self, target: Target) -> bool:
        """Tell if a write that was not seen to happen may have set `target`."""
        return self.gap_count > 0 and any(
            one.kind is OperationKind.APPEND
            or (one.kind is OperationKind.SET and target in one.targets)
            for one in self.open_writes
        )

    def _acknowledged(self, operation: Operation) -> None:
        if operation.kind in (OperationKind.APPEND, OperationKind.SET):
            if len(operation.places) != len(operation.values):
                self.violate(Rule.ERROR, f"{operation.id}: {len(operation.places)} acks")
                return
            for value, place in zip(operation.values, operation.places, strict=True):
                self.places[value] = place
                seen = Seen(SeenKind.SET, place.revision, (place.target,), value)
                self._acknowledge(seen, operation)
            for index, (one, next_one) in enumerate(
                zip(operation.places, operation.places[1:], strict=False)
            ):
                if next_one.revision != one.revision + 1:
                    self.violate(Rule.ORDER, f"{operation.id}: batch torn after member {index}")
        elif operation.is_write and operation.count > 0:
            is_trim = operation.kind is OperationKind.TRIM
            kind = SeenKind.TRIM if is_trim else SeenKind.DELETE
            seen = Seen(kind, operation.revision, operation.targets, end_seq=operation.end_seq)
            self._acknowledge(seen, operation, exact=False)

    def _acknowledge(self, seen: Seen, operation: Operation, *, exact: bool = True) -> None:
        other = self.changes.get(seen.revision)
        if other is not None and other.operation is not None:
            self.violate(
                Rule.ZOMBIE,
                f"revision {seen.revision} was acknowledged to {other.operation.id} and to "
                f"{operation.id}",
            )
            return
        self.changes[seen.revision] = Known(seen, operation, exact)

    def _observations(self, sessions: Iterable[Session]) -> Iterator[Seen]:
        for value, place in self.final.rows:
            yield Seen(SeenKind.SET, place.revision, (place.target,), value)
        for session in sessions:
            for seen in session.changes:
                if seen.kind not in (SeenKind.RESET, SeenKind.READY):
                    yield seen
        for operation in self.operations:
            if operation.found is not None:
                value, place = operation.found
                yield Seen(SeenKind.SET, place.revision, (place.target,), value)

    def _observed(self, seen: Seen) -> None:
        known = self.changes.get(seen.revision)
        if known is not None and known.seen == seen:
            return
        if seen.kind is SeenKind.SET and not self._is_wanted(seen):
            return
        if known is None:
            operation = self.writer_of.get(seen.value) if seen.value else None
            self.changes[seen.revision] = Known(seen, operation)
            return
        if not known.exact and _agree(known, seen):
            known.seen, known.exact = seen, True
            return
        rule = Rule.ORDER
        if known.operation is not None and known.operation.outcome is Outcome.OK:
            rule = Rule.ZOMBIE
        self.violate(rule, f"revision {seen.revision} is {_words(known.seen)} and {_words(seen)}")

    def _is_wanted(self, seen: Seen) -> bool:
        """Check a value that was seen against who wrote it; learn where it is."""
        value, target = seen.value, seen.targets[0]
        if value.startswith(DAMAGED):
            self.violate(Rule.INVENTED, f"{_words(seen)}")
            return False
        operation = self.writer_of.get(value)
        if operation is None:
            self.violate(Rule.INVENTED, f"{_words(seen)}, which nobody wrote")
            return False
        if operation.outcome is Outcome.REFUSED:
            self.violate(Rule.INVENTED, f"{_words(seen)}, which was refused with {operation.code}")
            return False
        if operation.kind is OperationKind.SET:
            wanted = operation.targets[operation.values.index(value)]
            if wanted != target:
                self.violate(Rule.INVENTED, f"{_words(seen)}, which was written to {wanted}")
                return False
        place = self.places.setdefault(value, Place(target, seen.revision))
        if place != (target, seen.revision):
            self.violate(
                Rule.DUPLICATED,
                f"{value} is {place.target} at revision {place.revision} and {target} at "
                f"revision {seen.revision}",
            )
            return False
        return True

    def _complete_batches(self) -> None:
        """A batch is stored whole: one member that was seen places all the others."""
        for operation in self.operations:
            if operation.outcome is not Outcome.UNKNOWN or len(operation.values) < 2:
                continue
            found = next((value for value in operation.values if value in self.places), None)
            if found is None:
                continue
            at, index = self.places[found], operation.values.index(found)
            for offset, value in enumerate(operation.values):
                if operation.targets:
                    target = operation.targets[offset]
                else:
                    assert isinstance(at.target, int)
                    target = at.target - index + offset
                revision = at.revision - index + offset
                self._observed(Seen(SeenKind.SET, revision, (target,), value))

    def _attribute_deletes(self) -> None:
        """Find for each delete and trim without an ack who asked for it, each at most once."""
        self._attributed: set[int] = set()
        unknown = [
            operation
            for operation in self.operations
            if operation.outcome is Outcome.UNKNOWN
            and operation.kind in (OperationKind.DELETE, OperationKind.TRIM)
        ]
        unknown.sort(key=lambda operation: len(operation.targets))
        for revision, known in self.in_order():
            if known.operation is not None or known.seen.kind is SeenKind.SET:
                continue
            for operation in unknown:
                if id(operation) not in self._attributed and _made(operation, known.seen):
                    self._attributed.add(id(operation))
                    known.operation = operation
                    break
            else:
                self.violate(
                    Rule.INVENTED, f"{_words(known.seen)} at {revision}, which nobody asked for"
                )

    def _check_extent(self) -> None:
        final = self.final
        for revision, known in self.in_order():
            if revision > final.revision:
                self.violate(
                    Rule.LOST,
                    f"revision {revision} ({_words(known.seen)}, {_whose(known)}): the store ends "
                    f"at {final.revision}",
                )
        possible = sum(max(1, len(one.values)) for one in self.open_writes)
        if self.gap_count > possible:
            self.violate(
                Rule.INVENTED,
                f"{self.gap_count} revisions that nobody saw, and only {possible} writes without "
                "an answer",
            )


def covers(operation: Operation, target: Target) -> bool:
    """Tell if a delete or trim would remove `target`."""
    if operation.kind is OperationKind.DELETE:
        return target in operation.targets
    if operation.kind is OperationKind.TRIM:
        return trims(operation.end_seq, target)
    return False


def trims(end_seq: int | None, target: Target) -> bool:
    """Tell if a trim up to `end_seq`, None being everything, removes `target`."""
    return end_seq is None or (isinstance(target, int) and target <= end_seq)


def _agree(known: Known, seen: Seen) -> bool:
    """Tell if an acknowledged delete or trim is what a follower was told."""
    asked, operation = known.seen, known.operation
    if operation is None or asked.kind is not seen.kind:
        return False
    if seen.kind is SeenKind.TRIM:
        return _same_end(asked.end_seq, seen.end_seq)
    return set(seen.targets) <= set(asked.targets) and len(seen.targets) == operation.count


def _made(operation: Operation, seen: Seen) -> bool:
    """Tell if an unanswered operation can be what made a change."""
    if seen.kind is SeenKind.TRIM:
        return operation.kind is OperationKind.TRIM and _same_end(operation.end_seq, seen.end_seq)
    return operation.kind is OperationKind.DELETE and set(seen.targets) <= set(operation.targets)


def _same_end(asked: int | None, done: int | None) -> bool:
    """A trim ends at the last seq at the latest."""
    return asked is None or (done is not None and done <= asked)


def _words(seen: Seen) -> str:
    if seen.kind is SeenKind.TRIM:
        return f"a trim up to {seen.end_seq}"
    if seen.kind is SeenKind.DELETE:
        return f"a delete of {', '.join(map(str, seen.targets))}"
    return f"{seen.value} in {seen.targets[0]}"


def _whose(known: Known) -> str:
    if known.operation is None:
        return "seen by a follower"
    outcome = known.operation.outcome
    return "acknowledged" if outcome is Outcome.OK else "seen by a follower"
