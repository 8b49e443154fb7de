"""Which changes go to the bucket's log, and when an answer that promises `stored` may leave."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.persist.bucket_log.stored import StoredAnswer, StoredWrites
from holdfast.persist.recovery.takeover import plan
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord

A = StoreId("acme", 1, "a")
B = StoreId("acme", 1, "b")


def record(store: StoreId, revision: int, *, epoch: int = 1, value: bytes = b"v") -> LogRecord:
    change = [CHANGE_SET_MESSAGE, revision, value]
    payload = frames.encode_changes(epoch, revision - 1, 1000, [change])
    return LogRecord(store, epoch, revision - 1, revision, [payload], [])


def answer(store: StoreId, revision: int, *, epoch: int = 1) -> StoredAnswer:
    return StoredAnswer(store, epoch, revision, f"{store.name}{revision}", [0, 0, b""])


class Server:
    """One writes in it, and looks at what leaves and what is put."""

    def __init__(self, **options: Any) -> None:
        self.writes = StoredWrites(**options)
        self.tick = 0
        self.left: list[str] = []
        self.slots: list[list[LogRecord]] = []

    def write(self, *records: LogRecord, stored: tuple[StoreId, ...] = (A,)) -> None:
        self.tick += 1
        answers = [
            answer(each.store, each.revision, epoch=each.epoch)
            for each in records
            if each.store in stored
        ]
        self.writes.take(self.tick, records, answers)
        self.look()

    def retry(self, *answers: StoredAnswer) -> None:
        self.writes.take(self.tick, (), answers)
        self.look()

    def sync(self) -> None:
        self.writes.synced(self.tick)
        self.look()

    def store(self, *records: LogRecord, stored: tuple[StoreId, ...] = (A,)) -> None:
        """Write, sync and put."""
        self.write(*records, stored=stored)
        self.sync()
        self.put()

    def put(self) -> None:
        self.slots.append(list(self.writes.begin_slot()))
        self.writes.slot_committed()
        self.look()

    def snapshot(self, store: StoreId, revision: int, epoch: int = 1) -> None:
        self.writes.snapshotted(store, epoch, revision)
        self.look()

    def look(self) -> None:
        self.writes.validate()
        self.left += [each.reply for each in self.writes.released()]

    @property
    def put_revisions(self) -> list[tuple[str, int]]:
        return [(each.store.name, each.revision) for slot in self.slots for each in slot]


@pytest.fixture
def server() -> Server:
    return Server()


def test_stores_without_a_stored_write_never_reach_the_bucket(server: Server) -> None:
    server.write(record(B, 1))
    server.sync()
    assert not server.writes.follows
    server.store(record(A, 1), record(B, 2))
    assert server.put_revisions == [("a", 1)]


def test_an_answer_leaves_when_its_slot_is_committed_and_not_before(server: Server) -> None:
    server.write(record(A, 1))
    server.put()
    assert server.slots == [[]], "not synced yet, so not put"
    server.sync()
    server.writes.begin_slot()
    server.look()
    assert server.left == []
    server.writes.slot_committed()
    server.look()
    assert server.left == ["a1"]


def test_after_a_stored_write_changes_of_every_level_follow(server: Server) -> None:
    server.write(record(A, 1))
    server.write(record(A, 2), stored=())
    server.store(record(A, 3))
    assert server.put_revisions == [("a", 1), ("a", 2), ("a", 3)]
    assert server.left == ["a1", "a3"]


def test_a_store_with_a_past_needs_a_snapshot_before_anything_of_it_is_put(server: Server) -> None:
    server.store(record(A, 8))
    assert server.put_revisions == []
    assert server.writes.wanted_bases() == [(A, 1, 7)]
    assert server.writes.wanted_bases() == [], "asked for once"
    server.snapshot(A, 7)
    assert server.left == []
    server.put()
    assert server.put_revisions == [("a", 8)]
    assert server.left == ["a8"]


def test_a_snapshot_that_has_the_change_is_as_good_as_its_slot(server: Server) -> None:
    server.write(record(A, 8))
    server.sync()
    server.snapshot(A, 8)
    assert server.left == ["a8"]
    server.put()
    assert server.put_revisions == []


@pytest.mark.parametrize("epoch,revision", [(1, 6), (0, 9), (2, 9)])
def test_a_snapshot_that_is_older_or_of_another_epoch_is_no_base(
    server: Server, epoch: int, revision: int
) -> None:
    server.write(record(A, 8))
    server.sync()
    server.writes.wanted_bases()
    server.snapshot(A, revision, epoch)
    server.put()
    assert (server.left, server.put_revisions) == ([], [])
    if epoch == 1:
        assert server.writes.wanted_bases() == [(A, 1, 7)], "still wanted"


def test_held_changes_that_are_not_synced_when_the_snapshot_comes_wait_for_their_sync(
    server: Server,
) -> None:
    server.write(record(A, 8))
    server.sync()
    server.write(record(A, 9))
    server.snapshot(A, 8)
    server.put()
    assert server.put_revisions == []
    server.sync()
    server.put()
    assert server.put_revisions == [("a", 9)]
    assert server.left == ["a8", "a9"]


def test_a_retry_of_what_is_stored_is_answered_at_once(server: Server) -> None:
    server.store(record(A, 1))
    server.retry(answer(A, 1))
    assert server.left == ["a1", "a1"]


def test_a_retry_of_what_waits_waits_too(server: Server) -> None:
    server.write(record(A, 1))
    server.retry(answer(A, 1))
    assert server.left == []
    server.sync()
    server.put()
    assert server.left == ["a1", "a1"]


def test_a_retry_after_a_failover_waits_for_a_snapshot_by_the_new_owner(server: Server) -> None:
    server.retry(answer(A, 5, epoch=2))
    assert server.left == []
    assert server.writes.wanted_bases() == [(A, 2, 5)]
    server.snapshot(A, 5, epoch=2)
    assert server.left == ["a5"]


def test_a_new_epoch_begins_anew(server: Server) -> None:
    server.store(record(A, 1))
    server.store(record(A, 2, epoch=3))
    assert server.put_revisions == [("a", 1)]
    server.snapshot(A, 1, epoch=3)
    server.put()
    assert server.put_revisions == [("a", 1), ("a", 2)]
    assert server.left == ["a1", "a2"]


def test_a_change_that_was_missed_begins_anew(server: Server) -> None:
    server.write(record(A, 1))
    server.write(record(A, 3))
    assert server.writes.wanted_bases() == [(A, 1, 2)]


def test_one_store_that_waits_for_its_snapshot_holds_up_no_other(server: Server) -> None:
    server.store(record(A, 8), record(B, 1), stored=(A, B))
    assert server.left == ["b1"]


def test_while_the_bucket_is_away_stored_writes_are_bounded_and_others_go_on() -> None:
    server = Server(max_bytes=10_000)
    revision = 0
    while not server.writes.is_full:
        revision += 1
        server.write(record(A, revision, value=bytes(500)), stored=(A,) if revision < 5 else ())
        server.sync()
    assert server.left == []
    for _ in range(1000):
        revision += 1
        server.write(record(A, revision, value=bytes(500)), stored=())
        server.sync()
        assert server.writes.unstored_bytes < 25_000
    # What was dropped can only come back with a snapshot.
    assert server.writes.wanted_bases()[-1].store == A
    server.snapshot(A, revision)
    assert server.left == ["a1", "a2", "a3", "a4"]
    assert not server.writes.is_full


def test_a_store_nobody_waits_for_is_forgotten_when_too_much_waits() -> None:
    server = Server(max_bytes=10_000)
    server.store(record(A, 1))
    for revision in range(2, 100):
        server.write(record(A, revision, value=bytes(500)), stored=())
    assert server.writes.unstored_bytes < 25_000
    server.write(record(A, 100))
    assert server.writes.wanted_bases() == [(A, 1, 99)]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_what_left_can_be_rebuilt_from_snapshots_and_slots(seed: int) -> None:
    chance = random.Random(seed)
    server = Server(max_bytes=3_000)
    revisions = {A: chance.choice([0, 5]), B: chance.choice([0, 3])}
    epochs = {A: 1, B: 1}
    bases: dict[StoreId, tuple[int, int]] = {}
    promised: dict[StoreId, int] = {}
    synced = dict(revisions)

    for _ in range(300):
        match chance.randrange(8):
            case 0 | 1 | 2:
                records = []
                for store in (A, B):
                    if chance.random() < 0.6:
                        revisions[store] += 1
                        records.append(record(store, revisions[store], epoch=epochs[store]))
                stored = tuple(store for store in (A, B) if chance.random() < 0.4)
                if not server.writes.is_full:
                    server.write(*records, stored=stored)
                else:
                    server.write(*records, stored=())
            case 3 | 4:
                server.sync()
                synced = dict(revisions)
            case 5:
                server.put()
            case 6:
                store = chance.choice([A, B])
                if synced[store]:
                    bases[store] = (epochs[store], synced[store])
                    server.snapshot(store, synced[store], epochs[store])
            case _:
                if chance.random() < 0.1:
                    # The store went to another server and came back.
                    server.sync()
                    synced = dict(revisions)
                    epochs[chance.choice([A, B])] += 1
        for reply in server.left:
            store = A if reply[0] == "a" else B
            promised[store] = max(promised.get(store, 0), int(reply[1:]))
        server.left.clear()
        for store, revision in promised.items():
            epoch, found = bases.get(store, (0, 0))
            records = [each for slot in server.slots for each in slot if each.store == store]
            rebuilt = plan(store, records, file_epoch=epoch, file_revision=found)
            assert found + sum(len(batch.changes) for batch in rebuilt.batches) >= revision
