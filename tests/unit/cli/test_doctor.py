"""The doctor finds each thing that it has a check for, and nothing where nothing is wrong."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.cli.commands.doctor import shared_folder
from holdfast.cli.doctor import checks
from holdfast.cli.doctor.checks import CHECKS, MAX_EXAMPLES, Check, Findings, Severity
from holdfast.cli.doctor.examination import Examination
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.control import Owner, StoreState
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord, encode_frame
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.disk.privacy import private_files
from holdfast.shared_fs.disk.quarantine import quarantine
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import keys_in_folder
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.documents import documented_json, read, shape
from tests.support.tenant_keys import KEYS

NOTES = StoreId("acme", StoreKind.STREAM, "notes")
DISK = Disk()
DOCUMENT = read("cli.md")
#: Where the tests run is not for them to judge.
OF_THE_MACHINE = {checks.FILE_SYSTEM.code, checks.ROOM.code}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A data directory with a state file, in which one store is at revision 3."""
    with private_files():
        layout = open_layout(tmp_path / "data", DISK)
    make_store(layout)
    record_store(layout)
    return layout


def make_store(layout: Layout, store: StoreId = NOTES, *, count: int = 3, epoch: int = 2) -> Path:
    path = layout.store(store)
    DISK.make_directory(path.parent)
    file = StoreFile.create(path, store, time=1)
    changes = [[CHANGE_SET_MESSAGE, 1 + i, bytes(100)] for i in range(count)]
    file.apply([AppliedBatch(0, 5, changes)])
    file.take(epoch, "s1", "01")
    file.close()
    return path


def record_store(
    layout: Layout,
    store: StoreId = NOTES,
    *,
    epoch: int = 2,
    reached: StoreState = StoreState.DURABLE,
) -> None:
    DISK.make_directory(layout.coordinator)
    state = open_state_file(layout.coordinator / "state.db", DISK)
    with state.transaction():
        state.servers.add("s1", "01", 1)
        state.stores.assign(store, Owner("s1", "01", epoch))
        state.stores.raise_state(store, reached)
    state.close()


def make_log(
    layout: Layout,
    *revisions: tuple[int, int],
    incarnation: str = "01",
    store: StoreId = NOTES,
    fenced: bool = True,
) -> Path:
    """The log of a dead life, with a tick for each (previous revision, revision)."""
    folder = layout.incarnation("s1", incarnation)
    DISK.make_directory(folder)
    fence.create_fence(DISK, folder / "fence")
    if fenced:
        fence.fence(DISK, folder / "fence")
    log = CommitLog(DISK, folder / "log")
    for tick, (previous, revision) in enumerate(revisions, start=1):
        changes = [[CHANGE_SET_MESSAGE, one, b"x"] for one in range(previous + 1, revision + 1)]
        payload = frames.encode_changes(2, previous, 5, changes)
        log.append(tick, [LogRecord(store, 2, previous, revision, [payload], [])])
        log.prepare_sync()()
    log.close()
    return folder / "log" / "0000000001.log"


def look(layout: Layout, *, deep: bool = False) -> Findings:
    examination = Examination(layout.root, deep=deep)
    examination.run()
    return examination.findings


def outcomes(findings: Findings) -> dict[str, str]:
    """The checks that are not ok."""
    return {
        code: result.outcome
        for code, result in findings.results.items()
        if result.outcome not in ("ok", "skipped") and code not in OF_THE_MACHINE
    }


def finds(
    layout: Layout, outcome: str, *checks: Check, what: str = "", deep: bool = False
) -> Findings:
    """Look: these checks are not ok, and no others; the first of them says `what`."""
    findings = look(layout, deep=deep)
    assert outcomes(findings) == {check.code: outcome for check in checks}
    assert not checks or what in text_of(findings, checks[0])
    return findings


def text_of(findings: Findings, check: Check) -> str:
    return "\n".join(f"{one.where}: {one.what}" for one in findings.results[check.code].examples)


# Nothing is wrong
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_found_where_nothing_is_wrong(layout: Layout, deep: bool) -> None:
    before = sorted(layout.root.rglob("*"))
    findings = look(layout, deep=deep)
    assert outcomes(findings) == {}
    skipped = {code for code, one in findings.results.items() if one.outcome == "skipped"}
    assert skipped == (set() if deep else {checks.MISCOUNTED_FILES.code})
    assert sorted(layout.root.rglob("*")) == before


