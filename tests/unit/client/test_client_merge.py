"""The merge: one sequence by revision out of whatever arrives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.following.merge import Broadcast, Cursor, Merge
from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import ChangeBatch, WireChange
from tests.support.effort import examples


def append(seq: int) -> WireChange:
    return [CHANGE_SET_MESSAGE, seq, b"v%d" % seq]


def batch(previous: int, count: int = 1, epoch: int = 1) -> Broadcast:
    """A broadcast of appends whose seqs are their revisions."""
    changes = [append(previous + 1 + i) for i in range(count)]
    return Broadcast(ChangeBatch(epoch, previous, 0, changes))


def page(start: int, end: int, head: int) -> list[Any]:
    changes = [[revision, 0, append(revision)] for revision in range(start + 1, end + 1)]
    return [changes, end, end, head, False]


def give(merge: Merge, page: list[Any]) -> bool:
    """Give the answer to a page asked for just now."""
    assert merge.cursor is not None
    return merge.page(page, merge.cursor)


def started(revision: int = 0, limit: int = 100) -> Merge:
    merge = Merge(limit)
    merge.start(Cursor(revision, revision))
    give(merge, page(revision, revision, revision))
    return merge


@pytest.fixture
def merge() -> Merge:
    return started()


def taken(merge: Merge) -> list[int]:
    return [merge.take().revision for _ in range(len(merge.ready))]


def test_broadcasts_in_order_are_given_out(merge: Merge) -> None:
    merge.broadcast(batch(0))
    merge.broadcast(batch(1, 3))
    assert taken(merge) == [1, 2, 3, 4]
    assert merge.cursor == Cursor(4, 4)
    assert not merge.behind


def test_a_doubled_or_old_broadcast_is_given_out_once(merge: Merge) -> None:
    for each in (batch(0, 2), batch(0, 2), batch(1, 2), batch(0)):
        merge.broadcast(each)
    assert taken(merge) == [1, 2, 3]


def test_a_gap_is_healed_by_the_owner_and_what_came_after_it_is_kept(merge: Merge) -> None:
    merge.broadcast(batch(1))
    assert merge.behind
    assert taken(merge) == []
    give(merge, page(0, 1, 1))
    assert taken(merge) == [1, 2]
    assert not merge.behind


def test_a_page_that_does_not_reach_the_head_leaves_it_behind(merge: Merge) -> None:
    merge.lost()
    give(merge, page(0, 3, 5))
    assert merge.behind
    give(merge, page(3, 5, 5))
    assert not merge.behind
    assert taken(merge) == [1, 2, 3, 4, 5]


def test_what_is_broadcast_before_the_start_is_held_and_merged() -> None:
    merge = Merge()
    merge.broadcast(batch(5))
    merge.broadcast(batch(4))
    merge.start(Cursor(4, 4))
    assert merge.behind
    give(merge, page(4, 4, 4))
    assert taken(merge) == [5, 6]


def test_what_was_held_of_a_former_life_is_void_when_it_begins_anew() -> None:
    merge = started(3)
    merge.broadcast(batch(4))
    assert merge.heard_more
    merge.start(Cursor(0, 0))
    assert not merge.heard_more
    # Nothing is left that the owner would be asked for again and again.
    assert give(merge, page(0, 0, 0))
    assert not merge.behind
    merge.broadcast(batch(6, epoch=2))
    assert merge.heard_more and merge.behind


def test_a_broadcast_applied_while_a_page_was_on_its_way_is_not_repeated(merge: Merge) -> None:
    merge.lost()
    merge.broadcast(batch(0, 2))
    give(merge, page(0, 3, 3))
    assert taken(merge) == [1, 2, 3]


def test_a_page_may_leave_out_what_was_overwritten(merge: Merge) -> None:
    merge.lost()
    give(merge, [[[2, 0, append(2)], [9, 0, append(1)]], 9, 7, 9, False])
    assert taken(merge) == [2, 9]
    assert merge.cursor == Cursor(9, 7)
    merge.broadcast(batch(8, 2))
    assert taken(merge) == [10]


def test_a_full_buffer_drops_broadcasts_and_heals_later() -> None:
    merge = started(limit=3)
    merge.broadcast(batch(0, 3))
    merge.broadcast(batch(3))
    assert merge.behind
    assert taken(merge) == [1, 2, 3]
    give(merge, page(3, 4, 4))
    assert taken(merge) == [4]


def test_no_more_is_held_than_the_limit() -> None:
    merge = Merge(limit=10)
    for previous in range(0, 1000, 5):
        merge.broadcast(batch(previous, 5))
        assert merge._held_count <= 10


@pytest.mark.parametrize(("revision", "behind"), [(4, True), (5, False), (6, True)])
def test_a_head_ahead_of_or_before_the_cursor_leaves_it_behind(revision: int, behind: bool) -> None:
    merge = started(5)
    merge.head(revision)
    assert merge.behind is behind


def test_a_new_owner_that_continues_elsewhere_is_asked(merge: Merge) -> None:
    merge.broadcast(batch(0, 5))
    merge.broadcast(batch(3, 1, epoch=2))
    assert merge.behind
    give(merge, page(5, 5, 5))
    assert not merge.behind


def test_a_former_owner_is_not_heard(merge: Merge) -> None:
    merge.broadcast(batch(0, 1, epoch=2))
    merge.broadcast(batch(1, 1, epoch=1))
    assert taken(merge) == [1]
    assert not merge.behind


def test_reset_is_reported_and_changes_nothing() -> None:
    merge = started(5)
    merge.lost()
    assert give(merge, [[], 0, 0, 3, True]) is False
    assert merge.behind
    assert merge.cursor == Cursor(5, 5)


def test_deletes_do_not_move_the_seq() -> None:
    merge = started(5)
    merge.broadcast(Broadcast(ChangeBatch(1, 5, 0, [[CHANGE_DELETE_MESSAGES, [99]]])))
    assert merge.cursor == Cursor(6, 5)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_any_loss_doubling_and_reordering_gives_one_sequence(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 40), "revisions")
    cuts = sorted(data.draw(st.sets(st.integers(1, total)), "cuts") | {total})
    batches = [batch(a, b - a) for a, b in zip([0, *cuts], cuts, strict=False)]
    arriving = data.draw(st.lists(st.sampled_from(batches), max_size=40), "arriving")
    page_rows = data.draw(st.integers(1, 10), "page rows")
    merge = Merge(limit=data.draw(st.integers(5, 50), "limit"))
    start = data.draw(st.integers(0, total), "start")
    start_after = data.draw(st.integers(0, len(arriving)), "start after")
    got: list[int] = []
    for place, each in enumerate([*arriving, None]):
        if place == start_after:
            merge.start(Cursor(start, start))
        if each is not None:
            merge.broadcast(each)
        if data.draw(st.booleans(), "consumer runs") and merge.cursor is not None:
            got += taken(merge)
            if merge.behind:
                # The owner is as far as the newest broadcast that was sent, at least.
                head = max([start, *(b.previous_revision + len(b.changes) for b in arriving)])
                after = merge.cursor.revision
                give(merge, page(after, min(head, after + page_rows), head))
    got += taken(merge)
    merge.head(total)
    while merge.behind:
        assert merge.cursor is not None
        after = merge.cursor.revision
        give(merge, page(after, min(total, after + page_rows), total))
        got += taken(merge)
    got += taken(merge)
    assert got == list(range(start + 1, total + 1))


def test_a_page_asked_from_nothing_is_void_once_a_broadcast_has_come() -> None:
    merge = Merge()
    merge.start(Cursor(0, 0))
    asked = Cursor(0, 0)
    merge.broadcast(batch(0))
    # Message 1 was deleted at revision 2, of which who starts from nothing is not told.
    assert merge.page([[[3, 0, append(2)]], 3, 2, 3, False], asked)
    assert merge.behind
    delete: WireChange = [CHANGE_DELETE_MESSAGES, [1]]
    assert give(merge, [[[2, 0, delete], [3, 0, append(2)]], 3, 2, 3, False])
    assert not merge.behind
    assert taken(merge) == [1, 2, 3]


def test_what_is_shed_is_given_out_later_from_where_the_consumer_was(merge: Merge) -> None:
    merge.broadcast(batch(0, 5))
    assert [merge.take().revision for _ in range(2)] == [1, 2]
    merge.shed()
    assert merge.behind
    assert merge.cursor == Cursor(2, 2)
    merge.broadcast(batch(5, 2))
    give(merge, page(2, 5, 5))
    assert taken(merge) == [3, 4, 5, 6, 7]


ODD_CHANGES: list[Any] = [
    *(None, 7, [], [99, "of a later version"], [CHANGE_SET_MESSAGE]),
    [CHANGE_SET_MESSAGE, "1", b"v"],
    [CHANGE_SET_MESSAGE, 1, "text"],
    [CHANGE_SET_MESSAGE, 1, b"v", ["headers"]],
    [CHANGE_DELETE_MESSAGES, 5],
    [CHANGE_DELETE_MESSAGES, ["5"]],
    [CHANGE_TRIM, None],
]


@pytest.mark.parametrize("odd", ODD_CHANGES, ids=repr)
def test_changes_that_make_no_sense_leave_nothing_half_done(merge: Merge, odd: Any) -> None:
    with pytest.raises(MalformedFrameError):
        merge.broadcast(Broadcast(ChangeBatch(1, 0, 0, [append(1), odd])))
    assert (merge.cursor, list(merge.ready)) == (Cursor(0, 0), [])
    merge.lost()
    with pytest.raises(MalformedFrameError):
        give(merge, [[[1, 0, append(1)], [2, 0, odd]], 2, 2, 2, False])
    assert (merge.cursor, list(merge.ready), merge.behind) == (Cursor(0, 0), [], True)


@pytest.mark.parametrize(
    "odd", [None, [], [[], 1, 1], [[], "1", 1, 1, False], [[7], 1, 1, 1, False]], ids=repr
)
def test_a_page_that_makes_no_sense_is_refused(merge: Merge, odd: Any) -> None:
    merge.lost()
    with pytest.raises(MalformedFrameError):
        give(merge, odd)
    assert merge.behind


def test_what_is_not_for_the_consumer_takes_no_room_and_moves_the_cursor() -> None:
    merge = Merge(limit=2, view=lambda change: None)
    merge.start(Cursor(0, 0))
    give(merge, page(0, 0, 0))
    merge.broadcast(batch(0, 2))
    merge.broadcast(Broadcast(ChangeBatch(1, 2, 0, [[CHANGE_CONFIGURE, {}]])))
    assert not merge.ready
    assert merge.settled == Cursor(3, 0)
