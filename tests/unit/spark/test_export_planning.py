"""What an export plans to read: everything new, once, and nothing that was never acknowledged."""

from __future__ import annotations

import dataclasses
import pickle

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.framed_images.frame_table import TableMark
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry, Tombstone
from holdfast.spark.rows.planning import (
    Coverage,
    DropWork,
    ExportPlan,
    LogRange,
    LogWork,
    SnapshotWork,
    StoreGroup,
    Task,
    plan,
    plans,
)
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.watermarks import Watermark

STORE = StoreId("acme", StoreKind.STREAM, "notes")
OTHER = StoreId("acme", StoreKind.KV, "settings")


def version(epoch: int, revision: int, size_bytes: int = 1000) -> SnapshotVersion:
    return SnapshotVersion(
        key=f"snapshots/{epoch}-{revision}",
        offset=0,
        length=size_bytes // 3,
        sha256="00",
        image_bytes=size_bytes,
        epoch=epoch,
        revision=revision,
        last_seq=revision,
        count=revision,
        bytes=size_bytes,
        time=1,
        taken=2,
    )


def coverage(key: str, epoch: int, previous: int, revision: int) -> Coverage:
    return Coverage(key, 1000, epoch, previous, revision)


def planned(
    entry: StoreEntry | None, covered: list[Coverage], since: Watermark | None, cores: int = 2
) -> ExportPlan:
    entries = [] if entry is None else [(STORE, entry)]
    marks = {} if since is None else {STORE: since}
    return plan(entries, {STORE: covered} if covered else {}, marks, cores)


def snapshots_of(found: ExportPlan) -> list[SnapshotWork | DropWork]:
    return [work for task in found.tasks for work in task.stores]


def ranges_of(found: ExportPlan) -> list[LogRange]:
    return [one for task in found.tasks for work in task.logs for one in work.ranges.get(STORE, ())]


def test_a_store_that_has_nothing_new_is_not_read() -> None:
    entry = StoreEntry((version(2, 10),))
    assert planned(entry, [], Watermark(2, 10)).tasks == ()
    assert planned(entry, [coverage("a", 2, 5, 10)], Watermark(2, 10)).tasks == ()


def test_the_log_is_preferred_where_it_goes_on_from_the_watermark() -> None:
    entry = StoreEntry((version(1, 10),))
    found = planned(entry, [coverage("a", 1, 4, 8), coverage("b", 1, 8, 12)], Watermark(1, 6))
    assert snapshots_of(found) == []
    assert ranges_of(found) == [
        LogRange(1, 6, 8, lacks_chain=True), LogRange(1, 8, 12, lacks_chain=True),
    ]  # fmt: skip


def test_the_chain_of_a_watermark_is_that_before_the_first_range() -> None:
    mark = Watermark(1, 6, chain=b"c" * 32)
    found = planned(None, [coverage("a", 1, 4, 8), coverage("b", 1, 8, 12)], mark)
    assert ranges_of(found) == [LogRange(1, 6, 8, chain=b"c" * 32), LogRange(1, 8, 12)]


def test_where_the_log_has_a_gap_the_snapshot_is_read_and_then_the_log() -> None:
    entry = StoreEntry((version(1, 10),))
    found = planned(entry, [coverage("a", 1, 8, 9), coverage("b", 1, 9, 12)], Watermark(1, 6))
    [work] = snapshots_of(found)
    assert isinstance(work, SnapshotWork) and work.version.revision == 10
    assert ranges_of(found) == [LogRange(1, 10, 12)]
    assert found.stacked == {STORE}


def test_a_log_that_begins_beyond_what_is_known_is_not_read() -> None:
    assert planned(None, [coverage("a", 1, 3, 5)], None).tasks == ()


def test_a_record_counts_up_to_where_the_next_epoch_begins() -> None:
    covered = [coverage("a", 1, 0, 5), coverage("b", 2, 3, 6)]
    assert ranges_of(planned(None, covered, None)) == [LogRange(1, 0, 3), LogRange(2, 3, 6)]


def test_an_owner_that_began_below_what_the_table_has_is_a_matter_for_a_snapshot() -> None:
    covered = [coverage("b", 2, 3, 6)]
    assert planned(None, covered, Watermark(1, 5)).tasks == ()
    found = planned(StoreEntry((version(2, 6),)), covered, Watermark(1, 5))
    assert len(snapshots_of(found)) == 1 and ranges_of(found) == []


def test_a_deleted_store_is_dropped_once() -> None:
    entry = StoreEntry(deleted=Tombstone(3, 1000, 10))
    assert planned(entry, [], None).tasks == ()
    [work] = snapshots_of(planned(entry, [], Watermark(2, 9)))
    assert isinstance(work, DropWork)
    assert planned(entry, [], Watermark(3, 10, dropped=True)).tasks == ()


