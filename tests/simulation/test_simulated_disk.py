"""The simulated disk: what is synced stays, what is not may go, and locks exclude."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.protocol.errors import (
    AlreadyRunningError,
    BusyError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_files import Operation, SimulatedFileSystem, Survival

_FOLDER = Path("/data/folder")
_STORE = StoreId("acme", int(StoreKind.STREAM), "s")
_SEEDS = range(30)


class _Hosts:
    """Disks on some file system, each a process on a host of its own; taken from SQLite's list of
    VFSs in the end."""

    def __init__(self) -> None:
        self._disks: list[HostDisk] = []

    def disk(self, files: SimulatedFileSystem, host: str) -> HostDisk:
        self._disks.append(HostDisk(files, host, f"{host}-{len(self._disks)}"))
        return self._disks[-1]

    def close(self) -> None:
        for disk in self._disks:
            disk.kill()
            disk.close()


@pytest.fixture
def hosts() -> Iterator[_Hosts]:
    made = _Hosts()
    yield made
    made.close()


def _files(seed: int) -> SimulatedFileSystem:
    return SimulatedFileSystem(random.Random(seed))


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_power_cut_keeps_what_was_synced_and_a_part_of_the_rest(seed: int, hosts: _Hosts) -> None:
    files = _files(seed)
    disk = hosts.disk(files, "h")
    disk.make_directory(_FOLDER)
    file = disk.open_append(_FOLDER / "log")
    disk.sync_directory(_FOLDER)
    file.write(b"a" * 700)
    file.sync()
    file.write(b"b" * 2000)
    disk.kill()
    files.power_cut({"h"})
    content = hosts.disk(files, "h").read(_FOLDER / "log")
    assert content[:700] == b"a" * 700
    assert len(content) <= 2700
    assert set(content[700:]) <= {ord("b"), 0}


def test_power_cuts_lose_all_of_it_or_nothing_or_some(hosts: _Hosts) -> None:
    left = set()
    for seed in range(60):
        files = _files(seed)
        disk = hosts.disk(files, "h")
        disk.make_directory(_FOLDER)
        file = disk.open_append(_FOLDER / "log")
        disk.sync_directory(_FOLDER)
        file.write(b"b" * 2048)
        disk.kill()
        files.power_cut({"h"})
        content = hosts.disk(files, "h").read(_FOLDER / "log")
        left.add((content.count(b"b"), len(content)))
    assert {(0, 0), (2048, 2048), (0, 2048)} <= left
    assert any(0 < count < size for count, size in left), "a hole of zeros"


def test_a_new_name_survives_only_once_its_directory_is_synced(hosts: _Hosts) -> None:
    found = set()
    for seed in range(40):
        files = _files(seed)
        disk = hosts.disk(files, "h")
        disk.make_directory(_FOLDER)
        disk.open_append(_FOLDER / "synced")
        disk.sync_directory(_FOLDER)
        disk.open_append(_FOLDER / "other").sync()
        disk.kill()
        files.power_cut({"h"})
        names = hosts.disk(files, "h").names(_FOLDER)
        assert "synced" in names
        found.add("other" in names)
    assert found == {True, False}


@pytest.mark.parametrize("seed", _SEEDS)
def test_replacing_and_overwriting_durably_survives(seed: int, hosts: _Hosts) -> None:
    files = _files(seed)
    disk = hosts.disk(files, "h")
    disk.make_directory(_FOLDER)
    disk.write_durably(_FOLDER / "f", b"old")
    disk.write_durably(_FOLDER / "f", b"new")
    disk.overwrite_durably(_FOLDER / "f", b"N")
    disk.kill()
    files.power_cut({"h"})
    after = hosts.disk(files, "h")
    assert after.read(_FOLDER / "f") == b"New"
    assert after.names(_FOLDER) == ["f"]


@pytest.mark.parametrize("seed", _SEEDS)
def test_the_power_cut_of_a_host_takes_nothing_that_another_has_seen(
    seed: int, hosts: _Hosts
) -> None:
    files = _files(seed)
    writer, reader = hosts.disk(files, "writer"), hosts.disk(files, "reader")
    writer.make_directory(_FOLDER)
    writer.open_append(_FOLDER / "f").write(b"seen")
    assert reader.read(_FOLDER / "f") == b"seen"
    writer.kill()
    files.power_cut({"writer"})
    assert reader.read(_FOLDER / "f") == b"seen"


def test_a_killed_process_leaves_its_writes_and_no_locks(hosts: _Hosts) -> None:
    files = _files(1)
    disk, other = hosts.disk(files, "h"), hosts.disk(files, "i")
    disk.make_directory(_FOLDER)
    file = disk.open_append(_FOLDER / "f")
    file.write(b"x")
    disk.lock(_FOLDER / "lock", "it")
    with pytest.raises(AlreadyRunningError):
        other.lock(_FOLDER / "lock", "it")
    disk.kill()
    with pytest.raises(StorageFailedError):
        file.write(b"y")
    assert other.read(_FOLDER / "f") == b"x"
    other.lock(_FOLDER / "lock", "it").release()
    hosts.disk(files, "h").lock(_FOLDER / "lock", "it").release()


def test_what_the_observer_raises_happens_instead(hosts: _Hosts) -> None:
    seen: list[Operation] = []

    def observe(operation: Operation) -> None:
        seen.append(operation)
        if operation.kind == "sync":
            raise OSError(errno.EIO, "the disk is broken")

    files = SimulatedFileSystem(random.Random(1), observe)
    disk = hosts.disk(files, "h")
    disk.make_directory(_FOLDER)
    file = disk.open_append(_FOLDER / "f")
    file.write(b"abc")
    with pytest.raises(StorageFailedError):
        file.sync()
    assert seen[-2:] == [
        Operation("h", "h-0", "write", str(_FOLDER / "f"), 3),
        Operation("h", "h-0", "sync", str(_FOLDER / "f")),
    ]


# --- SQLite --------------------------------------------------------------------------------------
def _create(disk: Disk) -> StoreFile:
    disk.make_directory(_FOLDER)
    return StoreFile.create(_FOLDER / "s.db", _STORE, time=1, disk=disk)


def _append(file: StoreFile, value: bytes) -> None:
    revision = file.meta.revision
    file.apply([AppliedBatch(revision, 1, [[1, file.meta.last_seq + 1, value]])])


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_checkpointed_store_survives_and_holds_a_prefix_of_what_came_after(
    seed: int, hosts: _Hosts
) -> None:
    files = _files(seed)
    disk = hosts.disk(files, "h")
    file = _create(disk)
    for number in range(5):
        _append(file, b"%d" % number * 300)
    file.checkpoint()
    for number in range(5, 10):
        _append(file, b"%d" % number * 300)
    disk.kill()
    files.power_cut({"h"})
    opened = StoreFile.open(_FOLDER / "s.db", _STORE, disk=hosts.disk(files, "h"))
    opened.quick_check()
    values = [row[3] for row in opened.messages(1, None, 100)]
    assert 5 <= len(values) <= 10
    assert values == [b"%d" % number * 300 for number in range(len(values))]
    opened.close()


def test_an_open_store_file_is_busy_until_its_process_dies(hosts: _Hosts) -> None:
    files = _files(1)
    disk, other = hosts.disk(files, "h"), hosts.disk(files, "i")
    file = _create(disk)
    _append(file, b"x")
    with pytest.raises(BusyError):
        StoreFile.open(_FOLDER / "s.db", _STORE, disk=other)
    disk.kill()
    opened = StoreFile.open(_FOLDER / "s.db", _STORE, disk=other)
    assert opened.was_left_open
    assert opened.meta.revision == 1
    opened.close()
    file.abandon()


def test_a_full_disk_is_reported_and_the_store_goes_on_afterwards(hosts: _Hosts) -> None:
    full = False

    def observe(operation: Operation) -> None:
        if full and operation.kind == "write":
            raise OSError(errno.ENOSPC, "full")

    files = SimulatedFileSystem(random.Random(1), observe)
    file = _create(hosts.disk(files, "h"))
    full = True
    with pytest.raises(StorageFailedError) as caught:
        _append(file, b"x" * 5000)
    assert isinstance(caught.value.__cause__, apsw.FullError)
    full = False
    _append(file, b"y")
    assert [row[3] for row in file.messages(1, None, 10)] == [b"y"]
    file.close()


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_flipped_bit_is_found_where_its_page_is_read_also_in_a_copy(
    seed: int, hosts: _Hosts
) -> None:
    files = _files(seed)
    disk = hosts.disk(files, "h")
    disk.make_directory(_FOLDER)
    file = _create(disk)
    _append(file, b"x" * 10_000)
    file.checkpoint()
    path, chance = file.path, random.Random(seed)
    page = chance.randrange(len(disk.read(path)) // PAGE_BYTES)
    before = disk.read(path)
    assert files.flip_bit(path, page * PAGE_BYTES, PAGE_BYTES, chance)
    after = disk.read(path)
    assert sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True)) == 1
    # It is on the disk, whatever happens to those who have the file open.
    disk.kill()
    files.power_cut({"h"}, file_server=True, survival=Survival.ALL)
    other = hosts.disk(files, "g")
    assert other.read(path) == after
    other.write_durably(_FOLDER / "copy.db", after)
    for each in (path, _FOLDER / "copy.db"):
        with pytest.raises(StoreDamagedError, match="checksum is wrong"):
            StoreFile.open(each, _STORE, disk=other).image()
