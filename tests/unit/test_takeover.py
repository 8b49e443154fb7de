"""Takeover: whatever the logs of dead owners hold, a file becomes exactly what was acknowledged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.takeover import DeadLogs, Plan, plan
from holdfast.protocol import frames
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.commit_log import CommitLog, LogRecord
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.fence import create_fence, fence
from holdfast.shared_fs.layout import open_layout

STORE = StoreId("acme", StoreKind.STREAM, "a.b")
OTHER = StoreId("acme", StoreKind.KV, "a.b")


def record(
    epoch: int, previous: int, revision: int, label: str = "", store: StoreId = STORE
) -> LogRecord:
    """A record of one tick. `label` tells whose it is, in the values and the outcome."""
    values = [
        [frames.CHANGE_SET_MESSAGE, number, f"{label}{epoch}:{number}".encode()]
        for number in range(previous + 1, revision + 1)
    ]
    payloads = [frames.encode_changes(epoch, previous, 1000 + revision, values)] if values else []
    outcome = (b"writer", revision + 1, 1, 1000, f"{label}{epoch}:{revision}".encode())
    return LogRecord(store, epoch, previous, revision, payloads, [outcome])


def values_of(found: Plan) -> list[str]:
    return [bytes(change[2]).decode() for batch in found.batches for change in batch.changes]


def revisions_of(found: Plan) -> list[int]:
    return [
        batch.previous_revision + 1 + index
        for batch in found.batches
        for index in range(len(batch.changes))
    ]


def planned(*records: LogRecord, epoch: int = 0, revision: int = 0) -> Plan:
    return plan(STORE, records, file_epoch=epoch, file_revision=revision)


def test_no_records_add_nothing() -> None:
    assert planned(revision=5) == ([], [])


def test_a_dead_owners_records_follow_the_file() -> None:
    found = planned(record(1, 0, 2), record(1, 2, 3), epoch=1)
    assert values_of(found) == ["1:1", "1:2", "1:3"]
    assert [kept.counter for kept in found.outcomes] == [3, 4]


def test_what_the_file_holds_is_not_applied_again() -> None:
    found = planned(record(1, 0, 2), record(1, 2, 3), record(1, 3, 5), epoch=1, revision=3)
    assert revisions_of(found) == [4, 5]
    assert [kept.counter for kept in found.outcomes] == [6]


def test_records_of_an_earlier_epoch_than_the_files_are_void() -> None:
    found = planned(record(1, 2, 4), record(2, 2, 3), epoch=2, revision=2)
    assert values_of(found) == ["2:3"]


def test_several_dead_owners_follow_each_other_whatever_the_order_of_their_logs() -> None:
    records = [record(3, 4, 5), record(1, 0, 2), record(2, 2, 4)]
    assert values_of(planned(*records)) == ["1:1", "1:2", "2:3", "2:4", "3:5"]


def test_what_a_zombie_appended_after_its_fence_is_void_once_a_later_owner_wrote() -> None:
    zombie = [record(1, 0, 2), record(1, 2, 3, "zombie "), record(1, 3, 6, "zombie ")]
    found = planned(*zombie, record(2, 2, 3))
    assert values_of(found) == ["1:1", "1:2", "2:3"]
    assert [kept.outcome for kept in found.outcomes] == [b"1:2", b"2:3"]


def test_a_zombie_of_two_epochs_ago_is_void_too() -> None:
    found = planned(
        record(1, 0, 1), record(1, 1, 4, "zombie "), record(3, 1, 2), record(2, 1, 1)
    )
    assert values_of(found) == ["1:1", "3:2"]


def test_what_was_never_superseded_counts_although_nobody_was_told() -> None:
    # The fenced owner may have acknowledged it: nobody can know, so it is kept.
    found = planned(record(1, 0, 1), record(1, 1, 2))
    assert values_of(found) == ["1:1", "1:2"]


def test_records_with_outcomes_only_are_kept_for_retries() -> None:
    found = planned(record(1, 2, 2), record(1, 2, 3), record(1, 3, 3), epoch=1, revision=2)
    assert revisions_of(found) == [3]
    assert len(found.outcomes) == 3
    again = planned(record(1, 2, 3), record(1, 3, 3), epoch=1, revision=3)
    assert again.batches == []
    assert [kept.outcome for kept in again.outcomes] == [b"1:3"]


def test_a_gap_names_the_revisions_that_are_missing() -> None:
    with pytest.raises(StoreDamagedError, match="revisions 3 to 5 ") as caught:
        planned(record(1, 0, 2), record(1, 5, 6))
    assert STORE.name in caught.value.store


def test_a_gap_before_the_first_record_is_found() -> None:
    with pytest.raises(StoreDamagedError, match="revisions 1 to 4 "):
        planned(record(1, 4, 5))


def test_a_gap_between_two_owners_is_found() -> None:
    with pytest.raises(StoreDamagedError, match="revisions 3 to 3 "):
        planned(record(1, 0, 2), record(2, 3, 4))


def test_an_owner_that_began_inside_anothers_tick_is_damage() -> None:
    with pytest.raises(StoreDamagedError):
        planned(record(1, 0, 2), record(1, 2, 5), record(2, 4, 6))


def test_one_tick_may_hold_several_payloads() -> None:
    first = frames.encode_changes(1, 0, 1000, [[1, 1, b"a"], [1, 2, b"b"]])
    second = frames.encode_changes(1, 2, 1000, [[1, 3, b"c"]])
    found = planned(LogRecord(STORE, 1, 0, 3, [first, second], []))
    assert revisions_of(found) == [1, 2, 3]


@given(st.integers(0, 1 << 32))
@settings(deadline=None, max_examples=300)
def test_any_history_of_owners_gives_exactly_the_acknowledged_order(seed: int) -> None:
    """Owners come and go; each starts where all acknowledged writes end, some write on as zombies
    after they were fenced, and the file holds any prefix that one of them materialised."""
    rng = random.Random(seed)
    acknowledged: list[str] = []
    logs: list[list[LogRecord]] = []
    file_epoch = file_revision = 0
    for epoch in range(1, rng.randint(2, 6)):
        log: list[LogRecord] = []
        if acknowledged and rng.random() < 0.3:
            # The owner's file is durable before its first answer.
            file_epoch, file_revision = epoch, len(acknowledged)
        wrote = False
        for _ in range(rng.randint(0, 4)):
            start = len(acknowledged)
            each = record(epoch, start, start + rng.randint(0, 3))
            log.append(each)
            wrote = wrote or each.revision > start
            acknowledged += [f"{epoch}:{number + 1}" for number in range(start, each.revision)]
            if rng.random() < 0.3:
                file_epoch, file_revision = epoch, len(acknowledged)
        logs.append(log)
        if not wrote:
            continue
        # Now it is fenced, and goes on; the next owner starts from what was acknowledged. The last
        # owner's extra frames would count, since nobody can tell them from acknowledged ones.
        zombie_at = len(acknowledged)
        for _ in range(rng.randint(0, 2)):
            extra = record(epoch, zombie_at, zombie_at + rng.randint(1, 3), "zombie ")
            log.append(extra)
            zombie_at = extra.revision
    start = len(acknowledged)
    logs.append([record(99, start, start + 1)])
    acknowledged.append(f"99:{start + 1}")
    rng.shuffle(logs)
    records = [each for log in logs for each in log]
    found = plan(STORE, records, file_epoch=file_epoch, file_revision=file_revision)
    assert values_of(found) == acknowledged[file_revision:]
    assert not any(b"zombie" in kept.outcome for kept in found.outcomes)


def test_only_the_logs_of_fenced_incarnations_are_read(tmp_path: Path) -> None:
    disk = Disk()
    layout = open_layout(tmp_path / "data", disk)
    for incarnation in ("dead", "alive", "mine", "without-fence"):
        disk.make_directory(layout.incarnation("s1", incarnation))
        if incarnation != "without-fence":
            create_fence(disk, layout.fence("s1", incarnation))
        log = CommitLog(disk, layout.log("s1", incarnation))
        log.append(1, [record(1, 0, 1, incarnation), record(1, 0, 1, incarnation, OTHER)])
        log.prepare_sync()()
        log.close()
    for incarnation in ("dead", "mine"):
        fence(disk, layout.fence("s1", incarnation))
    logs = DeadLogs(disk, layout, "mine")
    logs.refresh()
    assert set(logs.incarnations()) == {("s1", "dead"), ("s1", "without-fence")}
    assert set(logs.stores("s1", "dead")) == {STORE, OTHER}
    assert {bytes(each.outcomes[0][4]) for each in logs.records(STORE)} == {
        b"dead1:1",
        b"without-fence1:1",
    }
    fence(disk, layout.fence("s1", "alive"))
    logs.refresh()
    assert len(logs.records(STORE)) == 3


def test_a_log_that_was_let_go_is_forgotten(tmp_path: Path) -> None:
    disk = Disk()
    layout = open_layout(tmp_path / "data", disk)
    disk.make_directory(layout.incarnation("s1", "dead"))
    log = CommitLog(disk, layout.log("s1", "dead"))
    log.append(1, [record(1, 0, 1)])
    log.prepare_sync()()
    log.close()
    logs = DeadLogs(disk, layout, "mine")
    logs.refresh()
    assert len(logs.records(STORE)) == 1
    for name in disk.names(layout.log("s1", "dead")):
        disk.remove(layout.log("s1", "dead") / name)
    disk.remove_directory(layout.log("s1", "dead"))
    logs.refresh()
    assert logs.records(STORE) == []
    assert logs.stores("s1", "dead") == []
