"""Which slots of the own log are still needed: until every store in them has a snapshot beyond."""

from __future__ import annotations

import random

from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord

A = StoreId("acme", 1, "a")
B = StoreId("acme", 1, "b")


def record(store: StoreId, revision: int, epoch: int = 1) -> LogRecord:
    return LogRecord(store, epoch, revision - 1, revision, [b"v"], [])


def test_without_stores_nothing_is_needed() -> None:
    index = SlotIndex()
    index.added(0, [], 100)
    assert (index.needless_below, index.count, index.size_bytes) == (1, 0, 0)


def test_a_slot_is_needed_until_every_store_in_it_has_a_snapshot_beyond() -> None:
    index = SlotIndex()
    index.added(1, [record(A, 1), record(B, 1)], 100)
    index.added(2, [record(A, 2)], 100)
    index.snapshotted(A, 1, 2)
    assert (index.needless_below, index.count, index.size_bytes) == (1, 2, 200)
    index.snapshotted(B, 1, 1)
    assert (index.needless_below, index.count, index.size_bytes) == (3, 0, 0)


def test_a_snapshot_in_the_middle_lets_only_the_older_slots_go() -> None:
    index = SlotIndex()
    for slot in range(1, 5):
        index.added(slot, [record(A, slot)], 100)
    index.snapshotted(A, 1, 2)
    assert index.needless_below == 3
    assert index.last(A) == (1, 4)
    index.snapshotted(A, 2, 1)
    assert index.needless_below == 5, "a later epoch began after all of it"
    assert index.last(A) is None


def test_who_holds_the_oldest_slots_is_told_first() -> None:
    index = SlotIndex()
    index.added(1, [record(B, 1)], 100)
    index.added(2, [record(A, 1), record(B, 2)], 100)
    assert index.oldest(1) == [B]
    assert set(index.oldest(9)) == {A, B}


def test_whatever_the_order_no_needed_slot_is_let_go() -> None:
    chance = random.Random(5)
    index = SlotIndex()
    stores = [StoreId("acme", 1, f"s{number}") for number in range(6)]
    revisions = dict.fromkeys(stores, 0)
    snapshots = dict.fromkeys(stores, 0)
    slots: dict[int, dict[StoreId, int]] = {}
    for slot in range(400):
        records = []
        for store in stores:
            if chance.random() < 0.3:
                revisions[store] += 1
                records.append(record(store, revisions[store]))
        index.added(slot, records, 10)
        slots[slot] = {each.store: each.revision for each in records}
        if chance.random() < 0.5:
            store = chance.choice(stores)
            snapshots[store] = chance.randint(snapshots[store], revisions[store])
            index.snapshotted(store, 1, snapshots[store])
        needed = [
            slot
            for slot, held in slots.items()
            if any(snapshots[store] < revision for store, revision in held.items())
        ]
        assert index.needless_below == min(needed, default=slot + 1)