def test_a_new_data_directory_is_fine(tmp_path: Path) -> None:
    with private_files():
        layout = open_layout(tmp_path / "data", DISK)
    assert outcomes(look(layout)) == {}


def test_a_log_that_goes_on_where_the_file_ends_is_fine(layout: Layout) -> None:
    make_log(layout, (1, 2), (2, 3), (3, 9))
    findings = look(layout)
    assert outcomes(findings) == {}
    assert "1 stores" in text_of(findings, checks.DEAD_LOGS)


# The folder
def test_a_folder_without_format_is_reported_and_looked_at_if_it_was_holdfast_s(
    layout: Layout, tmp_path: Path
) -> None:
    layout.format_file.unlink()
    finds(layout, "critical", checks.FORMAT)
    (tmp_path / "empty").mkdir()
    findings = finds(Layout(tmp_path / "empty"), "critical", checks.FORMAT)
    assert {one.outcome for one in findings.results.values()} == {"critical", "skipped"}
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_tree_of_a_later_format_is_not_looked_at(layout: Layout) -> None:
    layout.format_file.write_text("holdfast shared file system, format 99\n")
    layout.store(NOTES).write_bytes(b"whatever a later holdfast means by it")
    finds(layout, "critical", checks.FORMAT)


def test_the_folder_of_up_holds_the_shared_file_system(layout: Layout, tmp_path: Path) -> None:
    assert shared_folder(layout.root) == layout.root
    layout.root.rename(tmp_path / "shared")
    assert shared_folder(tmp_path) == tmp_path / "shared"
    assert shared_folder(tmp_path / "shared") == tmp_path / "shared"


# Store files
def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_text(path: Path) -> None:
    path.write_text("hello" * 1000)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def upgrade(path: Path) -> None:
    connection = apsw.Connection(str(path), vfs="cksmvfs")
    connection.pragma("user_version", 99)
    connection.close()


def swap_name(path: Path) -> None:
    connection = apsw.Connection(str(path), vfs="cksmvfs")
    connection.execute("UPDATE meta SET name = 'other'")
    connection.close()


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (empty, checks.EMPTY_FILES),
        (replace_by_text, checks.FOREIGN_FILES),
        (flip_a_bit, checks.DAMAGED_FILES),
        (upgrade, checks.NEWER_FILES),
        (swap_name, checks.MISNAMED_FILES),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_critical(
    layout: Layout, damage: Callable[[Path], None], check: Check
) -> None:
    damage(layout.store(NOTES))
    finds(layout, "critical", check, what=str(layout.store(NOTES).relative_to(layout.root)))


@pytest.mark.parametrize(
    ("damage", "check"), [(empty, checks.EMPTY_FILES), (flip_a_bit, checks.DAMAGED_FILES)]
)
def test_a_damaged_file_that_was_never_durable_is_a_warning_where_the_logs_can_make_it_anew(
    layout: Layout, damage: Callable[[Path], None], check: Check
) -> None:
    young = NOTES._replace(name="young")
    damage(make_store(layout, young))
    record_store(layout, young, reached=StoreState.CREATED)
    finds(layout, "critical", check)
    make_log(layout, (0, 2), (2, 3), store=young)
    finds(layout, "warning", check)
    record_store(layout, young)
    finds(layout, "critical", check)


def test_a_miscounted_file_is_noticed_by_a_deep_look(layout: Layout) -> None:
    connection = apsw.Connection(str(layout.store(NOTES)), vfs="cksmvfs")
    connection.execute("UPDATE meta SET count = 7")
    connection.close()
    assert outcomes(look(layout)) == {}
    finds(layout, "warning", checks.MISCOUNTED_FILES, deep=True)


def test_a_file_in_the_wrong_folder_is_critical_and_so_is_its_absence(layout: Layout) -> None:
    parent = layout.store(NOTES).parent
    parent.rename(parent.with_name("000"))
    finds(layout, "critical", checks.MISPLACED_FILES, checks.MISSING_FILES)