def test_another_store_of_a_dropped_ones_name_is_read_from_its_beginning() -> None:
    dropped = Watermark(3, 10, dropped=True)
    covered = [coverage("old", 3, 8, 11), coverage("new", 4, 10, 12)]
    assert ranges_of(planned(None, covered, dropped)) == [LogRange(4, 10, 12, lacks_chain=True)]
    [work] = snapshots_of(planned(StoreEntry((version(4, 12),)), [], dropped))
    assert isinstance(work, SnapshotWork) and work.since is None


def test_a_large_store_is_cut_and_small_ones_share_a_task() -> None:
    small = StoreEntry((version(1, 10),))
    large = StoreEntry((version(1, 10, 400 * MIB),))
    names = [StoreId("acme", StoreKind.STREAM, f"s{number}") for number in range(50)]
    found = plan([(OTHER, large), *((name, small) for name in names)], {}, {}, 2)
    parts = [task for task in found.tasks if task.is_part]
    assert len(parts) > 4
    assert {len(task.stores) for task in parts} == {1}
    assert len(found.tasks) - len(parts) == 1
    assert sum(len(task.stores) for task in found.tasks if not task.is_part) == 50


def test_every_core_has_as_many_tasks_of_small_stores_and_as_much_in_each() -> None:
    entries = [
        (StoreId("acme", StoreKind.STREAM, f"s{number:04}"), StoreEntry((version(1, 10, 2 * MIB),)))
        for number in range(100)
    ]
    for cores, expected in ((1, 3), (2, 4), (3, 3), (16, 4)):
        tasks = plan(entries, {}, {}, cores).tasks
        sizes = [len(task.stores) for task in tasks]
        assert len(sizes) == expected and max(sizes) - min(sizes) <= 1


def test_a_task_arrives_as_it_was_sent() -> None:
    drop = DropWork(OTHER, Tombstone(3, 1000, 10), Watermark(2, 9))
    framed = dataclasses.replace(version(1, 5), frames=TableMark(1, 7, "ab"))
    works = (
        SnapshotWork(STORE, framed, Watermark(1, 2, chain=b"x"), 1, 3),
        SnapshotWork(STORE, version(2, 6), None),
        drop,
    )
    task = Task(works, (LogWork("log", 5, {STORE: [LogRange(1, 2, 3)]}),))
    assert pickle.loads(pickle.dumps(task)) == task


def test_many_stores_make_several_plans_and_logs_are_read_with_the_last() -> None:
    names = [StoreId("acme", StoreKind.STREAM, f"s{number}") for number in range(7)]
    groups = [
        StoreGroup(
            [(name, StoreEntry((version(1, 10),))) for name in names[first : first + 2]],
            {names[first]: [coverage("log", 1, 10, 12)]},
            {names[6]: Watermark(1, 10)},
        )
        for first in range(0, 7, 2)
    ]
    found = list(plans(groups, 2, 3))
    assert [len(snapshots_of(each)) for each in found] == [3, 3, 0]
    assert [each.is_last for each in found] == [False, False, True]
    assert {work.store for each in found for work in snapshots_of(each)} == {*names[:6]}
    assert found[-1].stacked == {names[0], names[2], names[4]}
    [log] = [log for each in found for task in each.tasks for log in task.logs]
    whole, marked = LogRange(1, 10, 12), LogRange(1, 10, 12, lacks_chain=True)
    assert [*log.ranges.values()] == [[whole], [whole], [whole], [marked]]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.integers(0, 30),
    st.sets(st.integers(0, 11)),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_what_is_read_follows_the_watermark_without_gap_or_overlap(
    lengths: list[int], since: int, retired: set[int], snapshot: int | None
) -> None:
    covered, revision = [], 0
    for number, length in enumerate(lengths):
        if number not in retired:
            covered.append(coverage(str(number), 1, revision, revision + length))
        revision += length
    since = min(since, revision)
    entry = None if snapshot is None else StoreEntry((version(1, min(snapshot, revision)),))
    found = planned(entry, covered, Watermark(1, since) if since else None)
    position = since
    for work in snapshots_of(found):
        assert isinstance(work, SnapshotWork) and work.version.revision > position
        position = work.version.revision
    for one in sorted(ranges_of(found)):
        assert one.after == position < one.upto
        position = one.upto


def test_numbers_of_runs_grow_and_differ() -> None:
    first = watermarks.next_version(None)
    second, rival = watermarks.next_version(first), watermarks.next_version(first)
    assert [watermarks.run_of(each) for each in (None, first, second, rival)] == [0, 1, 2, 2]
    assert second != rival
