"""Consumers: the rules one by one, then random histories of workers, time, deletes, failing ticks
and new owners against a model that only remembers who may have what."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.client.following.queue_feed import _News
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CONSUMER_ACK,
    CHANGE_CONSUMER_FETCH,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.consumers import ConsumerConfig, ConsumerInfo
from holdfast.protocol.frames import VERB_ACK, VERB_IN_PROGRESS, VERB_NAK, VERB_TERM
from holdfast.protocol.limits import MAX_CONSUMERS
from holdfast.protocol.names import StoreKind
from tests.support.effort import examples
from tests.support.ticked_store import Bench

WAIT_MS = 1000


class Owner(Bench):
    """A stream on a real file, its log, and the owners that follow each other."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, StoreKind.STREAM)

    def run(self, *operation: Any) -> Any:
        """Execute one operation in the running tick, or in a new one."""
        return self.execute(list(operation))[0]

    def consumer(self, start_seq: int = 1, name: str = "workers", **config: Any) -> int:
        return int(self.do(frames.CONSUMER_CONFIGURE, name, config, start_seq)[0])

    def fetch(self, consumer: int, limit: int = 10) -> Any:
        return self.do(frames.CONSUMER_FETCH, consumer, limit)[0]

    def say(self, consumer: int, *said: list[int]) -> Any:
        return self.do(frames.CONSUMER_ACK, consumer, list(said))[0]

    def info(self, name: str | None = None) -> list[ConsumerInfo]:
        found = self.read(frames.CONSUMERS, name)
        return [ConsumerInfo.from_wire(each) for each in frames.unpack(frames.pack(found))]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with closing(Owner(tmp_path)) as owner:
        yield owner


def append(owner: Owner, count: int) -> None:
    for _ in range(count):
        owner.do(frames.APPEND, b"job")


def test_the_lag_of_a_store_that_was_opened_again_is_known_before_anybody_uses_its_consumers(
    owner: Owner,
) -> None:
    assert owner.store.consumer_lags() == []
    append(owner, 5)
    workers = owner.consumer()
    owner.consumer(start_seq=5, name="late")
    owner.fetch(workers, 3)
    owner.say(workers, [VERB_ACK, 1, 1])
    assert sorted(owner.store.consumer_lags()) == [1, 4]
    owner.reopen()
    assert sorted(owner.store.consumer_lags()) == [1, 4]
    append(owner, 2)
    assert sorted(owner.store.consumer_lags()) == [3, 6]
    owner.fail_over()
    assert sorted(owner.store.consumer_lags()) == [3, 6]
    # Used again, and taken back: neither makes it forget.
    owner.tick([frames.CONSUMER_FETCH, workers, 9], commit=False)
    assert sorted(owner.store.consumer_lags()) == [3, 6]
    owner.do(frames.CONSUMER_DELETE, "late")
    assert owner.store.consumer_lags() == [6]


def test_two_workers_never_have_the_same_message_and_an_acknowledged_one_is_done_with(
    owner: Owner,
) -> None:
    append(owner, 5)
    workers = owner.consumer(ack_wait_seconds=1)
    assert owner.fetch(workers, 2) == [[1, 1], [2, 1]]
    assert owner.fetch(workers, 9) == [[3, 1], [4, 1], [5, 1]]
    assert owner.fetch(workers) == []
    revision = owner.store.revision
    assert owner.fetch(workers) == []
    assert owner.store.revision == revision, "an empty fetch is no change"
    assert owner.say(workers, [VERB_ACK, 1, 1], [VERB_ACK, 3, 1]) == [True, True]
    assert owner.say(workers, [VERB_ACK, 1, 1]) == [False]
    owner.time += WAIT_MS
    assert owner.fetch(workers) == [[2, 2], [4, 2], [5, 2]]
    [info] = owner.info()
    assert (info.ack_floor, info.ack_pending_count, info.next_seq, info.lag) == (1, 3, 6, 0)
    assert (info.delivered_count, info.redelivered_count, info.acked_count) == (5, 3, 2)