def test_a_wal_without_its_file_is_critical(layout: Layout) -> None:
    lone = layout.store(NOTES).with_name("gone.stream.1.db-wal")
    lone.write_bytes(b"")
    finds(layout, "critical", checks.LONE_WALS)


def test_leftovers_and_strangers_are_told(layout: Layout) -> None:
    path = layout.store(NOTES)
    path.with_name("notes.txt").write_text("")
    path.with_name(path.name + ".01").write_bytes(b"")
    path.rename(layout.store(NOTES, 2))
    path.write_bytes(b"an earlier generation")
    findings = finds(layout, "warning", checks.STRANGERS, checks.GENERATIONS)
    assert "an earlier generation" in text_of(findings, checks.GENERATIONS)


def test_strangers_among_the_folders_of_servers_are_told_and_are_no_servers(
    layout: Layout,
) -> None:
    make_log(layout, (0, 1), (1, 6), store=NOTES._replace(name="young"))
    for name in (".DS_Store", "s0", "s1/.nfs0001", "s1/00"):
        (layout.servers / name).write_bytes(b"junk")
    findings = finds(layout, "warning", checks.STRANGERS)
    assert text_of(findings, checks.STRANGERS).count("it is not a file of holdfast") == 4


# Logs and fences
def test_revisions_that_are_nowhere_are_critical(layout: Layout) -> None:
    make_log(layout, (1, 2), (5, 6))
    finds(layout, "critical", checks.SEQUENCE, what="revisions 4 to 5")


def test_a_store_of_which_the_logs_have_only_the_end_is_critical(layout: Layout) -> None:
    make_log(layout, (4, 6), store=NOTES._replace(name="gone"))
    finds(layout, "critical", checks.SEQUENCE, what="revisions 1 to 4 are missing")


def test_a_store_that_is_only_in_a_log_is_fine_if_all_of_it_is(layout: Layout) -> None:
    make_log(layout, (0, 1), (1, 6), store=NOTES._replace(name="young"))
    assert outcomes(look(layout)) == {}


def test_a_torn_end_of_a_log_is_fine_and_damage_in_the_middle_is_critical(layout: Layout) -> None:
    segment = make_log(layout, (3, 4), (4, 5), (5, 6))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-3])
    findings = look(layout)
    assert outcomes(findings) == {}
    assert "torn end" in text_of(findings, checks.LOG_DAMAGE)

    broken = bytearray(whole)
    broken[whole.find(b"HFlg", 1) + 30] ^= 1
    segment.write_bytes(broken)
    finds(layout, "critical", checks.LOG_DAMAGE, checks.SEQUENCE)


def test_stores_that_a_damaged_log_may_have_held_are_named_until_the_loss_is_accepted(
    layout: Layout,
) -> None:
    segment = make_log(layout, (3, 4))
    other = NOTES._replace(name="other")
    lost = encode_frame(2, [LogRecord(other, 2, 1, 2, [], [])])
    last = encode_frame(3, [LogRecord(other, 2, 0, 1, [], [])])
    segment.write_bytes(segment.read_bytes() + lost[:-1] + b"?" + last)
    record_store(layout, NOTES._replace(name="unheard"), reached=StoreState.CREATED)
    findings = finds(layout, "critical", checks.LOG_DAMAGE, checks.DOUBTFUL_STORES)
    doubted = text_of(findings, checks.DOUBTFUL_STORES)
    assert "changes after revision 4 may be missing" in doubted
    assert "unheard" in doubted
    assert len(doubted.splitlines()) == 2
    layout.loss_accepted("s1", "01").touch()
    finds(layout, "warning", checks.LOG_DAMAGE)


def test_a_fenced_life_without_its_log_is_critical(layout: Layout) -> None:
    shutil.rmtree(make_log(layout, (3, 4)).parent)
    finds(layout, "critical", checks.MISSING_LOGS)
    layout.loss_accepted("s1", "01").touch()
    finds(layout, "warning", checks.MISSING_LOGS)


def test_an_open_fence_without_a_process_is_a_warning_and_its_log_counts(layout: Layout) -> None:
    make_log(layout, (5, 6), fenced=False)
    assert outcomes(look(layout)) == {
        checks.OPEN_FENCES.code: "warning",
        checks.SEQUENCE.code: "critical",
    }


