"""Inspection: what is there is told as it is, and nothing is changed or kept from its owner."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast.protocol.changes import (
    CHANGE_PUT_CHUNK,
    CHANGE_SET_CURSOR,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.file_system import (
    Mount,
    locks_exclude,
    mount_in,
    mount_of,
    room_of,
    time_sync,
)
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.inspection import inspection
from holdfast.shared_fs.inspection.inspection import (
    FenceState,
    FileState,
    FoundFolder,
    incarnations,
    inspect_store_file,
    lock_holder,
    walk_stores,
)
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

STREAM = StoreId("acme", StoreKind.STREAM, "a.b")
KV = StoreId("acme", StoreKind.KV, "a.b")
DEADLINE_SECONDS = 30.0

HOLD_STORE = """
import sys
from pathlib import Path
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.store_file import StoreFile
file = StoreFile.open(Path(sys.argv[1]), StoreId("acme", 1, "a.b"))
print("held", flush=True)
sys.stdin.read()
file.abandon()
"""
HOLD_LOCK = """
import sys
from pathlib import Path
from holdfast.shared_fs.disk.disk import Disk
lock = Disk().lock(Path(sys.argv[1]), "it")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(program: str, path: Path) -> Iterator[int]:
    """Run a process that holds `path` around the body; yields its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield process.pid
        finally:
            process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


def make_store(layout: Layout, store: StoreId = STREAM, *, count: int = 300) -> Path:
    """A store of some hundred pages, closed."""
    file = open_store(layout, store, count)
    file.close()
    return file.path


def open_store(layout: Layout, store: StoreId = STREAM, count: int = 300) -> StoreFile:
    path = layout.store(store)
    Disk().make_directory(path.parent)
    file = StoreFile.create(path, store, time=1)
    if store.kind == StoreKind.STREAM:
        changes = [[CHANGE_SET_MESSAGE, 1 + i, bytes(2000)] for i in range(count)]
    else:
        changes = [[CHANGE_SET_ENTRY, f"key{i}", bytes(2000)] for i in range(count)]
    file.apply([AppliedBatch(0, 5, changes)])
    file.take(3, "s1", "life")
    return file


@pytest.fixture
def closed(layout: Layout) -> Path:
    return make_store(layout)


def edit(path: Path, sql: str) -> None:
    """Change a file as its owner never would."""
    with closing(apsw.Connection(str(path), vfs="cksmvfs")) as connection:
        connection.execute(sql)


def flip_bit(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in folder.iterdir()}


def state_of(path: Path, store: StoreId = STREAM, *, deep: bool = False) -> FileState:
    return inspect_store_file(path, store, deep=deep).state


# Files that are as they should be
@pytest.mark.parametrize("store", [STREAM, KV])
@pytest.mark.parametrize("deep", [False, True])
def test_a_closed_file_is_sound_and_left_as_it_was(
    layout: Layout, store: StoreId, deep: bool
) -> None:
    path = make_store(layout, store)
    before = contents(path.parent)
    verdict = inspect_store_file(path, store, deep=deep)
    assert (verdict.state, verdict.left_open) == (FileState.SOUND, False)
    assert verdict.meta is not None
    assert (verdict.meta.epoch, verdict.meta.revision, verdict.meta.count) == (3, 300, 300)
    assert contents(path.parent) == before


def test_a_file_that_its_owner_did_not_close_is_read_with_its_wal_and_left_as_it_was(
    layout: Layout,
) -> None:
    file = open_store(layout)
    file.abandon()
    before = contents(file.path.parent)
    assert len(before) == 2
    verdict = inspect_store_file(file.path, STREAM, deep=True)
    assert (verdict.state, verdict.left_open) == (FileState.SOUND, True)
    assert verdict.meta is not None and verdict.meta.revision == 300
    assert contents(file.path.parent) == before
    StoreFile.open(file.path, STREAM).close()


def test_a_file_that_a_process_has_open_is_in_use_and_stays_its_own(closed: Path) -> None:
    with holder(HOLD_STORE, closed) as pid:
        verdict = inspect_store_file(closed, STREAM, deep=True)
        assert verdict.state is FileState.IN_USE
        assert str(pid) in verdict.reason
        assert lock_holder(closed) == pid
    assert state_of(closed) is FileState.SOUND


def test_a_file_that_changes_all_the_time_is_in_use(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = inspection._look

    def look_and_disturb(*arguments: object, **options: object) -> object:
        verdict = look(*arguments, **options)  # type: ignore[arg-type]
        closed.write_bytes(closed.read_bytes())
        return verdict

    monkeypatch.setattr(inspection, "_look", look_and_disturb)
    assert state_of(closed) is FileState.IN_USE


def test_a_large_file_is_checked_in_part_unless_all_of_it_is_asked_for(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(inspection, "_PROGRESS_STEPS", 1)
    verdict = inspect_store_file(closed, STREAM)
    assert verdict.state is FileState.PARTLY_CHECKED
    assert verdict.meta is not None
    assert state_of(closed, deep=True) is FileState.SOUND


# Files that are not
def test_a_missing_file_is_gone(layout: Layout) -> None:
    assert state_of(layout.store(STREAM)) is FileState.GONE


@pytest.mark.parametrize("with_wal", [False, True])
def test_an_empty_file_is_empty(layout: Layout, with_wal: bool) -> None:
    file = open_store(layout)
    file.abandon()
    wal = file.path.with_name(file.path.name + "-wal")
    if not with_wal:
        wal.unlink()
    file.path.write_bytes(b"")
    assert state_of(file.path) is FileState.EMPTY
    assert wal.exists() == with_wal


def test_what_is_no_sqlite_file_is_foreign(closed: Path) -> None:
    closed.write_bytes(b"hello" * 1000)
    assert state_of(closed) is FileState.FOREIGN


def test_the_sqlite_file_of_another_application_is_foreign(closed: Path) -> None:
    closed.unlink()
    with closing(apsw.Connection(str(closed))) as connection:
        connection.execute("CREATE TABLE t(a)")
    assert state_of(closed) is FileState.FOREIGN


def test_a_file_of_a_later_format_is_newer(closed: Path) -> None:
    edit(closed, f"PRAGMA user_version = {schema.LATEST_FORMAT + 1}")
    assert state_of(closed) is FileState.NEWER


@pytest.mark.parametrize("other", [KV, StoreId("umbrella", StoreKind.STREAM, "a.b")])
def test_the_file_of_another_store_is_misnamed(closed: Path, other: StoreId) -> None:
    assert state_of(closed, other) is FileState.MISNAMED


@pytest.mark.parametrize("page", [0, 3, 400])
def test_a_flipped_bit_in_any_page_is_damage(closed: Path, page: int) -> None:
    flip_bit(closed, page * schema.PAGE_BYTES + 200)
    verdict = inspect_store_file(closed, STREAM)
    assert verdict.state is FileState.DAMAGED
    assert verdict.reason


def test_a_truncated_file_is_damaged(closed: Path) -> None:
    closed.write_bytes(closed.read_bytes()[: -5 * schema.PAGE_BYTES])
    assert state_of(closed) is FileState.DAMAGED


def test_a_file_without_its_meta_row_is_damaged(closed: Path) -> None:
    edit(closed, "DELETE FROM meta")
    assert state_of(closed) is FileState.DAMAGED


@pytest.mark.parametrize("store", [STREAM, KV])
def test_rows_that_do_not_add_up_are_noticed_when_all_of_it_is_read(
    layout: Layout, store: StoreId
) -> None:
    path = make_store(layout, store)
    edit(path, "UPDATE meta SET bytes = bytes + 1")
    assert state_of(path, store) is FileState.SOUND
    assert state_of(path, store, deep=True) is FileState.MISCOUNTED


def test_a_row_of_a_cursor_that_does_not_exist_is_noticed_when_all_of_it_is_read(
    layout: Layout,
) -> None:
    file = open_store(layout)
    revision = file.meta.revision
    cursor = [CHANGE_SET_CURSOR, "c", b"config", b"", [[1, b"data"]], []]
    file.apply([AppliedBatch(revision, 6, [cursor])])
    file.close()
    assert state_of(file.path, deep=True) is FileState.SOUND
    edit(file.path, "DELETE FROM cursors")
    assert state_of(file.path) is FileState.SOUND
    assert state_of(file.path, deep=True) is FileState.MISCOUNTED


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM chunks WHERE offset = 3", "UPDATE chunks SET data = x'78797a' WHERE offset = 3"],
)
def test_a_large_value_that_is_not_what_was_stored_is_noticed_when_all_of_it_is_read(
    layout: Layout, damage: str
) -> None:
    path = layout.store(STREAM)
    path.parent.mkdir(parents=True)
    upload_id, value = bytes(16), b"abcdef"
    large = [upload_id, len(value), hashlib.sha256(value).digest(), zlib.crc32(value)]
    changes = [
        [CHANGE_PUT_CHUNK, upload_id, 0, value[:3], zlib.crc32(value[:3])],
        [CHANGE_PUT_CHUNK, upload_id, 3, value[3:], zlib.crc32(value)],
        [CHANGE_SET_MESSAGE, 1, large],
    ]
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([AppliedBatch(0, 1000, changes)], [])
    file.close()
    assert state_of(path, deep=True) is FileState.SOUND
    edit(path, damage)
    assert state_of(path) is FileState.SOUND
    assert state_of(path, deep=True) is FileState.DAMAGED


def test_a_folder_in_the_place_of_a_file_is_unreadable(layout: Layout) -> None:
    path = layout.store(STREAM)
    path.mkdir(parents=True)
    assert state_of(path) is FileState.UNREADABLE


# The walk
def folder_of(layout: Layout, store: StoreId = STREAM) -> FoundFolder:
    [found] = [
        folder for folder in walk_stores(layout) if any(one.store == store for one in folder.stores)
    ]
    return found


def test_nothing_is_found_where_there_is_nothing(layout: Layout) -> None:
    assert list(walk_stores(layout)) == []


def test_every_store_is_found_with_its_newest_generation_last(layout: Layout) -> None:
    stores = [StoreId("acme", StoreKind(1 + i % 2), f"x.{i}") for i in range(30)]
    stores.append(StoreId("umbrella", StoreKind.KV, "x.1"))
    for store in stores:
        make_store(layout, store, count=1)
    for generation in (2, 10):
        layout.store(stores[0], generation).write_bytes(b"")
    folders = list(walk_stores(layout))
    found = {one.store: one for folder in folders for one in folder.stores}
    assert set(found) == set(stores)
    assert found[stores[0]].generations == [layout.store(stores[0], n) for n in (1, 2, 10)]
    assert found[stores[0]].path == layout.store(stores[0], 10)
    assert not any(one.misplaced for one in found.values())
    done = [folder.done for folder in folders]
    assert done == sorted(done) and done[-1] == 1.0


def test_a_tenant_that_appears_during_a_walk_does_not_disturb_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = inspection._entries

    def entries_before_a_store_is_made(folder: Path) -> Iterator[os.DirEntry[str]]:
        yield from entries(folder)
        if not layout.store(STREAM).exists():
            make_store(layout)

    monkeypatch.setattr(inspection, "_entries", entries_before_a_store_is_made)
    assert list(walk_stores(layout)) == []
    assert folder_of(layout).done == 1.0


def test_a_file_in_the_wrong_folder_is_misplaced(layout: Layout, closed: Path) -> None:
    wrong = closed.parent.with_name("000")
    closed.parent.rename(wrong)
    [found] = folder_of(layout).stores
    assert found.misplaced and found.path == wrong / closed.name


def test_wals_drafts_and_strangers_are_told_apart(layout: Layout, closed: Path) -> None:
    folder = closed.parent
    lone = folder / "gone.stream.1.db-wal"
    stranger = folder / "notes.txt"
    old_wal = folder / closed.name.replace(".1.db", ".0.db-wal")
    drafts = [
        folder / f"{closed.name}.0abc{rest}" for rest in ("", "-wal", ".draft", ".image", ".part")
    ]
    temporary = folder / f"{closed.name}.0abc.4711-01234567.tmp"
    for each in (lone, stranger, old_wal, temporary, *drafts, folder / f"{closed.name}-wal"):
        each.write_bytes(b"")
    found = folder_of(layout)
    assert found.lone_wals == [lone]
    assert found.drafts == [(each, "0abc") for each in drafts]
    assert found.temporaries == [temporary]
    # There is no generation 0.
    assert sorted(found.strangers) == sorted([stranger, old_wal])


@pytest.mark.parametrize(
    "name", ["no tenant", "acme/zzz", "acme/00", "acme/000/stray", "acme/000/.nfs01"]
)
def test_what_is_no_folder_of_stores_is_a_stranger(layout: Layout, name: str) -> None:
    path = layout.root / "stores" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert [one for folder in walk_stores(layout) for one in folder.strangers] == [path]


# Locks and incarnations
def test_a_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    with holder(HOLD_LOCK, path) as pid:
        assert lock_holder(path) == pid
    assert lock_holder(path) is None


def make_life(layout: Layout, server: str, incarnation: str, state: FenceState) -> None:
    disk = Disk()
    disk.make_directory(layout.incarnation(server, incarnation))
    path = layout.fence(server, incarnation)
    if state is not FenceState.MISSING:
        fence.create_fence(disk, path)
    if state is FenceState.FENCED:
        fence.fence(disk, path)


def test_only_the_last_open_life_of_a_locked_server_runs(layout: Layout) -> None:
    lives = [
        ("s1", "01", FenceState.FENCED, False),
        ("s1", "02", FenceState.OPEN, False),
        ("s1", "03", FenceState.OPEN, True),
        ("s2", "01", FenceState.OPEN, False),
        ("s3", "01", FenceState.MISSING, False),
    ]
    for server, incarnation, state, _ in lives:
        make_life(layout, server, incarnation, state)
    with holder(HOLD_LOCK, layout.server("s1") / "lock"):
        found = list(incarnations(layout, Disk()))
    assert [(one.server, one.incarnation, one.fence, one.running) for one in found] == lives


# The file system
MOUNTS = """\
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
host:/x /srv nfs4 rw 0 0
host:/y /srv/with\\040space cifs rw 0 0
/dev/vdb /srv/local xfs rw 0 0
sshfs /srv/local/far fuse.sshfs rw 0 0
tmpfs /over tmpfs rw 0 0
memtable /over memtable rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "mount", "local"),
    [
        ("/home/data", Mount("ext4", "/"), True),
        ("/srv", Mount("nfs4", "/srv"), False),
        ("/srvant", Mount("ext4", "/"), True),
        ("/srv/with space/data", Mount("cifs", "/srv/with space"), False),
        ("/srv/local/data", Mount("xfs", "/srv/local"), True),
        ("/srv/local/far/data", Mount("fuse.sshfs", "/srv/local/far"), False),
        ("/over/data", Mount("memtable", "/over"), True),
    ],
)
def test_the_innermost_mount_counts(path: str, mount: Mount, local: bool) -> None:
    found = mount_in(MOUNTS.splitlines(), Path(path))
    assert (found, found.local) == (mount, local)


def test_an_unknown_file_system_is_not_local() -> None:
    assert not mount_in([], Path("/data")).local


def test_the_probes_leave_nothing_behind(tmp_path: Path) -> None:
    assert time_sync(tmp_path) > 0
    assert locks_exclude(tmp_path)
    assert list(tmp_path.iterdir()) == []
    room = room_of(tmp_path)
    assert 0 <= room.free_bytes <= room.size_bytes
    assert tmp_path.is_relative_to(mount_of(tmp_path).path or "/")
