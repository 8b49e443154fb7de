"""A server whose mount shows what has been replaced serves nothing, from its start or from the
moment on when it finds out.

The mount is a Disk that reads as a network file system with a cache does, for a server of its own;
everything else is shipped, in one loop, on real files."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path

import pytest

from holdfast.coordinator.answering import parsing
from holdfast.persist.shared_disk import freshness, sealed_logs
from holdfast.protocol import frames
from holdfast.protocol.errors import StaleFileSystemError
from holdfast.protocol.limits import PROOF_ROUNDS
from holdfast.shared_fs.disk.disk import Disk, FileAttributes
from holdfast.shared_fs.disk.proof import ProofNumber, read_proof
from tests.support.cluster import until, values
from tests.support.world_in_loop import World, world_in_loop


class LaggingDisk(Disk):
    """A network file system's mount: shows logs as they were when it was told to lag behind."""

    def __init__(self) -> None:
        super().__init__(remote=True)
        self._names: dict[Path, list[str]] = {}
        self._segments: dict[Path, tuple[bytes, FileAttributes]] = {}

    def lag(self, log: Path) -> None:
        self._names[log] = super().names(log)
        for path in (log / name for name in self._names[log]):
            self._segments[path] = super().read(path), super().attributes(path)

    def catch_up(self) -> None:
        self._names.clear()
        self._segments.clear()

    def names(self, path: Path) -> list[str]:
        return self._names.get(path) or super().names(path)

    def read(self, path: Path) -> bytes:
        return self._segments[path][0] if path in self._segments else super().read(path)

    def attributes(self, path: Path) -> FileAttributes:
        return self._segments[path][1] if path in self._segments else super().attributes(path)


class CachingDisk(Disk):
    """Shows a file that must be read fresh as it was when it was first read, for a while."""

    def __init__(self, seconds: float, *, lies: bool = True) -> None:
        super().__init__()
        self.lies = lies
        self._seconds = seconds
        self._cached: dict[Path, tuple[float, bytes]] = {}

    def read_start(self, path: Path) -> bytes:
        content = super().read_start(path)
        if path.name not in ("fence", "proof"):
            return content
        now = time.monotonic()
        read_at, cached = self._cached.get(path, (now, content))
        if not self.lies or now - read_at > self._seconds:
            read_at, cached = now, content
        self._cached[path] = read_at, cached
        return cached


def number_of(world: World, server: str) -> ProofNumber:
    incarnation = world.servers[server].incarnation
    return read_proof(Disk(), world.layout.proof(server, incarnation))


async def refused(world: World, server: str, disk: Disk) -> StaleFileSystemError:
    """Start a server that must not come up; return what it ended with."""
    world.ends.pop(server, None)
    starting = asyncio.create_task(world.start(server, disk))
    await until(lambda: server in world.ends and world.ends[server].done(), "the end")
    starting.cancel()
    error = await world.ended(server)
    assert isinstance(error, StaleFileSystemError)
    return error


# At the start
async def test_a_mount_that_caches_for_a_second_is_refused_every_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world_in_loop(tmp_path) as world:
        for _ in range(5):
            error = await refused(world, "s1", CachingDisk(1.0))
            assert not world.servers["s1"].registered
            assert "--fence-read auto" in str(error)
            # Nothing of a server that never owned anything is left behind.
            assert Disk().names(world.layout.server("s1")) == ["lock"]
        assert caplog.text.count("fence.stale server=s1") == 5
        await world.start("s2")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])


async def test_a_true_mount_is_proven_with_all_rounds_before_the_server_registers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    async with world_in_loop(tmp_path) as world:
        await world.start("s1")
        assert number_of(world, "s1") == (1, PROOF_ROUNDS)
        proven, live = (
            caplog.text.index(event)
            for event in ("fence.proven server=s1", "coordinator.server_live server=s1")
        )
        assert proven < live


async def test_a_coordinator_that_writes_no_number_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As one of an earlier version.
    monkeypatch.delitem(parsing._CLUSTER_VERBS, "prove")
    async with world_in_loop(tmp_path) as world:
        await world.start("s1")
        assert "fence.unproven server=s1 reason=the coordinator writes no number" in caplog.text
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        assert await values(world.peer) == [b"1"]


async def test_a_lost_answer_is_asked_for_again_under_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.peers.coordination.CONTROL_TIMEOUT_SECONDS", 0.1)
    async with world_in_loop(tmp_path) as world:
        world.cut.add(("c", "s1"))
        starting = asyncio.create_task(world.start("s1"))
        await until(lambda: "s1" in world.servers and number_of(world, "s1") == (1, 1), "number 1")
        world.cut.clear()
        await starting
        assert number_of(world, "s1") == (1, PROOF_ROUNDS)


