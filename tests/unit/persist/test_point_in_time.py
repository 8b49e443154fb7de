"""Point in time: which version to start from, what to apply, and what can be said of the result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.recovery.point_in_time import (
    Course,
    Point,
    RestoreTarget,
    course,
    not_reached,
)
from holdfast.protocol import frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry, Tombstone
from tests.support.snapshot_versions import snapshot_version

STORE = StoreId("acme", StoreKind.STREAM, "notes")


def version(revision: int, time: int, *, epoch: int = 1, taken: int = 0) -> SnapshotVersion:
    return snapshot_version(epoch, revision, time=time, taken=taken or time)


def entry(*versions: SnapshotVersion, deleted: Tombstone | None = None) -> StoreEntry:
    return StoreEntry(versions, deleted=deleted)


def record(previous: int, *times: int, epoch: int = 1) -> LogRecord:
    """A record of one change at each time."""
    payloads = [
        frames.encode_changes(epoch, previous + index, time, [[1, previous + index + 1, b"v"]])
        for index, time in enumerate(times)
    ]
    return LogRecord(STORE, epoch, previous, previous + len(times), payloads, [])


def found(entry: StoreEntry | None, *records: LogRecord, **target: int) -> Course:
    return course(STORE, entry, records, RestoreTarget(**target))


def test_a_revision_that_was_snapshotted_is_exact() -> None:
    there = found(entry(version(9, 90), version(5, 50)), revision=5)
    assert (there.revision, there.exact, len(there.batches)) == (5, True, 0)


def test_the_log_goes_on_from_the_newest_version_before() -> None:
    there = found(entry(version(5, 50)), record(5, 60, 70, 80), revision=7)
    assert (there.revision, there.time, there.exact) == (7, 70, True)
    assert [batch.previous_revision for batch in there.batches] == [5, 6]
    assert there.after == (8, 80)


def test_a_change_of_many_is_cut_where_the_revision_is() -> None:
    payload = frames.encode_changes(1, 0, 10, [[1, seq, b"v"] for seq in (1, 2, 3)])
    there = found(None, LogRecord(STORE, 1, 0, 3, [payload], []), revision=2)
    assert (there.revision, there.exact) == (2, True)
    assert len(there.batches[0].changes) == 2


def test_without_a_version_it_starts_from_the_store_s_beginning() -> None:
    there = found(None, record(0, 10, 20), revision=2)
    assert (there.version, there.beginning, there.revision, there.exact) == (None, 0, 2, True)


def test_a_revision_beyond_what_is_known_is_not_exact_and_the_nearest_ones_are_told() -> None:
    there = found(entry(version(9, 90), version(5, 50)), revision=7)
    assert (there.revision, there.exact, there.after) == (5, False, (9, 90))
    error = not_reached(STORE, RestoreTarget(revision=7), there)
    assert error.fields["before"] == [5, 50]
    assert error.fields["after"] == [9, 90]
    assert "revision 5" in str(error)
    assert "revision 9" in str(error)


def test_a_gap_in_the_log_ends_what_can_be_reached() -> None:
    there = found(entry(version(5, 50)), record(5, 60), record(8, 90), revision=9)
    assert (there.revision, there.exact) == (6, False)


def test_a_time_is_exact_if_the_next_change_is_known_and_later() -> None:
    there = found(entry(version(5, 50)), record(5, 60, 80), time=70)
    assert (there.revision, there.exact) == (6, True)


def test_a_time_is_not_exact_if_something_may_have_happened_before_it() -> None:
    there = found(entry(version(9, 90), version(5, 50, taken=55)), time=70)
    assert (there.revision, there.exact, there.after) == (5, False, (9, 90))


def test_a_time_is_exact_if_a_snapshot_was_taken_after_it_with_nothing_between() -> None:
    assert found(entry(version(5, 50, taken=75)), time=70).exact


def test_a_time_is_exact_if_the_store_is_as_it_was() -> None:
    seen = [Point(1, 5, 50, 100)]
    assert course(STORE, entry(version(5, 50)), [], RestoreTarget(time=70), seen).exact
    assert not course(STORE, entry(version(5, 50)), [], RestoreTarget(time=170), seen).exact


def test_a_time_between_the_last_change_and_a_restore_is_exact() -> None:
    there = found(entry(version(6, 90, epoch=2), version(5, 50)), time=70)
    assert (there.revision, there.exact) == (5, True)


def test_what_a_zombie_logged_beyond_the_next_owner_s_beginning_is_no_past() -> None:
    last, zombie, heir = record(5, 60), record(6, 70), record(6, 65, epoch=2)
    there = found(entry(version(5, 50)), last, zombie, heir, revision=7)
    assert there.exact
    assert [batch.time for batch in there.batches] == [60, 65]


def test_nothing_from_before_a_deletion_is_reached() -> None:
    grave = entry(deleted=Tombstone(1, 99, 7))
    there = found(grave, record(0, 10, 20), record(8, 110, epoch=2), revision=9)
    assert (there.beginning, there.revision, there.exact) == (8, 9, True)
    assert not found(grave, record(0, 10, 20), revision=2).exact


def test_before_the_first_change_there_is_nothing() -> None:
    there = found(entry(version(5, 50)), time=10)
    assert (there.revision, there.exact) == (0, False)
    assert "revision 5" in str(not_reached(STORE, RestoreTarget(time=10), there))


@given(count=st.integers(1, 12), snapshots=st.sets(st.integers(1, 12)), wanted=st.integers(1, 12))
def test_with_the_whole_log_every_revision_is_reached_from_any_snapshots(
    count: int, snapshots: set[int], wanted: int
) -> None:
    times = [10 * number for number in range(1, count + 1)]
    versions = [
        version(each, 10 * each) for each in sorted(snapshots, reverse=True) if each <= count
    ]
    records = [record(number, time) for number, time in enumerate(times)]
    there = found(entry(*versions), *records, revision=wanted)
    start = there.version.revision if there.version is not None else 0
    assert start + len(there.batches) == there.revision == min(wanted, count)
    assert there.exact == (wanted <= count)


@pytest.mark.parametrize(
    ("time", "shown"),
    [(1_795_855_895_755, "2026-11-28T08:51:35.755+00:00"), (1 << 62, f"{1 << 62} ms")],
)
def test_a_time_is_told_as_people_give_it(time: int, shown: str) -> None:
    assert str(RestoreTarget(time=time)) == shown
