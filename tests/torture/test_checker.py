"""The checker finds each kind of wrong history, and nothing in a right one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from torture.checker import check_store
from torture.history import (
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
from torture.timeline import Rule

STREAM = "stream:s"
SET, DELETE, TRIM = SeenKind.SET, SeenKind.DELETE, SeenKind.TRIM


class Story:
    """A history in the making: one thing after the other, each answered before the next begins."""

    def __init__(self) -> None:
        self.clock = itertools.count(1)
        self.operations: list[Operation] = []
        self.sessions: list[Session] = []

    def add(self, kind: OperationKind, outcome: Outcome = Outcome.OK, **fields: Any) -> Operation:
        at = float(next(self.clock))
        id = f"op-{int(at)}"
        operation = Operation(id, STREAM, kind, at, outcome=outcome, **fields)
        if outcome is not Outcome.UNKNOWN:
            operation.returned_at = at + 0.5
        if outcome is Outcome.REFUSED:
            operation.code = "wrong_last_seq"
        self.operations.append(operation)
        return operation

    def append(
        self,
        value: str,
        seq: int = 0,
        revision: int = 0,
        outcome: Outcome = Outcome.OK,
        **more: Any,
    ) -> Operation:
        places = (Place(seq, revision),) if outcome is Outcome.OK else ()
        return self.add(OperationKind.APPEND, outcome, values=(value,), places=places, **more)

    def set(
        self,
        target: Target,
        value: str,
        revision: int = 0,
        outcome: Outcome = Outcome.OK,
        **more: Any,
    ) -> Operation:
        places = (Place(target, revision),) if outcome is Outcome.OK else ()
        return self.add(
            OperationKind.SET, outcome, values=(value,), targets=(target,), places=places, **more
        )

    def delete(self, *targets: Target, outcome: Outcome = Outcome.OK, **more: Any) -> Operation:
        return self.add(OperationKind.DELETE, outcome, targets=targets, **more)

    def get(self, target: Target, found: tuple[str, Place] | None) -> Operation:
        return self.add(OperationKind.GET, targets=(target,), found=found)

    def follow(self, *changes: Seen, whole: bool = True, last: bool = True) -> Session:
        session = Session("follower", STREAM, whole, last=last, changes=list(changes))
        self.sessions.append(session)
        return session

    def rules(
        self, *rows: tuple[str, int, int], revision: int | None = None, last_seq: int | None = None
    ) -> list[Rule]:
        """The rules that are broken if these rows (value, seq, revision) are read back."""
        placed = [(value, Place(seq, at)) for value, seq, at in rows]
        acked = [place for operation in self.operations for place in operation.places]
        acked += [place for _, place in placed]
        if revision is None:
            removals = [operation.revision for operation in self.operations]
            revision = max([0, *removals, *(place.revision for place in acked)])
        if last_seq is None:
            last_seq = max((int(place.target) for place in acked), default=0)
        final = FinalState(STREAM, revision, last_seq, len(placed), placed)
        return [one.rule for one in check_store(self.operations, self.sessions, final)]


def told(*revisions: int) -> list[Seen]:
    """Appends of `v1`, `v2`, ... as a follower is told them."""
    return [Seen(SET, revision, (revision,), f"v{revision}") for revision in revisions]


def three_appends() -> Story:
    story = Story()
    for number in (1, 2, 3):
        story.append(f"v{number}", number, number)
    return story


ROWS = (("v1", 1, 1), ("v2", 2, 2), ("v3", 3, 3))


def test_a_right_history_has_no_violation() -> None:
    story = three_appends()
    story.get(3, ("v3", Place(3, 3)))
    story.delete(2, count=1, revision=4)
    story.get(2, None)
    story.add(OperationKind.TRIM, end_seq=1, count=1, revision=5)
    story.set(3, "new", 6)
    story.delete(2, count=0, revision=6)
    story.append("refused", outcome=Outcome.REFUSED)
    story.append("unknown", outcome=Outcome.UNKNOWN)
    changes = [*told(1, 2, 3), Seen(DELETE, 4, (2,)), Seen(TRIM, 5, end_seq=1)]
    story.follow(*changes, Seen(SET, 6, (3,), "new"))
    assert story.rules(("new", 3, 6)) == []


def test_an_acknowledged_message_that_is_not_there_is_lost() -> None:
    assert three_appends().rules(ROWS[0], ROWS[2]) == [Rule.LOST]


def test_an_acknowledged_message_beyond_the_end_is_lost() -> None:
    found = three_appends().rules(*ROWS[:2], revision=2, last_seq=2)
    assert found == [Rule.LOST]


def test_a_last_seq_that_went_back_is_a_loss() -> None:
    story = three_appends()
    story.delete(3, count=1, revision=4)
    assert story.rules(*ROWS[:2], last_seq=2) == [Rule.LOST]


def test_a_message_that_comes_back_after_its_delete_is_a_lost_delete() -> None:
    story = three_appends()
    story.delete(2, count=1, revision=4)
    assert story.rules(*ROWS) == [Rule.LOST]


def test_an_overwrite_that_is_undone_is_lost() -> None:
    story = three_appends()
    story.set(2, "new", 4)
    assert story.rules(*ROWS) == [Rule.LOST]


def test_a_head_that_counts_otherwise_is_a_loss() -> None:
    story = three_appends()
    rows = [(value, Place(seq, revision)) for value, seq, revision in ROWS]
    final = FinalState(STREAM, 3, 3, 4, rows)
    assert [one.rule for one in check_store(story.operations, [], final)] == [Rule.LOST]


def test_an_unanswered_delete_excuses_only_what_it_may_have_deleted() -> None:
    story = three_appends()
    story.delete(2, outcome=Outcome.UNKNOWN)
    assert story.rules(*ROWS) == []
    assert story.rules(ROWS[0], ROWS[2], revision=4) == []
    assert story.rules(ROWS[0], ROWS[1], revision=4) == [Rule.LOST]
    # Without a revision of its own it did nothing.
    assert story.rules(ROWS[0], ROWS[2]) == [Rule.LOST]


def test_a_value_stored_twice_is_duplicated() -> None:
    story = three_appends()
    assert Rule.DUPLICATED in story.rules(*ROWS, ("v2", 4, 4))


def test_an_unanswered_value_stored_twice_is_duplicated() -> None:
    story = Story()
    story.append("once", outcome=Outcome.UNKNOWN)
    assert Rule.DUPLICATED in story.rules(("once", 1, 1), ("once", 2, 2))


def test_two_acks_for_one_revision_are_a_zombies() -> None:
    story = three_appends()
    story.append("zombie", 3, 3)
    assert Rule.ZOMBIE in story.rules(*ROWS)


def test_an_ack_whose_revision_is_another_change_is_a_zombies() -> None:
    story = three_appends()
    story.append("other", outcome=Outcome.UNKNOWN)
    assert Rule.ZOMBIE in story.rules(*ROWS[:2], ("other", 3, 3))


def test_followers_that_were_told_different_changes_are_found() -> None:
    story = Story()
    story.append("one", outcome=Outcome.UNKNOWN)
    story.append("other", outcome=Outcome.UNKNOWN)
    story.follow(Seen(SET, 1, (1,), "one"), last=False)
    assert Rule.ORDER in story.rules(("other", 1, 1))


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, None])
def test_a_value_that_was_refused_or_never_written_is_invented(outcome: Outcome | None) -> None:
    story = three_appends()
    if outcome is not None:
        story.append("ghost", outcome=outcome)
    assert Rule.INVENTED in story.rules(*ROWS, ("ghost", 4, 4))


def test_a_damaged_value_is_found() -> None:
    assert Rule.INVENTED in three_appends().rules(*ROWS, ("damaged:b'v'", 4, 4))


def test_a_delete_that_nobody_asked_for_is_invented() -> None:
    story = three_appends()
    story.follow(*told(1, 2, 3), Seen(DELETE, 4, (2,)))
    assert story.rules(ROWS[0], ROWS[2], revision=4) == [Rule.INVENTED]
    story.delete(2, 3, outcome=Outcome.UNKNOWN)
    assert story.rules(ROWS[0], ROWS[2], revision=4) == []


def test_a_refused_delete_explains_nothing() -> None:
    story = three_appends()
    story.delete(2, outcome=Outcome.REFUSED)
    assert story.rules(ROWS[0], ROWS[2], revision=4) == [Rule.INVENTED, Rule.LOST]


def test_revisions_that_nobody_can_have_made_are_invented() -> None:
    assert three_appends().rules(*ROWS, revision=4) == [Rule.INVENTED]


def test_a_seq_that_is_given_out_again_is_found() -> None:
    story = three_appends()
    story.delete(3, count=1, revision=4)
    story.append("again", 3, 5)
    assert story.rules(*ROWS[:2], ("again", 3, 5)) == [Rule.SEQ]


def test_a_seq_that_was_left_out_is_found_unless_an_unanswered_append_may_have_it() -> None:
    story = three_appends()
    story.append("v5", 5, 4)
    assert story.rules(*ROWS, ("v5", 5, 4)) == [Rule.SEQ]
    story = three_appends()
    story.append("v4", outcome=Outcome.UNKNOWN)
    story.delete(4, outcome=Outcome.UNKNOWN)
    story.append("v5", 5, 6)
    assert story.rules(*ROWS, ("v5", 5, 6)) == []


def test_a_batch_is_stored_whole() -> None:
    story = Story()
    story.add(OperationKind.APPEND, Outcome.UNKNOWN, values=("a", "b", "c"))
    assert story.rules(("a", 1, 1), ("b", 2, 2), ("c", 3, 3)) == []
    assert Rule.LOST in story.rules(("a", 1, 1), ("b", 2, 2))
    assert Rule.DUPLICATED in story.rules(("a", 1, 1), ("c", 2, 2), ("b", 3, 3))


def test_an_acknowledged_batch_is_contiguous() -> None:
    story = Story()
    places = (Place(1, 1), Place(3, 3))
    story.add(OperationKind.APPEND, values=("a", "c"), places=places)
    story.append("b", 2, 2)
    assert Rule.ORDER in story.rules(("a", 1, 1), ("b", 2, 2), ("c", 3, 3))


def test_what_was_answered_before_another_began_has_the_lower_revision() -> None:
    story = Story()
    story.append("later", 2, 2)
    story.append("earlier", 1, 1)
    assert story.rules(("earlier", 1, 1), ("later", 2, 2)) == [Rule.ORDER]


def test_what_went_on_at_once_may_have_any_order() -> None:
    story = Story()
    story.append("later", 2, 2).returned_at = 10.0
    story.append("earlier", 1, 1)
    assert story.rules(("earlier", 1, 1), ("later", 2, 2)) == []


def test_a_conditional_write_found_what_it_expected() -> None:
    for expected, rules in ((3, []), (2, [Rule.ORDER])):
        story = three_appends()
        story.append("v4", 4, 4, expected_last_seq=expected)
        assert story.rules(*ROWS, ("v4", 4, 4)) == rules
    for expected, rules in ((2, []), (1, [Rule.ORDER]), (0, [Rule.ORDER])):
        story = three_appends()
        story.set(2, "new", 4, expected_revision=expected)
        assert story.rules(ROWS[0], ("new", 2, 4), ROWS[2]) == rules


def test_a_read_that_misses_an_answered_write_is_found() -> None:
    story = three_appends()
    story.get(3, None)
    assert story.rules(*ROWS) == [Rule.READ]
    story = three_appends()
    story.set(2, "new", 4)
    story.get(2, ("v2", Place(2, 2)))
    assert story.rules(ROWS[0], ("new", 2, 4), ROWS[2]) == [Rule.READ]


def test_a_read_that_finds_what_was_deleted_before_is_found() -> None:
    story = three_appends()
    story.delete(2, count=1, revision=4)
    story.get(2, ("v2", Place(2, 2)))
    assert story.rules(ROWS[0], ROWS[2]) == [Rule.READ]


def test_a_read_that_goes_back_behind_another_read_is_found() -> None:
    story = three_appends()
    story.set(2, "new", 4).returned_at = 100.0
    story.get(2, ("new", Place(2, 4)))
    story.get(2, ("v2", Place(2, 2)))
    assert story.rules(ROWS[0], ("new", 2, 4), ROWS[2]) == [Rule.READ]


def test_an_error_that_no_fault_explains_is_a_violation() -> None:
    story = three_appends()
    story.append("x", outcome=Outcome.REFUSED).code = "store_damaged"
    assert story.rules(*ROWS) == [Rule.ERROR]


@pytest.mark.parametrize(
    "changes",
    [
        told(1, 3),
        told(1, 2),
        told(2, 3),
        [*told(1, 2, 3), Seen(SeenKind.RESET, 3), *told(1, 2)],
    ],
    ids=["one left out", "the last left out", "the first left out", "after a reset"],
)
def test_a_follower_that_misses_a_change_is_found(changes: Sequence[Seen]) -> None:
    story = three_appends()
    story.follow(*changes)
    assert Rule.FOLLOWER in story.rules(*ROWS)


@pytest.mark.parametrize(
    "changes",
    [told(1, 2, 2, 3), told(1, 2, 3, 2), told(1, 2, 3, 3), told(3, 1, 2)],
    ids=["twice", "again later", "the last twice", "out of order"],
)
def test_a_follower_that_is_told_twice_or_out_of_order_is_found(changes: Sequence[Seen]) -> None:
    story = three_appends()
    story.follow(*changes)
    assert Rule.FOLLOWER in story.rules(*ROWS)


def test_a_follower_that_misses_a_delete_is_found() -> None:
    story = three_appends()
    story.delete(2, count=1, revision=4)
    story.append("v5", 4, 5)
    story.follow(*told(1, 2, 3), Seen(SET, 5, (4,), "v5"))
    assert Rule.FOLLOWER in story.rules(ROWS[0], ROWS[2], ("v5", 4, 5))


def test_a_follower_that_is_told_less_was_deleted_than_was_is_found() -> None:
    story = three_appends()
    story.delete(1, 2, count=2, revision=4)
    story.follow(*told(1, 2, 3), Seen(DELETE, 4, (2,)))
    assert Rule.ZOMBIE in story.rules(ROWS[2])


def test_a_follower_may_miss_what_was_overwritten() -> None:
    story = three_appends()
    story.set(2, "new", 4)
    story.follow(*told(1, 3), Seen(SET, 4, (2,), "new"))
    assert story.rules(ROWS[0], ("new", 2, 4), ROWS[2]) == []


def test_a_follower_that_joins_late_reads_history_and_goes_on_live() -> None:
    story = three_appends()
    story.set(1, "new", 4)
    story.append("v5", 4, 5)
    rows = (("new", 1, 4), ROWS[1], ROWS[2], ("v5", 4, 5))
    history = [Seen(SET, at, (seq,), value) for value, seq, at in rows]
    session = story.follow(*history)
    session.live_after = 4
    assert story.rules(*rows) == []
    story.sessions = [replace(session, changes=history[:-1])]
    assert Rule.FOLLOWER in story.rules(*rows)


def test_a_follower_of_what_is_new_hears_nothing_of_before() -> None:
    story = three_appends()
    session = story.follow(*told(3), whole=False)
    session.live_after = 2
    assert story.rules(*ROWS) == []
    session.changes = [Seen(SET, 3, (3,), "v3"), Seen(SET, 1, (1,), "v1")]
    assert Rule.FOLLOWER in story.rules(*ROWS)


def test_ready_stands_between_state_and_what_is_live() -> None:
    story = three_appends()
    state = told(1, 2)
    story.follow(*state, Seen(SeenKind.READY, 2), *told(3))
    assert story.rules(*ROWS) == []
    story.sessions.clear()
    story.follow(*state, *told(3), Seen(SeenKind.READY, 2))
    assert story.rules(*ROWS) == [Rule.FOLLOWER]
