"""Snapshots and cold stores with real processes: what leaves the file system comes back, whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.protocol import frames
from holdfast.protocol.control import ServerInfo
from holdfast.protocol.errors import HoldfastError, StoreDamagedError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from tests.support.cluster import (
    DEADLINE_SECONDS,
    SUBJECTS,
    TENANT,
    Peer,
    Process,
    Processes,
    all_files,
    connected_peer,
    refusal,
    running_processes,
)
from tests.support.present import present
from tests.support.waiting import eventually, until

#: Everything as soon as it can be.
EAGER = ["--idle-close-seconds", "0.1", "--snapshot-seconds", "0.1", "--cold-after-seconds", "0.5"]
#: Closed and snapshotted at once; files stay.
WARM = [*EAGER[:4], "--cold-after-seconds", "86400"]


class World:
    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self.folder = folder
        self.url = f"file://{folder}"
        self.manifests = Manifests(open_bucket(self.url))

    def start(self, name: str = "s1", *options: str) -> Process:
        return self.processes.start_persist(name, "--bucket", self.url, *(options or EAGER))

    def newest(self, name: str, kind: StoreKind = StoreKind.STREAM) -> SnapshotVersion | None:
        entry = self.manifests.find(StoreId(TENANT, kind, name))
        return entry.newest if entry is not None else None

    async def cold(self, name: str, kind: StoreKind = StoreKind.STREAM) -> None:
        """Return once the store is in the bucket alone."""

        def is_cold() -> bool:
            return not all_files(self.processes, name, kind) and bool(self.newest(name, kind))

        await until(is_cold, f"{name} is cold")

    async def snapshotted(self, name: str, revision: int) -> None:
        def is_there() -> bool:
            newest = self.newest(name)
            return newest is not None and newest.revision >= revision

        await until(is_there, f"{name} is in the bucket at revision {revision}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_processes(tmp_path) as processes:
        yield World(processes, tmp_path / "bucket")


async def append(peer: Peer, name: str, counter: int, *texts: bytes) -> None:
    await peer.write(name, counter, *([frames.APPEND, text] for text in texts))


async def messages(peer: Peer, name: str) -> list[bytes]:
    rows = await peer.read(name, [frames.GET_MESSAGES, 1, None, None, None])
    return [row[3] for row in rows[0][0]]


@asynccontextmanager
async def served(world: World, *options: str) -> AsyncIterator[tuple[Peer, Process]]:
    """Run one persist server with a bucket around the body."""
    server = world.start("s1", *options)
    try:
        async with connected_peer(world.processes) as peer:
            await peer.live()
            yield peer, server
    except BaseException:
        print(server.log[-4000:])
        raise


async def test_a_write_to_a_cold_store_brings_its_file_back_and_it_goes_cold_again(
    world: World,
) -> None:
    async with served(world) as (peer, _):
        await append(peer, "notes", 1, b"one")
        await world.cold("notes")
        first = world.newest("notes")
        acks = await peer.write("notes", 2, [frames.APPEND, b"two"])
        assert acks.results == [[2, 2]]
        assert all_files(world.processes, "notes")
        await world.snapshotted("notes", 2)
        await world.cold("notes")
        assert await messages(peer, "notes") == [b"one", b"two"]
        # What was answered before it was cold is answered alike.
        again = await peer.write("notes", 2, [frames.APPEND, b"two"])
        assert again.results == acks.results
        entry = present(world.manifests.find(StoreId(TENANT, StoreKind.STREAM, "notes")))
        assert entry.versions[-1] == first
        assert len(entry.versions) == 2


async def test_a_kv_goes_cold_and_comes_back_too(world: World) -> None:
    async with served(world) as (peer, _):
        kv = StoreKind.KV
        await peer.write("settings", 1, [frames.SET_ENTRY, "theme", b"dark"], kind=kv)
        await world.cold("settings", kv)
        assert (await peer.read("settings", [frames.GET_ENTRY, "theme"], kind=kv))[0][3] == b"dark"
        assert all_files(world.processes, "settings", kv) == [], "a read needs no file"
        await peer.write("settings", 2, [frames.SET_ENTRY, "theme", b"light"], kind=kv)
        assert (await peer.read("settings", [frames.GET_ENTRY, "theme"], kind=kv))[0][3] == b"light"
        await world.cold("settings", kv)
        assert (await peer.read("settings", [frames.GET_ENTRY, "theme"], kind=kv))[0][3] == b"light"


async def test_many_tiny_stores_share_few_objects(world: World) -> None:
    async with served(world) as (peer, _):
        names = [f"s.{number}" for number in range(100)]
        await asyncio.gather(*(append(peer, name, 1, name.encode()) for name in names))
        for name in names:
            await world.cold(name)
        keys = {version.key for name in names if (version := world.newest(name)) is not None}
        assert len(keys) < 30
        found = await asyncio.gather(*(messages(peer, name) for name in names))
        assert found == [[name.encode()] for name in names]


async def test_a_killed_server_s_cold_stores_are_served_by_another(world: World) -> None:
    async with served(world) as (peer, server):
        await append(peer, "notes", 1, b"one")
        await world.cold("notes")
        # Restored, written, and not yet known to be hot.
        await peer.write("notes", 2, [frames.APPEND, b"two"])
        other = world.start("s2")
        server.kill()
        assert await messages(peer, "notes") == [b"one", b"two"]
        await peer.write("notes", 3, [frames.APPEND, b"three"])
        await world.snapshotted("notes", 3)
        await world.cold("notes")
        assert await messages(peer, "notes") == [b"one", b"two", b"three"]
        assert other.stop() == 0


async def test_a_restored_file_that_is_lost_after_a_write_is_never_replaced_by_the_snapshot(
    world: World,
) -> None:
    async with served(world) as (peer, server):
        await append(peer, "notes", 1, b"one")
        await world.cold("notes")
        await peer.write("notes", 2, [frames.APPEND, b"two"])
        # A clean stop: everything is in the file, the log is gone, and the store is hot.
        assert server.stop() == 0
        (name,) = all_files(world.processes, "notes")
        store = StoreId(TENANT, StoreKind.STREAM, "notes")
        (world.processes.layout.store(store).parent / name).unlink()
        other = world.start("s2", *WARM)
        error = await refusal(peer.read("notes", [frames.HEAD]))
        assert isinstance(error, StoreDamagedError)
        assert "missing" in str(error)
        assert other.stop() == 0


async def test_hot_service_goes_on_while_the_bucket_is_away_and_nothing_is_evicted(
    world: World,
) -> None:
    async with served(world) as (peer, server):
        await append(peer, "cold", 1, b"one")
        await world.cold("cold")
        away = world.folder.with_name("away")
        world.folder.rename(away)
        world.folder.write_text("no folder")
        for number in range(20):
            await append(peer, f"hot.{number}", 1, b"one")
        await until(lambda: "tier.bucket_away" in server.log, "the bucket is missed")
        for number in range(20):
            assert await messages(peer, f"hot.{number}") == [b"one"]
            assert all_files(world.processes, f"hot.{number}")
        # A cold store is refused for now, and is no empty one.
        with pytest.raises(HoldfastError):
            await peer.group((StoreKind.STREAM, "cold", 0, 0, 0, [[frames.HEAD]]))
        await eventually(lambda: backlog(peer), "the backlog is told")
        world.folder.unlink()
        away.rename(world.folder)
        for number in range(20):
            await world.cold(f"hot.{number}")
            assert await messages(peer, f"hot.{number}") == [b"one"]
        assert await messages(peer, "cold") == [b"one"]
        while await backlog(peer):
            await asyncio.sleep(0.05)


async def backlog(peer: Peer) -> int:
    """What `holdfast servers` shows of s1."""
    answer = await peer.bus.request(
        SUBJECTS.coordinator(TENANT, "servers"), encode_control(), 2.0, TENANT
    )
    rows = decode_control(answer)["servers"]
    return ServerInfo(*rows[0]).snapshot_backlog


async def test_an_open_store_that_changes_much_is_snapshotted_as_it_grows(world: World) -> None:
    async with served(world, "--snapshot-seconds", "0.2", "--idle-close-seconds", "3600") as (
        peer,
        _,
    ):
        value = b"x" * 50_000
        counter = 0
        while counter < 40:
            counter += 1
            await append(peer, "grows", counter, value)
        await world.snapshotted("grows", 20)
        assert all_files(world.processes, "grows")


async def test_a_coordinator_that_lost_its_state_finds_the_cold_stores_in_the_bucket(
    world: World,
) -> None:
    async with served(world) as (peer, server):
        await append(peer, "notes", 1, b"one")
        await append(peer, "other", 1, b"one")
        await world.cold("notes")
        await world.cold("other")
        assert server.stop() == 0
        processes = world.processes
        processes.coordinator.kill()
        for path in processes.layout.coordinator.glob("state.db*"):
            path.unlink()
        # It does not know the bucket, so its servers look there.
        coordinator = processes.start("coordinator", "coordinator")
        second = world.start()
        assert await messages(peer, "notes") == [b"one"]
        await peer.write("notes", 2, [frames.APPEND, b"two"])
        assert await messages(peer, "notes") == [b"one", b"two"]
        assert second.stop() == 0
        assert coordinator.stop() == 0
        processes.start("coordinator", "coordinator", "--bucket", world.url)
        third = world.start()
        assert await messages(peer, "other") == [b"one"]
        assert await messages(peer, "notes") == [b"one", b"two"]
        await world.cold("notes")
        assert third.stop() == 0


async def test_a_server_without_the_bucket_refuses_a_cold_store(world: World) -> None:
    async with served(world) as (peer, server):
        await append(peer, "notes", 1, b"one")
        await world.cold("notes")
        assert server.stop() == 0
        other = world.processes.start_persist("s2")
        await peer.live()
        error = await refusal(peer.read("notes", [frames.HEAD]))
        assert "no bucket" in str(error)
        assert other.stop() == 0


async def test_a_damaged_snapshot_keeps_the_file_and_is_made_anew(world: World) -> None:
    async with served(world, *EAGER[:4], "--cold-after-seconds", "4") as (peer, server):
        await append(peer, "notes", 1, b"one")
        await world.snapshotted("notes", 1)
        version = present(world.newest("notes"))
        bucket = world.manifests.bucket
        bucket.delete(version.key)
        bucket.put_new(version.key, b"x" * version.length)
        await world.cold("notes")
        assert "store.snapshot_damaged" in server.log
        assert await messages(peer, "notes") == [b"one"]


async def test_hundreds_of_cold_stores_open_at_once_and_hot_ones_go_on(world: World) -> None:
    names = [f"s.{number}" for number in range(500)]
    async with served(world) as (peer, _):
        # The last of so many waits for all others: trying again would only make more of them.
        peer.try_seconds = DEADLINE_SECONDS
        for start in range(0, len(names), 100):
            await asyncio.gather(
                *(append(peer, name, 1, name.encode()) for name in names[start : start + 100])
            )

        def all_cold() -> bool:
            stores = world.processes.data / "stores"
            return not any(stores.rglob("*.db")) and len(list(world.manifests.entries())) >= len(
                names
            )

        await until(all_cold, "all stores are cold")
        await append(peer, "hot", 1, b"1")
        reading = asyncio.gather(*(messages(peer, name) for name in names))
        written, between = 1, 0
        while not reading.done():
            written += 1
            await append(peer, "hot", written, b"%d" % written)
            between += not reading.done()
        assert await reading == [[name.encode()] for name in names]
        assert between, "no append was answered before the last cold store was read"
