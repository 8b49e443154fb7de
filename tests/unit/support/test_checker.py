"""The checker finds each kind of wrong history, and nothing in a right one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreKind
from tests.support.checking.checker import check
from tests.support.checking.history import (
    Broadcast,
    ChangeOf,
    Final,
    Following,
    History,
    Key,
    Operation,
    Outcome,
    Store,
    Transaction,
    What,
)

_STREAM: Store = (int(StoreKind.STREAM), "s")
_KV: Store = (int(StoreKind.KV), "k")


class _Story:
    """A history in the making: each operation ends before the next begins."""

    def __init__(self, store: Store = _STREAM) -> None:
        self.store = store
        self.history = History()
        self._revision = self._seq = 0
        self.rows: dict[Key, tuple[bytes, int]] = {}

    def call(self, action: str, outcome: Outcome = Outcome.OK, **fields: Any) -> Operation:
        results = {
            name: fields.pop(name)
            for name in ("revisions", "seqs", "count", "seen", "head_revision", "duplicate")
            if name in fields
        }
        operation = self.history.invoke("c", self.store, action, **fields)
        for name, value in results.items():
            setattr(operation, name, value)
        self.history.complete(operation, outcome)
        if outcome is Outcome.UNKNOWN:
            operation.returned = None
        return operation

    def append(self, value: bytes) -> Operation:
        """A right append."""
        self._revision += 1
        self._seq += 1
        self.rows[self._seq] = (value, self._revision)
        return self.call("append", values=(value,), revisions=(self._revision,), seqs=(self._seq,))

    def set(self, key: Key, value: bytes, **fields: Any) -> Operation:
        """A right set."""
        self._revision += 1
        if isinstance(key, int):
            self._seq = max(self._seq, key)
        self.rows[key] = (value, self._revision)
        seqs = (key,) if isinstance(key, int) else ()
        return self.call(
            "set", keys=(key,), values=(value,), revisions=(self._revision,), seqs=seqs, **fields
        )

    def delete(self, *keys: Key, **fields: Any) -> Operation:
        """A right delete."""
        there = [key for key in keys if self.rows.pop(key, None)]
        self._revision += bool(there)
        results = {"count": len(there), "revisions": (self._revision,)}
        return self.call("delete", keys=keys, **results, **fields)

    def trim(self, end: int) -> Operation:
        """A right trim."""
        self._revision += 1
        gone = [key for key in self.rows if int(key) <= end]
        for key in gone:
            del self.rows[key]
        results = {"count": len(gone), "revisions": (self._revision,)}
        return self.call("delete_all", end=end, **results)

    def get(self, key: Key, seen: tuple[bytes, int] | None) -> Operation:
        return self.call("get", keys=(key,), seen={} if seen is None else {key: seen})

    def follow(self, *changes: tuple[int, ChangeOf | None], **fields: Any) -> Following:
        following = Following("f", self.store, **fields)
        following.changes = [(ChangeKind.SET, revision, change) for revision, change in changes]
        self.history.followings.append(following)
        return following

    def broadcast(self, *changes: tuple[int, ChangeOf], incarnation: str = "i") -> None:
        self.history.broadcasts.append(Broadcast(incarnation, self.store, 1, changes))

    def found(self, **final: Any) -> list[str]:
        """Judge, with a final state as it should be but for `final`."""
        fields = {"revision": self._revision, "last_seq": self._seq, "rows": self.rows, **final}
        self.history.final[self.store] = Final(**fields)
        return check(self.history)


def _set(key: Key, value: bytes) -> ChangeOf:
    return ChangeOf(What.SET, (key,), value)


def _appended(*values: bytes) -> _Story:
    story = _Story()
    for value in values:
        story.append(value)
    return story


def _kept(*entries: tuple[str, bytes]) -> _Story:
    story = _Story(_KV)
    for key, value in entries:
        story.set(key, value)
    return story


def _assert_one(found: list[str], *words: str) -> None:
    assert any(all(word in what for word in words) for what in found), found


def test_a_right_history_is_right() -> None:
    story = _appended(b"a", b"b", b"c")
    story.set(2, b"B")
    story.delete(1)
    story.get(2, (b"B", 4))
    story.get(1, None)
    story.call("head", head_revision=5)
    story.call("get_all", seen=dict(story.rows))
    story.broadcast((1, _set(1, b"a")), (2, _set(2, b"b")))
    story.follow(
        (1, _set(1, b"a")),
        (3, _set(3, b"c")),
        (4, _set(2, b"B")),
        (5, ChangeOf(What.DELETE, (1,))),
        start_seq=1,
        complete=True,
    )
    assert story.found() == []


def test_a_right_history_of_a_kv_is_right() -> None:
    story = _kept(("a", b"1"))
    story.set("b", b"2", expected=0)
    story.set("a", b"3", expected=1)
    story.call("set", Outcome.REFUSED, keys=("a",), values=(b"4",), expected=1)
    story.call("set", Outcome.UNKNOWN, keys=("a",), values=(b"5",))
    story.follow(
        (3, _set("a", b"3")), (2, _set("b", b"2")), live_after=3, complete=True
    ).changes.append((ChangeKind.READY, 3, None))
    assert story.found() == []


def test_an_operation_whose_outcome_is_unknown_may_or_may_not_have_happened() -> None:
    story = _appended(b"a")
    story.call("append", Outcome.UNKNOWN, values=(b"b",))
    story.call("delete", Outcome.UNKNOWN, keys=(1,))
    assert story.found() == []
    assert story.found(revision=2, last_seq=2, rows={**story.rows, 2: (b"b", 2)}) == []
    assert story.found(revision=2, rows={}) == []


_A1, _B2 = (b"a", 1), (b"b", 2)


@pytest.mark.parametrize(
    ("values", "final", "words"),
    [
        ("ab", {"revision": 1, "last_seq": 1, "rows": {1: _A1}}, "lost/revision 2"),
        ("ab", {"rows": {2: _B2}}, "lost/b'a'"),
        ("a", {"revision": 2, "last_seq": 2, "rows": {1: _A1, 2: (b"a", 2)}}, "stored twice"),
        ("", {"revision": 1, "last_seq": 1, "rows": {1: (b"?", 1)}}, "made up"),
        ("a", {"last_seq": 2}, "not dense/seq 2"),
        ("abc", {"count": 4}, "lost/counts 4"),
    ],
)
def test_a_final_state_that_is_wrong_is_found(
    values: str, final: dict[str, Any], words: str
) -> None:
    story = _appended(*(value.encode() for value in values))
    _assert_one(story.found(**final), *words.split("/"))


def test_a_value_that_went_back_is_found() -> None:
    story = _kept(("a", b"1"), ("a", b"2"))
    _assert_one(story.found(rows={"a": (b"1", 1)}), "lost", "b'2'")


def test_a_refused_value_that_was_stored_is_found() -> None:
    story = _Story(_KV)
    story.call("set", Outcome.REFUSED, keys=("a",), values=(b"1",), expected=7)
    _assert_one(story.found(revision=1, rows={"a": (b"1", 1)}), "refused and stored")


def test_a_value_at_another_key_is_found() -> None:
    story = _Story(_KV)
    story.call("set", Outcome.UNKNOWN, keys=("a",), values=(b"1",))
    _assert_one(story.found(revision=1, rows={"b": (b"1", 1)}), "misplaced")


def test_two_different_changes_of_one_revision_are_found() -> None:
    story = _appended(b"a")
    story.call("append", Outcome.UNKNOWN, values=(b"b",))
    story.broadcast((1, _set(1, b"b")), incarnation="zombie")
    _assert_one(story.found(), "two orders", "zombie")


def test_a_broadcast_that_came_to_nothing_is_found() -> None:
    story = _appended(b"a")
    story.call("append", Outcome.UNKNOWN, values=(b"b",))
    story.broadcast((2, _set(2, b"b")), incarnation="zombie")
    _assert_one(story.found(), "lost", "zombie")


def test_a_seq_given_twice_is_found() -> None:
    story = _appended(b"a")
    story.call("append", values=(b"b",), revisions=(2,), seqs=(1,))
    _assert_one(story.found(revision=2, rows={1: (b"b", 2)}), "given twice")


def test_seqs_that_go_back_are_found() -> None:
    story = _appended(b"a", b"b")
    story.call("append", Outcome.UNKNOWN, values=(b"c",))
    rows = {1: (b"a", 1), 2: (b"b", 2), 3: (b"c", 4), 4: (b"d", 3)}
    story.call("append", Outcome.UNKNOWN, values=(b"d",))
    _assert_one(story.found(revision=4, last_seq=4, rows=rows), "seqs go back")


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN])
def test_half_a_batch_is_found(outcome: Outcome) -> None:
    story = _Story()
    acks = {"revisions": (1, 2), "seqs": (1, 2)} if outcome is Outcome.OK else {}
    story.call("append_many", outcome, values=(b"a", b"b"), **acks)
    _assert_one(story.found(revision=1, last_seq=1, rows={1: (b"a", 1)}), "torn")


def test_a_delete_or_a_trim_that_was_undone_is_found() -> None:
    deleted, trimmed = _appended(b"a"), _appended(b"a")
    deleted.delete(1)
    trimmed.broadcast((2, ChangeOf(What.TRIM, end=1)))
    for story in (deleted, trimmed):
        _assert_one(story.found(revision=2, rows={1: _A1}), "undone")


def test_an_expected_revision_that_did_not_hold_is_found() -> None:
    story = _kept(("a", b"1"), ("a", b"2"))
    story.set("a", b"3", expected=1)
    _assert_one(story.found(), "expected revision 1")


def test_an_expected_last_seq_that_did_not_hold_is_found() -> None:
    story = _appended(b"a")
    story.append(b"b").expected = 0
    _assert_one(story.found(), "expected last seq 0")


def test_a_stale_read_is_found() -> None:
    story = _kept(("a", b"1"), ("a", b"2"))
    story.get("a", (b"1", 1))
    _assert_one(story.found(), "stale", "get")


@pytest.mark.parametrize(
    ("action", "fields", "word"),
    [
        ("get", {"keys": (1,), "seen": {}}, "no 1"),
        ("get_all", {"seen": {1: (b"a", 1)}}, "no 2"),
        ("head", {"head_revision": 1}, "head"),
    ],
)
def test_a_read_that_misses_what_was_acknowledged_is_found(
    action: str, fields: dict[str, Any], word: str
) -> None:
    story = _appended(b"a", b"b")
    story.call(action, **fields)
    _assert_one(story.found(), "stale", word)


def test_a_read_that_misses_what_an_earlier_read_saw_is_found() -> None:
    story = _Story(_KV)
    story.call("set", Outcome.UNKNOWN, keys=("a",), values=(b"1",))
    story.rows["a"] = (b"1", 1)
    story.get("a", (b"1", 1))
    story.get("a", None)
    _assert_one(story.found(revision=1), "stale", "no 'a'")


def test_writes_out_of_real_time_order_are_found() -> None:
    story = _Story(_KV)
    story.call("set", keys=("a",), values=(b"1",), revisions=(2,))
    story.call("set", keys=("b",), values=(b"2",), revisions=(1,))
    found = story.found(revision=2, rows={"a": (b"1", 2), "b": (b"2", 1)})
    _assert_one(found, "stale", "set")


_A, _B, _C = ((number, _set(number, value)) for number, value in enumerate((b"a", b"b", b"c"), 1))
_DELETED = (4, ChangeOf(What.DELETE, (2,)))


def _followed(*changes: tuple[int, ChangeOf], **fields: Any) -> list[str]:
    """Judge a follower of three appends, of which the second is then deleted."""
    story = _appended(b"a", b"b", b"c")
    story.delete(2)
    story.follow(*changes, **{"start_seq": 1, "complete": True, **fields})
    return story.found()


def test_a_follower_may_miss_what_was_overwritten() -> None:
    assert _followed(_A, _B, _C, _DELETED) == []
    assert _followed(_A, _C, _DELETED) == []
    assert _followed(_C, _DELETED, start_seq=None, live_after=2) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ((_A, _B, _C), "never got delete"),
        ((_A, _B, _DELETED), "never got set 3"),
        ((_A, _B, _C, _C, _DELETED), "twice"),
        ((_A, _C, _B, _DELETED), "out of order"),
        ((_A, (2, _set(2, b"x")), _C, _DELETED), "two orders"),
    ],
)
def test_a_follower_that_was_told_something_else_is_found(
    changes: tuple[tuple[int, ChangeOf], ...], word: str
) -> None:
    _assert_one(_followed(*changes), "follower f", word)


def test_a_follower_that_is_told_history_twice_is_found() -> None:
    _assert_one(_followed(_A, _A, _C, live_after=4), "follower f", "twice")


def test_a_reset_follower_is_found() -> None:
    story = _appended(b"a")
    story.follow(complete=True).changes.append((ChangeKind.RESET, 1, None))
    _assert_one(story.found(), "was reset")


def test_a_follower_that_ends_with_another_state_is_found() -> None:
    story = _kept(("a.1", b"1"), ("b", b"2"))
    story.follow(prefix="a", complete=True, live_after=2)
    _assert_one(story.found(), "ends with 'a.1'")


def test_a_store_that_cannot_be_read_in_the_end_is_found() -> None:
    story = _appended(b"a")
    _assert_one(check(story.history), "could not be read")


# --- what only some histories can tell -----------------------------------------------------------
def _three(*, closed: bool = False) -> _Story:
    story = _appended(b"a", b"b", b"c")
    story.history.closed = closed
    return story


def test_a_last_seq_that_went_back_is_found() -> None:
    story = _three()
    story.delete(3)
    assert story.found() == []
    _assert_one(story.found(last_seq=2), "lost", "seq 3")


def test_rows_out_of_order_are_found() -> None:
    story = _three()
    story.rows = dict(reversed(story.rows.items()))
    _assert_one(story.found(), "out of order")


def test_an_unanswered_delete_excuses_only_what_it_may_have_deleted() -> None:
    story = _three()
    story.call("delete", Outcome.UNKNOWN, keys=(2,))
    a, _, c = story.rows.items()
    assert story.found() == []
    assert story.found(revision=4, rows=dict([a, c])) == []
    _assert_one(story.found(revision=4, rows=dict([a])), "lost", "set 3")
    # Without a revision of its own it did nothing.
    _assert_one(story.found(rows=dict([a, c])), "lost", "set 2")


def test_two_acks_of_one_delete_are_found() -> None:
    story = _three()
    story.delete(2)
    story.call("delete", keys=(2,), count=1, revisions=(4,))
    _assert_one(story.found(), "two orders", "acknowledged to")


def test_a_delete_that_did_less_than_it_was_acknowledged_for_is_found() -> None:
    for told in ((1, 2), (2,)):
        story = _three()
        story.delete(1, 2, 7)
        story.follow((4, ChangeOf(What.DELETE, told)), live_after=3)
        assert any("two orders" in what for what in story.found()) is (told == (2,))


def test_a_trim_beyond_what_was_asked_for_is_found() -> None:
    for end in (1, 2, 3):
        story = _three()
        story.trim(2)
        story.broadcast((4, ChangeOf(What.TRIM, end=end)))
        assert any("two orders" in what for what in story.found()) is (end == 3)


def test_a_delete_that_nobody_asked_for_is_found() -> None:
    story = _three(closed=True)
    story.broadcast((4, ChangeOf(What.DELETE, (2,))), (5, ChangeOf(What.TRIM, end=1)))
    rows = {3: story.rows[3]}
    refused = story.call("delete", Outcome.REFUSED, keys=(2,))
    assert len([what for what in story.found(revision=5, rows=rows) if "made up" in what]) == 2
    refused.outcome = Outcome.UNKNOWN
    story.call("delete_all", Outcome.UNKNOWN, end=2)
    assert story.found(revision=5, rows=rows) == []
    # Each did one thing.
    story.broadcast((6, ChangeOf(What.DELETE, (2,))))
    _assert_one(story.found(revision=6, rows=rows), "made up", "delete [2]")


def test_revisions_that_nobody_can_have_made_are_found() -> None:
    story = _three(closed=True)
    story.call("append_many", Outcome.UNKNOWN, values=(b"d", b"e"))
    assert story.found(revision=5, last_seq=3) == []
    _assert_one(story.found(revision=6), "made up", "3 revisions")


def test_a_seq_that_was_left_out_is_found_unless_an_unanswered_append_may_have_it() -> None:
    for revision in (4, 5):
        story = _three()
        story.call("append", Outcome.UNKNOWN, values=(b"d",))
        story.call("delete", Outcome.UNKNOWN, keys=(4,))
        story.call("append", values=(b"e",), revisions=(revision,), seqs=(5,))
        rows = {**story.rows, 5: (b"e", revision)}
        found = story.found(revision=revision + 1, last_seq=5, rows=rows)
        assert any("not dense: set 5" in what for what in found) is (revision == 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"revisions": (1, 3), "seqs": (1, 2)},
        {"revisions": (1, 2), "seqs": (1, 3)},
        {"revisions": (1,), "seqs": (1,)},
    ],
)
def test_an_acknowledged_batch_is_contiguous(fields: dict[str, Any]) -> None:
    story = _Story()
    story.call("append_many", values=(b"a", b"b"), **fields)
    _assert_one(story.found(revision=3, last_seq=3), "torn")


def test_a_batch_of_keys_is_stored_whole() -> None:
    story = _Story(_KV)
    story.call("set", Outcome.UNKNOWN, keys=("a", "b"), values=(b"1", b"2"))
    rows = {"a": (b"1", 1), "b": (b"2", 2)}
    assert story.found(revision=2, rows=rows) == []
    _assert_one(story.found(revision=2, rows={"a": (b"1", 1)}), "lost", "the batch of c")
    _assert_one(story.found(revision=2, rows={"a": (b"2", 1), "b": (b"1", 2)}), "misplaced")


def test_what_went_on_at_once_may_have_any_order() -> None:
    story = _Story(_KV)
    story.call("set", keys=("a",), values=(b"1",), revisions=(2,)).returned = 99
    story.call("set", keys=("b",), values=(b"2",), revisions=(1,))
    assert story.found(revision=2, rows={"a": (b"1", 2), "b": (b"2", 1)}) == []


def test_a_delete_on_the_condition_of_another_revision_is_found() -> None:
    for expected in (0, 1, 2, 3, 9):
        story = _kept(("a", b"1"), ("a", b"2"), ("b", b"3"))
        story.delete("a", expected=expected)
        assert any("expected revision" in what for what in story.found()) is (expected != 2)


def test_a_read_of_what_was_not_written_yet_is_found() -> None:
    story = _Story()
    story.rows[1] = (b"a", 1)
    story.get(1, (b"a", 1))
    story.append(b"a")
    _assert_one(story.found(), "too early", "get")


def test_a_follower_that_may_be_reset_begins_anew() -> None:
    for again in ((_A, _B, _C), (_A, _B)):
        story = _three()
        story.history.may_reset = True
        follow = story.follow(_A, (3, None), *again, start_seq=1, complete=True)
        follow.changes[1] = (ChangeKind.RESET, 3, None)
        assert bool(story.found()) is (len(again) < 3)


def test_ready_stands_between_state_and_what_is_live() -> None:
    for ready in (1, 2, 3):
        story = _three()
        follow = story.follow(_A, _B, _C, start_seq=1, live_after=2, complete=True)
        follow.changes.insert(ready, (ChangeKind.READY, 2, None))
        assert any("ready" in what for what in story.found()) is (ready != 2)


# --- limits and ttl ------------------------------------------------------------------------------
def test_a_full_stream_lets_its_first_message_go_and_no_other() -> None:
    for gone in (1, 2):
        story = _three()
        story.history.max_messages[_STREAM] = 2
        del story.rows[gone]
        assert any("lost" in what for what in story.found()) is (gone == 2)


def test_only_what_was_written_with_a_ttl_may_expire() -> None:
    for expires in (True, False):
        story = _Story(_KV)
        story.set("a", b"1", expires=expires)
        del story.rows["a"]
        assert any("lost" in what for what in story.found()) is not expires


def _stored_story() -> _Story:
    story = _Story()
    for value in (b"a", b"b"):
        story.append(value).stored = True
    story.set(1, b"A")
    return story


def test_a_rebuilt_store_may_lack_what_was_not_stored() -> None:
    story = _stored_story()
    rebuilt = Final(2, 2, {1: (b"a", 1), 2: (b"b", 2)})
    story.history.rebuilt[_STREAM] = rebuilt
    assert story.found() == []


@pytest.mark.parametrize(
    ("rebuilt", "word"),
    [
        (Final(1, 1, {1: (b"a", 1)}), "not stored"),
        (Final(0, 0, {}), "not stored"),
        (Final(2, 2, {1: (b"a", 1)}), "rebuilt with 2 as None"),
        (Final(2, 2, {1: (b"x", 1), 2: (b"b", 2)}), "rebuilt with 1 at 1"),
        (Final(3, 2, {1: (b"a", 1), 2: (b"b", 2)}), "rebuilt with 1 as of 1"),
        (Final(9, 2, {1: (b"A", 3), 2: (b"b", 2)}), "beyond the truth"),
    ],
)
def test_a_rebuilt_store_that_is_wrong_is_found(rebuilt: Final, word: str) -> None:
    story = _stored_story()
    story.history.rebuilt[_STREAM] = rebuilt
    _assert_one(story.found(), word)


def _transact(story: _Story, conditions: dict[Key, int], *writes: Operation) -> None:
    story.history.transactions.append(
        Transaction("c", story.store, conditions, list(writes), Outcome.OK)
    )


def test_a_right_transaction_is_right() -> None:
    story = _kept(("a", b"1"))
    _transact(story, {"a": 1, "b": 0}, story.set("a", b"2"), story.set("b", b"3"))
    _transact(story, {"a": 2, "b": 3})
    assert story.found() == []


@pytest.mark.parametrize("read", [{"a": 1}, {"a": 1, "b": 3}])
def test_a_transaction_on_what_had_changed_or_never_was_at_one_time_is_found(
    read: dict[Key, int],
) -> None:
    story = _kept(("a", b"1"), ("a", b"2"))
    last = story.set("b", b"3")
    _transact(story, read, *([last] if "b" not in read else []))
    _assert_one(story.found(), "not serialisable", "'a'")


def test_a_transaction_that_happened_in_part_is_found() -> None:
    story = _Story(_KV)
    first = story.set("a", b"1")
    story.set("c", b"other")
    lost = story.call("set", Outcome.UNKNOWN, keys=("b",), values=(b"2",))
    _transact(story, {}, first, lost)
    _assert_one(story.found(), "torn", "b'2'")


def test_a_message_that_nobody_got_is_found() -> None:
    story = _Story()
    story.history.queue = _STREAM
    story.append(b"work")
    _assert_one(story.found(), "queue: seq 1: never delivered")
