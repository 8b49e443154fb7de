"""A store that turns out to be damaged while it is open is set aside alone, with all it
acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import apsw
import pytest

from holdfast.persist.jobs.point_in_time_restore import PointInTimeRestore
from holdfast.persist.shared_disk.withdrawing import Withdrawal
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.durable_files import DurableFiles
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.releasing import Releaser
from holdfast.persist.write_path.setting_aside import SettingAside
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import FencedError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.quarantine import quarantine, quarantined
from holdfast.shared_fs.disk.record_spool import RecordSpool
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_vfs import FaultyVfs, disk_with
from tests.support.opening_world import DISK, STREAM, Life, new_layout
from tests.support.stores import abandon, file_of, stream_id
from tests.support.write_path_parts import a_life, at_once, nothing

OTHER = stream_id("other")


class Waiting(Inbox):
    """What waits for the files of stores."""

    def __init__(self) -> None:
        super().__init__("s1")
        self.turned_away: dict[StoreId, Exception] = {}

    def turn_away(self, store: StoreId, error: Exception) -> None:
        self.turned_away[store] = error


class AllSynced:
    """Everything is synced at once, and has left."""

    async def settled(self, tick: int) -> None: ...


class Server:
    """A life with its log, its stores and what maintains them."""

    def __init__(self, root: Path, incarnation: str = "1", disk: Disk = DISK) -> None:
        self.life = Life(new_layout(root), incarnation, disk)
        life = a_life(
            self.life.layout,
            server=self.life.server,
            incarnation=incarnation,
            disk=disk,
            gate=self.life.gate,
            clock_ms=lambda: 5000,
        )
        self.open_stores = OpenStores()
        self.inbox = Waiting()
        leases = self.open_stores.leases
        leases.attach(self.inbox)
        progress = LogProgress()
        progress.synced_tick = 1 << 62
        self.setting_aside = SettingAside(
            life, self.open_stores, cast(Releaser, AllSynced()), self.withdraw
        )
        self._withdrawal = Withdrawal(life)
        self.files = DurableFiles(
            life,
            leases,
            progress,
            Materialiser(leases, progress, at_once, SpawnedTasks()),
            self.life._confirm,
        )
        self.checkpointer = Checkpointer(
            life,
            self.life.log,
            self.files,
            self.open_stores,
            progress,
            nothing,
            self.setting_aside.run_pass,
        )

    async def withdraw(self, store: Store, error: StoreDamagedError) -> bool:
        await self._withdrawal.withdraw(store, error)
        return False

    async def open(self, store: StoreId = STREAM, epoch: int = 1) -> Store:
        opened = await self.life.open(epoch, StoreState.CREATED, store)
        self.open_stores.opened(opened)
        return opened

    async def fill(self, store: Store) -> Path:
        """Write more than the cache holds and make it durable; return where."""
        self.append_much(store)
        await self.files.checkpoint([store])
        assert file_of(store).meta.revision == 1200
        assert store.oldest_segment is None
        return file_of(store).path

    def append_much(self, store: Store) -> None:
        for number in range(12):
            self.life.append(store, *(bytes([number]) * 900 for _ in range(100)))

    async def set_aside(self, *stores: Store) -> None:
        """Find out which stores are damaged, and set these aside."""
        await self.files.checkpoint(list(stores))
        await self.setting_aside.run_pass()

    def end(self) -> None:
        for store in self.open_stores.stores():
            abandon(store)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "LOG_SEGMENT_BYTES", 1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.end()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    with path.open("r+b") as file:
        file.seek(len(content) // 2)
        file.write(content[len(content) // 2 :][:1])


async def damaged(server: Server) -> tuple[Store, Path]:
    """A store of which a bit flipped in its open file, and everything was deleted then."""
    store = await server.open()
    path = await server.fill(store)
    flip_a_bit(path)
    server.life.trim(store)
    return store, path


async def test_a_damaged_store_does_not_pin_the_log_and_its_changes_are_kept(
    server: Server,
) -> None:
    store, path = await damaged(server)
    good = await server.open(OTHER)
    for _ in range(20):
        server.life.append(good, b"good")
    await server.checkpointer.run_pass(0.0)
    log = server.life.log
    assert log.oldest_segment > 13, "the segment with the trim may go"
    assert server.open_stores.find(store.id) is None
    assert isinstance(server.inbox.turned_away[store.id], StoreDamagedError)
    assert file_of(good).meta.revision > 0
    (folder,) = quarantined(DISK, server.life.layout, STREAM)
    assert sorted(each.name for each in folder.iterdir() if each.suffix != ".log") == [
        path.name,
        path.name + "-wal",
        "report.json",
    ]
    assert not path.exists()
    # Its own server and the next one refuse it, and never take it for a new one.
    server.life.dead_logs.refresh()
    assert server.life.dead_logs.records(STREAM)[-1].revision == 1201
    with pytest.raises(StoreDamagedError, match=r"see quarantine/acme/chat"):
        await server.life.open(1)
    server.end()
    server.life.fence()
    heir = Life(server.life.layout, "2")
    with pytest.raises(StoreDamagedError, match=r"see quarantine/acme/chat"):
        await heir.open(2)


async def test_one_that_was_never_durable_is_made_anew_from_what_was_kept(server: Server) -> None:
    store = await server.open()
    server.append_much(store)
    store.materialise(server.life.tick)
    file_of(store).checkpoint()
    flip_a_bit(file_of(store).path)
    server.life.trim(store)
    await server.set_aside(store)
    server.checkpointer.retire()
    assert server.life.log.oldest_segment == server.life.log.segment
    again = await server.open()
    assert again is not store
    assert (again.revision, again.last_seq, again.count) == (1201, 1200, 0)


@pytest.mark.parametrize("rewritten", [False, True])
async def test_a_file_put_back_is_brought_up_to_date_from_what_was_kept(
    server: Server, tmp_path: Path, rewritten: bool
) -> None:
    store = await server.open()
    path = await server.fill(store)
    content = path.read_bytes()
    flip_a_bit(path)
    server.life.append(store, b"later")
    server.life.trim(store)
    server.life.append(store, b"last")
    if rewritten:
        # The owner's memory has all that the log lacks.
        for segment in (tmp_path / "servers/s1/1/log").iterdir():
            if int(segment.stem) < server.life.log.segment:
                segment.unlink()
    await server.set_aside(store)
    assert server.open_stores.find(STREAM) is None
    path.write_bytes(content)
    server.end()
    server.life.fence()
    heir = Life(server.life.layout, "2")
    opened = await heir.open(2)
    assert (opened.revision, opened.last_seq, opened.count) == (1203, 1202, 1)
    assert [row[3] for row in file_of(opened).messages(1, None, 10)] == [b"last"]
    heir.close(opened)
    # What was kept is not applied again, nor to what came after it.
    third = Life(server.life.layout, "3")
    opened = await third.open(3)
    assert opened.revision == 1203
    third.close(opened)


async def test_an_older_file_put_back_is_refused_as_long_as_changes_in_between_are_missing(
    server: Server,
) -> None:
    store = await server.open()
    server.life.append(store, b"first")
    await server.files.checkpoint([store])
    path = file_of(store).path
    early = path.read_bytes()
    server.append_much(store)
    await server.files.checkpoint([store])
    server.checkpointer.retire()
    flip_a_bit(path)
    server.life.trim(store)
    await server.set_aside(store)
    path.write_bytes(early)
    with pytest.raises(StoreDamagedError, match="neither in its file nor in any log"):
        await server.life.open(2)


@pytest.mark.parametrize("error", [apsw.SQLITE_FULL, apsw.SQLITE_IOERR_WRITE])
async def test_a_disk_that_is_full_or_fails_sets_nothing_aside(
    tmp_path: Path, vfs: FaultyVfs, error: int
) -> None:
    server = Server(tmp_path, disk=disk_with(vfs))
    store = await server.open()
    server.life.append(store, b"one")
    store.materialise(server.life.tick)
    server.life.append(store, b"x" * 5000)
    vfs.fail(0, error, "write")
    for _ in range(3):
        await server.set_aside(store)
    assert vfs.failed
    assert server.open_stores.find(STREAM) is store
    assert server.open_stores.upkeep.damaged() == []
    vfs.heal()
    await server.files.checkpoint([store])
    assert file_of(store).meta.revision == 2
    server.end()


async def test_changes_that_cannot_be_applied_for_whatever_reason_cost_their_store_alone(
    server: Server,
) -> None:
    store, good = await server.open(), await server.open(OTHER)
    server.life.append(store, b"one")
    store.materialise(server.life.tick)
    # It can be packed, and SQLite has no number that large.
    store.begin()
    store.time = 1 << 63
    store.append_messages([b"two"])
    store.finish_tick(server.life.tick, server.life.log.segment)
    server.life.append(good, b"good")
    await server.set_aside(store, good)
    assert server.open_stores.find(STREAM) is None
    assert server.open_stores.find(OTHER) is good
    assert "cannot be applied: OverflowError" in str(server.inbox.turned_away[STREAM])


async def test_a_fenced_server_sets_nothing_aside(server: Server) -> None:
    store, path = await damaged(server)
    server.life.fence()
    with pytest.raises(StoreDamagedError):
        store.materialise(server.life.tick)
    with pytest.raises(FencedError):
        await server.setting_aside.run_pass()
    assert path.exists()
    assert quarantined(DISK, server.life.layout, STREAM) == []


def test_older_generations_leave_with_the_newest(tmp_path: Path) -> None:
    layout = new_layout(tmp_path)
    paths = [layout.store(STREAM, generation) for generation in (1, 2)]
    DISK.make_directory(paths[0].parent)
    for path in paths:
        StoreFile.create(path, STREAM, time=1).close()
    folder = quarantine(
        DISK, layout, STREAM, paths[1], reason="torn", time=5, server="s1", others=paths[:1]
    )
    assert layout.generations(DISK, STREAM) == []
    assert all((folder / path.name).exists() for path in paths)


async def test_a_restore_reads_what_was_kept(server: Server) -> None:
    await damaged(server)
    await server.checkpointer.run_pass(0.0)
    await server.set_aside(*server.open_stores.stores())
    server.checkpointer.retire()
    layout = server.life.layout
    manifests = Manifests(Bucket(MemoryBackend()))
    past_states = PointInTimeRestore(
        lambda: manifests,
        disk=DISK,
        layout=layout,
        incarnation="2",
        clock_ms=lambda: 5000,
        keep=KeepPolicy(),
    )
    with RecordSpool() as spool:
        records = past_states._records(STREAM, spool)
    assert [record.revision for record in records] == [1201]