def test_a_late_ack_counts_and_other_late_words_do_not(owner: Owner) -> None:
    append(owner, 3)
    workers = owner.consumer(ack_wait_seconds=1)
    owner.fetch(workers)
    owner.time += WAIT_MS
    assert owner.fetch(workers) == [[1, 2], [2, 2], [3, 2]]
    late = [[VERB_NAK, 1, 1], [VERB_TERM, 1, 1], [VERB_IN_PROGRESS, 1, 1], [VERB_ACK, 1, 1]]
    assert owner.say(workers, *late) == [False, False, False, True]
    assert owner.say(workers, [VERB_TERM, 2, 2], [VERB_ACK, 2, 2]) == [True, False]
    owner.time += 600
    assert owner.say(workers, [VERB_IN_PROGRESS, 3, 2]) == [True]
    owner.time += 600
    found, _, retry_after_ms, blocked = owner.do(frames.CONSUMER_FETCH, workers, 5)
    assert (found, retry_after_ms, blocked) == ([], 400, False)
    assert owner.say(workers, [VERB_NAK, 3, 2, 100]) == [True]
    assert owner.fetch(workers) == []
    owner.time += 100
    assert owner.fetch(workers) == [[3, 3]]
    assert owner.say(workers, [VERB_NAK, 3, 3]) == [True]
    assert owner.fetch(workers) == [[3, 4]]


def test_a_message_that_fails_too_often_is_given_up_and_counted(owner: Owner) -> None:
    append(owner, 2)
    workers = owner.consumer(max_deliveries=2)
    for count in (1, 2):
        assert owner.fetch(workers) == [[1, count], [2, count]]
        assert owner.say(workers, [VERB_NAK, 1, count], [VERB_NAK, 2, count]) == [True, True]
    assert owner.fetch(workers) == []
    [info] = owner.info()
    assert (info.given_up_count, info.ack_pending_count, info.ack_floor) == (2, 0, 2)


def test_no_more_is_delivered_than_may_be_pending(owner: Owner) -> None:
    append(owner, 5)
    workers = owner.consumer(max_ack_pending=2)
    assert owner.do(frames.CONSUMER_FETCH, workers, 5)[0] == [[1, 1], [2, 1]]
    assert owner.do(frames.CONSUMER_FETCH, workers, 5)[3] is True, "it is told why"
    owner.say(workers, [VERB_ACK, 2, 1])
    assert owner.fetch(workers) == [[3, 1]]


def test_removed_messages_are_passed_over(owner: Owner) -> None:
    append(owner, 6)
    workers = owner.consumer(ack_wait_seconds=1)
    assert owner.fetch(workers, 3) == [[1, 1], [2, 1], [3, 1]]
    owner.materialise()
    owner.do(frames.TRIM, 2)
    owner.do(frames.DELETE_MESSAGES, [4, 6])
    owner.do(frames.SET_MESSAGE, 5, b"replaced")
    append(owner, 1)
    assert owner.fetch(workers) == [[5, 1], [7, 1]]
    owner.time += WAIT_MS
    assert owner.fetch(workers) == [[3, 2], [5, 2], [7, 2]]
    [info] = owner.info()
    assert (info.ack_floor, info.ack_pending_count) == (2, 3)
    found, *_ = owner.read(frames.GET_SEQS, [3, 4, 5])
    assert [[row[0], row[3]] for row in found] == [[3, b"job"], [5, b"replaced"]]


def test_consumers_know_nothing_of_each_other_and_a_deleted_one_is_forgotten(owner: Owner) -> None:
    append(owner, 3)
    first, second = owner.consumer(name="a"), owner.consumer(3, name="b")
    assert owner.consumer(2, name="a") == first
    assert owner.fetch(first, 1) == [[1, 1]]
    assert owner.fetch(second) == [[3, 1]]
    assert [info.name for info in owner.info()] == ["a", "b"]
    assert owner.do(frames.CONSUMER_DELETE, "a")[0] == 1
    assert owner.do(frames.CONSUMER_DELETE, "a")[0] == 0
    again = owner.consumer(name="a")
    assert again != first
    assert owner.do(frames.CONSUMER_FETCH, first, 1)[0] == "not_found"
    assert owner.do(frames.CONSUMER_ACK, first, [[VERB_ACK, 1, 1]])[0] == "not_found"
    assert owner.fetch(again) == [[1, 1], [2, 1], [3, 1]]
    assert [info.id for info in owner.info("a")] == [again]
    for number in range(MAX_CONSUMERS - 2):
        owner.consumer(name=f"c{number}")
    assert owner.do(frames.CONSUMER_CONFIGURE, "one-more", {})[0] == "limit_exceeded"