# Later
async def test_a_mount_that_begins_to_lie_ends_its_server_as_a_fence_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "PROOF_SECONDS", 0.01)
    async with world_in_loop(tmp_path) as world:
        disk = CachingDisk(60.0, lies=False)
        server = await world.start("s1", disk)
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        disk.lies = True
        error = await world.ended("s1")
        assert isinstance(error, StaleFileSystemError)
        assert not world.fence_is_open(server)
        assert re.search("fence.stale server=s1 .* term=1 number=1[1-9]", caplog.text)
        # What it acknowledged is with the next one, and the same server may come back.
        await world.start("s1")
        await world.peer.write("notes", 2, [frames.APPEND, b"2"])
        assert await values(world.peer) == [b"1", b"2"]


async def test_a_server_without_open_stores_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_in_loop(tmp_path) as world:
        monkeypatch.setattr(freshness, "PROOF_SECONDS", 0.01)
        asked = world.published("hf._.coord.prove")
        await world.start("s1")
        await world.start("s2")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        count = len(asked)
        await until(lambda: len(asked) > count + 20, "20 rounds")
        by_server = {server: number_of(world, server).number for server in ("s1", "s2")}
        owners = [name for name, number in by_server.items() if number > PROOF_ROUNDS]
        assert owners == ["s1"]


async def test_another_coordinator_is_proven_with_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "PROOF_SECONDS", 0.01)
    async with world_in_loop(tmp_path) as world:
        await world.start("s1")
        await world.replace_coordinator()
        # It is heard of with the first store that is opened.
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        await until(lambda: number_of(world, "s1") >= (2, 2 * PROOF_ROUNDS), "proof")


# At a takeover
async def dies(world: World, server: str) -> None:
    """End a server without a word to anybody, and have a client complain."""
    suspect = world.servers[server]
    world.ends[server].cancel()
    await asyncio.gather(world.ends[server], return_exceptions=True)
    fields = {"server": server, "incarnation": suspect.incarnation}
    await world.peer.bus.request(
        "hf.acme.coord.suspect", frames.encode_control(**fields), 5.0, "acme"
    )
    assert not world.fence_is_open(suspect)


@pytest.mark.parametrize("new_segment", [False, True])
async def test_a_takeover_waits_until_its_mount_shows_the_seal(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    new_segment: bool,
) -> None:
    if new_segment:
        monkeypatch.setattr("holdfast.shared_fs.disk.commit_log.LOG_SEGMENT_BYTES", 1)
    async with world_in_loop(tmp_path) as world:
        first = await world.start("s1")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        disk = LaggingDisk()
        await world.start("s2", disk)
        disk.lag(world.layout.log("s1", first.incarnation))
        await world.peer.write("notes", 2, [frames.APPEND, b"2"])
        asked = world.published("hf._.coord.seal")
        await dies(world, "s1")
        writing = asyncio.create_task(world.peer.write("notes", 3, [frames.APPEND, b"3"]))
        await until(lambda: len(asked) >= 3, "the third question")
        assert not writing.done()
        disk.catch_up()
        await writing
        assert await values(world.peer) == [b"1", b"2", b"3"]
        assert "log.late server=s2" in caplog.text


async def test_a_takeover_that_never_sees_the_seal_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_logs, "SEAL_SECONDS", 0.02)
    async with world_in_loop(tmp_path) as world:
        first = await world.start("s1")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        disk = LaggingDisk()
        await world.start("s2", disk)
        disk.lag(world.layout.log("s1", first.incarnation))
        await world.peer.write("notes", 2, [frames.APPEND, b"2"])
        await dies(world, "s1")
        with pytest.raises(StaleFileSystemError, match="--fence-read auto"):
            await world.peer.read("notes", [frames.HEAD])
        assert "log.stale server=s2" in caplog.text
        # The server goes on, and the next try may succeed.
        disk.catch_up()
        assert await values(world.peer) == [b"1", b"2"]


async def test_a_takeover_with_a_coordinator_that_seals_nothing_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As one of an earlier version.
    monkeypatch.delitem(parsing._CLUSTER_VERBS, "seal")
    monkeypatch.setattr(sealed_logs, "NETWORK_CACHE_SECONDS", 0.01)
    async with world_in_loop(tmp_path) as world:
        await world.start("s1")
        await world.peer.write("notes", 1, [frames.APPEND, b"1"])
        await world.start("s2", Disk(remote=True))
        await dies(world, "s1")
        assert await values(world.peer) == [b"1"]
        assert "log.unsealed server=s2" in caplog.text