def test_a_log_without_a_fence_file_is_a_warning(layout: Layout) -> None:
    make_log(layout, (3, 4))
    layout.fence("s1", "01").unlink()
    finds(layout, "warning", checks.MISSING_FENCES)


# Quarantine
def test_a_folder_that_others_may_enter_is_a_warning(layout: Layout) -> None:
    layout.root.chmod(0o750)
    findings = finds(layout, "warning", checks.ACCESS)
    [example] = findings.results[checks.ACCESS.code].examples
    assert example.what == "its mode is 0750: others may look into it"


def test_quarantine_is_a_warning_with_its_reason(layout: Layout) -> None:
    other = NOTES._replace(name="other")
    path = make_store(layout, other)
    quarantine(DISK, layout, other, path, reason="page 3 is torn", time=7, server="s1")
    (layout.quarantine / "acme" / "by-hand").mkdir()
    findings = finds(layout, "warning", checks.QUARANTINE)
    assert "page 3 is torn" in text_of(findings, checks.QUARANTINE)
    assert "by-hand: there is no report" in text_of(findings, checks.QUARANTINE)


# What the coordinator knows
def test_a_store_whose_file_is_missing_is_critical(layout: Layout) -> None:
    layout.store(NOTES).unlink()
    finds(layout, "critical", checks.MISSING_FILES)
    make_log(layout, (0, 3))
    finds(layout, "critical", checks.MISSING_FILES)


def test_a_file_that_the_coordinator_does_not_know_is_a_warning(layout: Layout) -> None:
    make_store(layout, NOTES._replace(name="found"))
    finds(layout, "warning", checks.UNRECORDED_FILES)


def test_a_file_with_a_higher_epoch_than_the_coordinator_s_is_a_warning(layout: Layout) -> None:
    other = NOTES._replace(name="ahead")
    make_store(layout, other, epoch=9)
    record_store(layout, other, epoch=8)
    finds(layout, "warning", checks.EPOCHS)


def test_a_file_that_is_older_than_the_coordinator_knows_is_critical(layout: Layout) -> None:
    def close(revision: int) -> None:
        state = open_state_file(layout.coordinator / "state.db", DISK)
        with state.transaction():
            state.stores.raise_revision(NOTES, revision)
        state.close()

    close(3)
    assert outcomes(look(layout)) == {}
    close(5)
    finds(layout, "critical", checks.OLDER_FILES, what="it reaches revision 3, and it was at 5")
    accepted = layout.older_accepted(NOTES)
    accepted.touch()
    finds(layout, "warning", checks.OLDER_FILES)
    accepted.unlink()
    make_log(layout, (3, 5))
    assert outcomes(look(layout)) == {}, "the log brings it up to date"


@pytest.mark.parametrize("damage", [empty, replace_by_text, flip_a_bit])
def test_a_damaged_state_file_is_critical_and_left_alone(
    layout: Layout, damage: Callable[[Path], None]
) -> None:
    path = layout.coordinator / "state.db"
    damage(path)
    if damage is flip_a_bit:
        path.write_bytes(path.read_bytes()[:-4096])
    before = path.read_bytes()
    findings = finds(layout, "critical", checks.STATE)
    assert findings.results[checks.MISSING_FILES.code].outcome == "skipped"
    assert path.read_bytes() == before


def test_a_state_file_that_was_not_closed_is_read_with_its_wal_and_left_alone(
    layout: Layout,
) -> None:
    folder = layout.coordinator
    state = open_state_file(folder / "state.db", DISK)
    other = NOTES._replace(name="other")
    with state.transaction():
        state.servers.add("s1", "01", 1)
        state.stores.assign(other, Owner("s1", "01", 2))
        state.stores.raise_state(other, StoreState.DURABLE)
    # As a crash would leave it.
    left = {each: (folder / each).read_bytes() for each in ("state.db", "state.db-wal")}
    state.close()
    for each, content in left.items():
        (folder / each).write_bytes(content)
    finds(layout, "critical", checks.MISSING_FILES)
    assert {each: (folder / each).read_bytes() for each in left} == left