@pytest.mark.parametrize(
    "operation",
    [
        [frames.CONSUMER_CONFIGURE, "a.b", {}],
        [frames.CONSUMER_CONFIGURE, "workers", {"max_ack_pending": 0}],
        [frames.CONSUMER_CONFIGURE, "workers", {"what": 1}],
        [frames.CONSUMER_CONFIGURE, "workers", []],
        [frames.CONSUMER_CONFIGURE, "other", {}, 0],
        [frames.CONSUMER_FETCH, "workers", 1],
        [frames.CONSUMER_FETCH, 2, 0],
        [frames.CONSUMER_FETCH, 2],
        [frames.CONSUMER_FETCH, 99, 1],
        [frames.CONSUMER_ACK, 2, []],
        [frames.CONSUMER_ACK, 2, [[VERB_ACK, 1]]],
        [frames.CONSUMER_ACK, 2, [[9, 1, 1]]],
        [frames.CONSUMER_ACK, 2, [[VERB_ACK, 1.0, 1]]],
        [frames.CONSUMER_ACK, 2, [[VERB_ACK, 1, 1], 7]],
        [frames.CONSUMER_ACK, 2, [[VERB_ACK, 1, 1], [VERB_NAK, 1, 1, -1], [VERB_NAK, 1]]],
        [frames.CONSUMER_DELETE],
        [frames.BATCH, [[frames.CONSUMER_DELETE, "workers"]]],
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    owner: Owner, operation: list[Any]
) -> None:
    append(owner, 1)
    assert owner.consumer() == 2
    owner.fetch(2)
    revision = owner.store.revision
    assert type(owner.do(*operation)[0]) is str
    assert owner.store.revision == revision
    assert owner.say(2, [VERB_ACK, 1, 1]) == [True]


def test_followers_and_their_change_log_hear_nothing_of_consumers(owner: Owner) -> None:
    append(owner, 2)
    workers = owner.consumer()
    owner.fetch(workers)
    owner.say(workers, [VERB_ACK, 1, 1], [VERB_NAK, 2, 1])
    owner.do(frames.DELETE_MESSAGES, [1])
    page = owner.read(frames.CHANGES, 2, 2)
    assert page == [[(6, 1000, [CHANGE_DELETE_MESSAGES, [1]])], 6, 2, 6, False]


def test_a_waiting_worker_asks_again_when_there_may_be_something_and_not_before() -> None:
    now = 50.0
    news = _News(lambda: now)
    news.consumer_id = 7

    def hears(*changes: list[Any]) -> tuple[bool, float]:
        news.behind, news.due_at = False, float("inf")
        news.broadcast(frames.ChangeBatch(1, 10, 1000, list(changes)))
        return news.behind, news.due_at

    assert hears([CHANGE_SET_MESSAGE, 4, b""])[0]
    assert hears([CHANGE_CONSUMER_FETCH, 7, 5, 31_000, [4], [], [], []]) == (False, 80.0)
    assert hears([CHANGE_CONSUMER_FETCH, 8, 5, 31_000, [4], [], [], []])[1] == float("inf")
    assert hears([CHANGE_CONSUMER_ACK, 7, [4], [], []]) == (False, float("inf"))
    assert hears([CHANGE_CONSUMER_ACK, 7, [], [], [[4, 1000, 1]]]) == (False, now)
    news.blocked = True
    assert hears([CHANGE_CONSUMER_ACK, 7, [4], [], []])[0], "there is room again"
    news.behind = False
    news.head(11)
    assert not news.behind
    news.head(12)
    assert news.behind, "a broadcast was lost"


# Random histories
@dataclass
class Model:
    """What workers may be told: of each message that is there, if it is new, with somebody, or
    done."""

    there: set[int] = field(default_factory=set)
    last_seq: int = 0
    next_seq: int = 1
    #: seq to (deadline, delivery_count).
    out: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class WorkQueue(RuleBasedStateMachine):
    """Workers of one consumer while messages come and go, ticks fail and owners are killed."""

    @initialize(max_deliveries=st.none() | st.integers(1, 3), max_ack_pending=st.integers(1, 6))
    def begin(self, max_deliveries: int | None, max_ack_pending: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.owner = Owner(self.directory)
        self.config = ConsumerConfig(WAIT_MS / 1000, max_deliveries, max_ack_pending)
        self.consumer = self.owner.consumer(**self.config.to_wire())
        self.model = Model()
        self.committed = copy.deepcopy(self.model)

    def teardown(self) -> None:
        if hasattr(self, "owner"):
            self.owner.close()
            shutil.rmtree(self.directory)

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.owner.run(frames.APPEND, b"x")
            self.model.last_seq += 1
            self.model.there.add(self.model.last_seq)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model.last_seq:
            seqs = st.integers(1, self.model.last_seq)
            if data.draw(st.integers(0, 3)):
                gone = data.draw(st.lists(seqs, min_size=1, max_size=3))
                self.owner.run(frames.DELETE_MESSAGES, gone)
                self.model.there -= set(gone)
            else:
                end_seq = data.draw(seqs)
                self.owner.run(frames.TRIM, end_seq)
                self.model.there = {seq for seq in self.model.there if seq > end_seq}

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        if self.model.there:
            seq = data.draw(st.sampled_from(sorted(self.model.there)))
            self.owner.run(frames.SET_MESSAGE, seq, b"y")

    @rule(passed=st.sampled_from([1, 300, WAIT_MS]))
    def let_time_pass(self, passed: int) -> None:
        self.owner.time += passed

    @rule(limit=st.integers(1, 5))
    def fetch(self, limit: int) -> None:
        model, now = self.model, self.owner.time
        answer = self.owner.run(frames.CONSUMER_FETCH, self.consumer, limit)
        found, _, retry_after_ms, _ = answer
        assert len(found) <= limit
        most = self.config.max_deliveries or 99
        for seq, count in found:
            assert seq in model.there, "it was removed"
            assert seq not in model.done, "it was done with"
            if seq in model.out:
                deadline, before = model.out[seq]
                assert deadline <= now, "another worker has it"
                assert count == before + 1 <= most
            else:
                assert seq >= model.next_seq
                assert count == 1
                model.next_seq = seq + 1
            model.out[seq] = (now + WAIT_MS, count)
        pending = self.owner.store.consumers.by_id[self.consumer].pending
        for seq in model.out.keys() - pending.keys():
            deadline, count = model.out.pop(seq)
            assert deadline <= now
            assert seq not in model.there or count >= most
            model.done.add(seq)
        assert pending == model.out
        assert len(pending) <= self.config.max_ack_pending
        if len(found) < limit:
            assert all(deadline > now for deadline, _ in pending.values())
            if pending:
                # Never too late; early if what was due first has been acknowledged.
                assert 1 <= retry_after_ms <= min(at for at, _ in pending.values()) - now
            elif model.next_seq == 1:
                assert retry_after_ms is None
            if len(pending) < self.config.max_ack_pending:
                assert not {seq for seq in model.there if seq >= model.next_seq}

    @rule(data=st.data())
    def say(self, data: st.DataObject) -> None:
        model, now = self.model, self.owner.time
        if not model.last_seq:
            return
        said = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from([VERB_ACK, VERB_ACK, VERB_NAK, VERB_TERM, VERB_IN_PROGRESS]),
                    st.sampled_from(sorted(model.out) or [1]) | st.integers(1, model.last_seq),
                    st.integers(1, 3),
                    st.sampled_from([0, 200]),
                ),
                min_size=1,
                max_size=4,
            )
        )
        counted, _ = self.owner.run(frames.CONSUMER_ACK, self.consumer, said)
        for (verb, seq, count, delay_ms), counts in zip(said, counted, strict=True):
            current = seq in model.out and (verb == VERB_ACK or model.out[seq][1] == count)
            assert counts == current
            if not current:
                continue
            if verb in (VERB_ACK, VERB_TERM):
                del model.out[seq]
                model.done.add(seq)
            else:
                later = delay_ms if verb == VERB_NAK else WAIT_MS
                model.out[seq] = (now + later, model.out[seq][1])

    @precondition(lambda self: self.owner.store.mark is not None)
    @rule()
    def commit(self) -> None:
        self.owner.commit()
        self.committed = copy.deepcopy(self.model)

    @precondition(lambda self: self.owner.store.mark is not None)
    @rule()
    def fail(self) -> None:
        self.owner.store.fail_tick()
        self.model = copy.deepcopy(self.committed)

    @rule()
    def materialise(self) -> None:
        self.owner.materialise()

    @rule()
    def fail_over(self) -> None:
        if self.owner.store.mark is not None:
            self.fail()
        before = self.owner.store.consumers.by_id
        self.owner.fail_over()
        after = self.owner.store.consumers.by_id
        assert [(each.info(9), each.pending) for each in before.values()] == (
            [(each.info(9), each.pending) for each in after.values()]
        )

    @rule()
    def work_it_all_off(self) -> None:
        for _ in range(200):
            self.owner.time += WAIT_MS
            self.fetch(5)
            if not self.model.out:
                break
            said = [[VERB_ACK, seq, count] for seq, (_, count) in self.model.out.items()]
            assert all(self.owner.run(frames.CONSUMER_ACK, self.consumer, said)[0])
            self.model.done.update(self.model.out)
            self.model.out.clear()
        assert self.model.there <= self.model.done, "a message was never delivered"


TestWorkQueue = WorkQueue.TestCase
TestWorkQueue.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
