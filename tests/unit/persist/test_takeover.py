"""Takeover: whatever the logs of dead owners hold, a file becomes exactly what was acknowledged."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.recovery.takeover import (
    DeadLog,
    DeadLogs,
    FoundFile,
    TakeoverPlan,
    doubts,
    plan,
)
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import CommitLog, LogContents, LogDamage, LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, fence
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.effort import examples

STORE = StoreId("acme", StoreKind.STREAM, "a.b")
OTHER = StoreId("acme", StoreKind.KV, "a.b")


def record(
    epoch: int, previous: int, revision: int, label: str = "", store: StoreId = STORE
) -> LogRecord:
    """A record of one tick. `label` tells whose it is, in the values and the outcome."""
    values = [
        [CHANGE_SET_MESSAGE, number, f"{label}{epoch}:{number}".encode()]
        for number in range(previous + 1, revision + 1)
    ]
    payloads = [frames.encode_changes(epoch, previous, 1000 + revision, values)] if values else []
    outcome = (b"writer", revision + 1, 1, 1000, f"{label}{epoch}:{revision}".encode())
    return LogRecord(store, epoch, previous, revision, payloads, [outcome])


def values_of(found: TakeoverPlan) -> list[str]:
    return [bytes(change[2]).decode() for batch in found.batches for change in batch.changes]


def revisions_of(found: TakeoverPlan) -> list[int]:
    return [
        batch.previous_revision + 1 + index
        for batch in found.batches
        for index in range(len(batch.changes))
    ]


def planned(*records: LogRecord, epoch: int = 0, revision: int = 0) -> TakeoverPlan:
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
    found = planned(record(1, 0, 1), record(1, 1, 4, "zombie "), record(3, 1, 2), record(2, 1, 1))
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
@settings(deadline=None, max_examples=examples(300))
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


# Logs that may lack something
def short_log(
    *records: LogRecord, behind: tuple[LogRecord, ...] = (), incarnation: str = "01"
) -> DeadLog:
    """A log with damage after `records`, and with sound records `behind` it."""
    contents = LogContents(
        records=[*records, *behind],
        damage=[LogDamage("0000000001.log", 70, "a damaged frame", torn_end=False)],
        sound_from=len(records),
    )
    return DeadLog.of("s1", incarnation, contents)


def whole_log(*records: LogRecord, incarnation: str = "02") -> DeadLog:
    return DeadLog.of("s2", incarnation, LogContents(records=list(records)))


def in_doubt(*logs: DeadLog, file: FoundFile | None = None, had_owner: bool = False) -> bool:
    return bool(doubts(STORE, logs, file, had_owner=had_owner))


LEFT_OPEN = FoundFile(epoch=1, revision=2, incarnation="01", closed=False)
CLOSED = LEFT_OPEN._replace(closed=True)


def test_a_file_that_its_owner_left_open_may_lack_what_the_owners_log_lacks() -> None:
    reason = doubts(STORE, [short_log()], LEFT_OPEN, had_owner=False)
    assert "changes after revision 2 may be missing" in reason
    assert "incarnation 01 of server s1 is damaged" in reason
    assert "0000000001.log at byte 70: a damaged frame" in reason
    assert in_doubt(DeadLog.missing("s1", "01"), file=LEFT_OPEN)


def test_a_file_that_its_owner_closed_is_complete_unless_the_log_goes_further() -> None:
    assert not in_doubt(short_log(record(1, 0, 2)), file=CLOSED)
    assert in_doubt(short_log(record(1, 0, 2), record(1, 2, 3)), file=CLOSED)


def test_a_record_behind_the_damage_says_that_nothing_of_the_store_was_in_it() -> None:
    assert not in_doubt(short_log(record(1, 2, 3), behind=(record(1, 3, 4),)), file=LEFT_OPEN)
    assert in_doubt(short_log(record(1, 2, 3), behind=(record(1, 0, 1, "", OTHER),)))


def test_a_record_behind_the_damage_of_an_earlier_epoch_says_nothing() -> None:
    again = LEFT_OPEN._replace(epoch=3)
    assert in_doubt(short_log(behind=(record(1, 0, 2),)), file=again)


def test_a_torn_end_is_no_reason_to_doubt() -> None:
    torn = LogContents(
        records=[record(1, 0, 2)], damage=[LogDamage("1.log", 70, "a torn end", torn_end=True)]
    )
    assert not in_doubt(DeadLog.of("s1", "01", torn), file=LEFT_OPEN)


def test_the_stores_of_others_and_those_with_a_later_owner_are_not_doubted() -> None:
    assert not in_doubt(short_log(), file=LEFT_OPEN._replace(incarnation="02"))
    assert not in_doubt(short_log(record(1, 0, 2)), file=CLOSED._replace(epoch=2, incarnation="02"))
    assert not in_doubt(short_log(record(1, 0, 2)), whole_log(record(2, 2, 3)))
    assert in_doubt(short_log(record(3, 2, 3)), whole_log(record(2, 0, 2)))


def test_a_store_of_which_nothing_is_left_is_doubted_if_it_may_have_been() -> None:
    assert in_doubt(short_log(), had_owner=True)
    assert not in_doubt(short_log(), had_owner=False)
    assert not in_doubt(whole_log(), had_owner=True)


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


def dead_log(layout: Layout, incarnation: str = "dead") -> Path:
    """A log of three ticks; return its segment."""
    disk = Disk()
    disk.make_directory(layout.incarnation("s1", incarnation))
    create_fence(disk, layout.fence("s1", incarnation))
    log = CommitLog(disk, layout.log("s1", incarnation))
    for tick in (1, 2, 3):
        log.append(tick, [record(1, tick - 1, tick)])
        log.prepare_sync()()
    log.close()
    fence(disk, layout.fence("s1", incarnation))
    return layout.log("s1", incarnation) / "0000000001.log"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


def dead_logs(layout: Layout) -> DeadLogs:
    logs = DeadLogs(Disk(), layout, "mine")
    logs.refresh()
    return logs


def test_damage_makes_a_log_short_until_its_loss_is_accepted(layout: Layout) -> None:
    segment = dead_log(layout)
    content = bytearray(segment.read_bytes())
    content[content.index(b"HFlg", 1) + 30] ^= 1
    segment.write_bytes(content)
    logs = dead_logs(layout)
    [log] = logs.logs()
    assert log.is_short
    assert log.sound_epochs == {STORE: 1}
    layout.loss_accepted("s1", "dead").touch()
    logs.refresh()
    [log] = logs.logs()
    assert not log.is_short
    assert log.problem, "what became of it is to be reported"
    assert len(logs.records(STORE)) == 2


def test_a_log_that_somebody_removed_is_missed_and_read_when_it_is_back(
    layout: Layout, tmp_path: Path
) -> None:
    folder = dead_log(layout).parent
    folder.rename(tmp_path / "aside")
    logs = dead_logs(layout)
    [log] = logs.logs()
    assert log.is_short
    assert "is missing" in str(log)
    (tmp_path / "aside").rename(folder)
    logs.refresh()
    assert not logs.logs()[0].is_short
    assert len(logs.records(STORE)) == 3


def test_a_log_that_is_being_let_go_is_not_read(layout: Layout) -> None:
    dead_log(layout)
    layout.letting_go("s1", "dead").touch()
    logs = dead_logs(layout)
    assert logs.incarnations() == [("s1", "dead")]
    assert logs.records(STORE) == []


def test_a_log_that_was_let_go_is_forgotten(layout: Layout) -> None:
    folder = dead_log(layout).parent
    layout.fence("s1", "dead").unlink()
    logs = dead_logs(layout)
    assert len(logs.records(STORE)) == 3
    shutil.rmtree(folder)
    logs.refresh()
    assert logs.records(STORE) == []
    assert logs.stores("s1", "dead") == []


def test_what_is_current_needs_no_reading_until_somebody_dies(layout: Layout) -> None:
    disk = Disk()
    logs = DeadLogs(disk, layout, "mine")
    assert logs.is_current()
    dead_log(layout)
    assert not logs.is_current()
    logs.refresh()
    assert logs.is_current()
    alive = layout.fence("s2", "alive")
    disk.make_directory(alive.parent)
    create_fence(disk, alive)
    CommitLog(disk, layout.log("s2", "alive")).close()
    assert logs.is_current()
    fence(disk, alive)
    assert not logs.is_current()


def test_what_was_removed_or_put_into_quarantine_is_not_current(layout: Layout) -> None:
    folder = dead_log(layout).parent
    logs = dead_logs(layout)
    shutil.rmtree(folder)
    assert not logs.is_current()
    logs.refresh()
    # One that is missing is looked for each time.
    assert not logs.is_current()
    layout.letting_go("s1", "dead").touch()
    logs.refresh()
    assert logs.is_current()
    kept = layout.quarantine / "acme" / "chat.stream.1"
    kept.mkdir(parents=True)
    (kept / "report.json").write_text("{}")
    (kept / "0000000001.log").touch()
    assert not logs.is_current()
    logs.refresh()
    assert logs.is_current()


def test_many_lives_are_too_many_to_look_at_in_the_loop(layout: Layout) -> None:
    for number in range(9):
        dead_log(layout, f"dead{number}")
    assert not dead_logs(layout).is_current()