def test_the_state_of_a_coordinator_that_took_over_past_the_lock_is_read(layout: Layout) -> None:
    folder = layout.coordinator
    (folder / "state.db").rename(folder / "state.2.db")
    finds(layout, "ok")
    (folder / "state.2.db").write_bytes(b"not a database" * 1000)
    finds(layout, "critical", checks.STATE)


def test_a_missing_state_file_is_a_warning(layout: Layout) -> None:
    (layout.coordinator / "state.db").unlink()
    finds(layout, "warning", checks.STATE)


# The report
def test_an_encrypted_tenant_without_its_keys_is_told(layout: Layout) -> None:
    file = StoreFile.open(layout.store(NOTES), NOTES)
    cipher = StoreCipher(CipherSessions(KEYS), NOTES)
    file.apply([AppliedBatch(3, 6, [cipher.encrypted([CHANGE_SET_MESSAGE, 4, b"v"], 4)])])
    file.close()
    finds(layout, "warning", checks.KEYS, what="lacks tenant 'acme', of which 1 files")
    keys_in_folder(layout).encrypt(["other"], MasterKey(bytes(32)), 1)
    finds(layout, "critical", checks.KEYS, what="lacks tenant 'acme', of which 1 files")
    keys_in_folder(layout).encrypt(["acme"], MasterKey(bytes(32)), 1)
    finds(layout, "ok")
    bucket = open_bucket(layout.encryption.as_uri())
    bucket.delete("tenants/acme")
    finds(layout, "critical", checks.KEYS, what="tenants/acme: the keys of the tenant are missing")
    bucket.replace("index", b"{}", bucket.head("index").version)
    finds(layout, "critical", checks.KEYS, what="it does not number the tenants")


def test_codes_and_names_are_never_used_twice() -> None:
    assert [one.code for one in CHECKS] == [f"HF-{i:03d}" for i in range(1, len(CHECKS) + 1)]
    assert len({one.name for one in CHECKS}) == len(CHECKS)
    constants = {one for one in vars(checks).values() if isinstance(one, Check)}
    assert constants == set(CHECKS)


def test_findings_are_counted_and_only_the_first_and_worst_are_kept() -> None:
    findings = Findings()
    for number in range(1000):
        findings.note(checks.SEQUENCE, number, "a note")
        findings.warn(checks.SEQUENCE, number, "a warning")
    findings.alarm(checks.SEQUENCE, "last", "critical")
    result = findings.results[checks.SEQUENCE.code]
    assert result.counts == {Severity.NOTE: 1000, Severity.WARNING: 1000, Severity.CRITICAL: 1}
    assert [one.where for one in result.examples] == ["last", *"0123"]
    assert len(result.examples) == MAX_EXAMPLES
    assert sum(map(len, result.kept.values())) <= 3 * MAX_EXAMPLES
    assert findings.severity is Severity.CRITICAL
    findings.void(checks.SEQUENCE, "it does not count")
    assert findings.severity is Severity.NOTE


def test_the_report_has_the_documented_shape(layout: Layout) -> None:
    layout.store(NOTES).unlink()
    section = DOCUMENT.partition("### `holdfast doctor`\n")[2].partition("\n### ")[0]
    examination = Examination(layout.root)
    examination.run()
    report = examination.to_json()
    worst_first = sorted(report["checks"], key=lambda one: one["outcome"] != "critical")
    assert shape({**report, "checks": worst_first}) == shape(documented_json(section))
    assert report["outcome"] == "critical"


def test_every_check_is_documented() -> None:
    rows = re.findall(r"^\| (HF-\d+) \| ([^|]+) \| ([^|]+) \|", DOCUMENT, re.MULTILINE)
    assert rows == [(one.code, one.name, one.about) for one in CHECKS]


def test_a_store_whose_time_is_ahead_is_named(layout: Layout) -> None:
    later = StoreId("acme", StoreKind.STREAM, "later")
    file = StoreFile.open(make_store(layout, later), later)
    file.go_on_from(file.meta.revision + 1, time=int((time.time() + 3600) * 1000))
    file.close()
    findings = look(layout)
    assert outcomes(findings)[checks.TIMES.code] == "warning"
    assert "s ahead of this machine's clock" in text_of(findings, checks.TIMES)
