"""The lives and deaths of a persist server process: killed, fenced, stopped, started wrongly."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.client import connect
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import fence
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.cluster import (
    DEADLINE_SECONDS,
    SUBJECTS,
    TENANT,
    Peer,
    Process,
    all_files,
    serving,
)
from tests.support.nats_server import NatsServer
from tests.support.waiting import until

WRITERS = 12


def only_line(process: Process) -> str:
    """What a process that could not run said: one line besides its log, and no traceback."""
    assert "Traceback" not in process.log
    (line,) = [line for line in process.log.splitlines() if line.startswith("holdfast persist: ")]
    return line


async def write_until(peer: Peer, number: int, stop: asyncio.Event) -> list[frames.Outcome]:
    """Append to stream `w.<number>`, one group at a time, and return every outcome in order."""
    outcomes: list[frames.Outcome] = []
    while not stop.is_set():
        counter = len(outcomes) + 1
        operation = [frames.APPEND, b"%d" % counter]
        writer = b"writer-%d" % number
        outcomes.append(await peer.write(f"w.{number}", counter, operation, writer=writer))
    return outcomes


async def check_all(peer: Peer, written: list[list[frames.Outcome]]) -> None:
    """Every acknowledged append is there once, and a retry of the last one is answered alike."""
    for number, outcomes in enumerate(written):
        (head,) = await peer.read(f"w.{number}", [frames.HEAD])
        assert head[2] == len(outcomes)
        ((rows, after),) = await peer.read(f"w.{number}", [frames.GET_MESSAGES])
        assert after is None
        assert [row[3] for row in rows] == [b"%d" % (n + 1) for n in range(len(outcomes))]
        assert [row[:2] for row in rows] == [outcome.results[0] for outcome in outcomes]
        again = await peer.write(
            f"w.{number}",
            len(outcomes),
            [frames.APPEND, b"%d" % len(outcomes)],
            writer=b"writer-%d" % number,
        )
        assert again == outcomes[-1]


async def test_every_acknowledged_write_outlives_kills_under_load(tmp_path: Path) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        stop = asyncio.Event()
        writing = [asyncio.create_task(write_until(peer, n, stop)) for n in range(WRITERS)]
        for _ in range(2):
            await peer.live()
            await asyncio.sleep(0.3)
            server.kill()
            server = processes.start_persist("s1")
        await peer.live()
        stop.set()
        written = await asyncio.gather(*writing)
        assert all(written)
        await check_all(peer, written)
        assert server.stop() == 0


async def test_a_stopped_server_leaves_files_only_and_a_new_cluster_has_everything(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        stop = asyncio.Event()
        writing = [asyncio.create_task(write_until(peer, n, stop)) for n in range(WRITERS)]
        await asyncio.sleep(0.3)
        stop.set()
        written = await asyncio.gather(*writing)
        await peer.write("settings", 1, [frames.SET_ENTRY, "k", b"v"], kind=StoreKind.KV)
        assert server.stop() == 0
        assert processes.incarnations("s1") == []
        assert all_files(processes, "w.0") == ["w.0.stream.1.db"]
        # Each file is whole in itself.
        store = StoreId(TENANT, StoreKind.KV, "settings")
        file = StoreFile.open(processes.layout.store(store), store)
        assert file.meta.count == 1
        file.close()
        assert processes.coordinator.stop() == 0
        processes.start("coordinator", "coordinator")
        processes.start_persist("s2")
        await check_all(peer, written)
        (entry,) = await peer.read("settings", [frames.GET_ENTRY, "k"], kind=StoreKind.KV)
        assert entry[3] == b"v"


async def test_idle_stores_are_closed_and_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, "--idle-close-seconds", "0.3") as (processes, server, peer):
        first = await peer.write("idle", 1, [frames.APPEND, b"v"])
        await peer.read("idle", [frames.HEAD])
        path = processes.layout.store(StoreId(TENANT, StoreKind.STREAM, "idle"))
        descriptors = Path(f"/proc/{server.pid}/fd")

        def closed() -> bool:
            held = (each.readlink() for each in descriptors.iterdir() if each.is_symlink())
            return path.exists() and not any(str(each).startswith(str(path)) for each in held)

        await until(closed, "the store's file is closed")
        assert all_files(processes, "idle") == [path.name]
        assert await peer.write("idle", 1, [frames.APPEND, b"v"]) == first
        assert (await peer.write("idle", 2, [frames.APPEND, b"v"])).results == [[2, 2]]


async def test_of_two_processes_with_one_name_the_second_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        second = processes.start_persist("s1")
        assert await asyncio.to_thread(second.wait) == 1
        assert "server 's1' is already running" in only_line(second)
        assert server.running
        assert len(processes.incarnations("s1")) == 1
        assert (await peer.write("a", 1, [frames.APPEND, b"v"])).results == [[1, 1]]


@pytest.mark.parametrize("what", ["write", "read", "retry"])
async def test_a_server_that_finds_its_fence_answers_nothing_more_and_ends(
    tmp_path: Path, what: str
) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        await peer.write("a", 1, [frames.APPEND, b"v"])
        heard: list[bytes] = []
        store = StoreId(TENANT, StoreKind.STREAM, "a")
        await peer.bus.subscribe(
            SUBJECTS.changes(store), lambda message: heard.append(message.payload)
        )
        await peer.bus.flush()
        (incarnation,) = processes.incarnations("s1")
        fence(Disk(), processes.layout.fence("s1", incarnation))
        group = {
            "write": (1, "a", 2, 2, 0, [[frames.APPEND, b"w"]]),
            "read": (1, "a", 0, 0, 0, [[frames.HEAD]]),
            "retry": (1, "a", 1, 1, 0, [[frames.APPEND, b"v"]]),
        }[what]
        with pytest.raises((BusTimeoutError, NoRespondersError)):
            await peer.group(group, timeout_seconds=3.0)
        assert await asyncio.to_thread(server.wait) == 1
        assert "has been fenced" in only_line(server)
        assert heard == []
        # Its next life takes the same group: stored once, whether or not it had reached the log.
        processes.start_persist("s1")
        if what == "write":
            assert (await peer.write("a", 2, [frames.APPEND, b"w"])).results == [[2, 2]]
        else:
            assert (await peer.write("a", 1, [frames.APPEND, b"v"])).results == [[1, 1]]


async def test_writes_wait_for_a_coordinator_that_is_away_and_open_stores_do_not(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (processes, _, peer):
        await peer.write("open", 1, [frames.APPEND, b"v"])
        processes.coordinator.kill()
        outcome = await peer.group((1, "open", 2, 2, 0, [[frames.APPEND, b"v"]]))
        assert outcome.results == [[2, 2]]
        waiting = asyncio.create_task(peer.group((1, "closed", 1, 1, 0, [[frames.APPEND, b"v"]])))
        outcome = await peer.group((1, "open", 3, 3, 0, [[frames.APPEND, b"v"]]))
        assert not waiting.done()
        processes.start("coordinator", "coordinator")
        outcome = await waiting
        assert outcome.results == [[1, 1]]


# Starting wrongly
def file_in_the_way(data: Path) -> None:
    data.write_text("x")


def photos(data: Path) -> None:
    (data / "photos").mkdir(parents=True)


def later_version(data: Path) -> None:
    data.mkdir()
    (data / "FORMAT").write_text("holdfast shared file system, format 7\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (photos, "photos"),
        (later_version, "upgrade holdfast"),
        (file_in_the_way, "the file system refused"),
    ],
)
def test_a_folder_that_is_not_its_own_is_refused_in_one_line(
    tmp_path: Path, nats: NatsServer, spoil: Callable[[Path], None], said: str
) -> None:
    data = tmp_path / "other"
    spoil(data)
    with starting(tmp_path, "--data", str(data), "--nats", nats.url) as server:
        assert server.wait() == 1
        assert said in only_line(server)


def test_wrong_usage_ends_with_2(tmp_path: Path, nats: NatsServer) -> None:
    data = ("--data", str(tmp_path / "data"), "--nats", nats.url)
    for wrong in ("--name=a.b", "--durability=stored", "--no-such", "--prefix=a b"):
        with starting(tmp_path, *data, wrong) as server:
            assert server.wait() == 2
            assert "Traceback" not in server.log


def test_a_nats_that_is_not_there_is_named(tmp_path: Path) -> None:
    url = "nats://127.0.0.1:1"
    with starting(tmp_path, "--data", str(tmp_path / "data"), "--nats", url) as server:
        assert server.wait() == 1
        assert url in only_line(server)


def starting(tmp_path: Path, *options: str) -> Process:
    """Start a server without a cluster, to be ended with the body."""
    return Process("holdfast.persist.__main__", ["--name", "s1", *options], tmp_path / "log")


async def test_a_damaged_store_is_reported_and_the_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as (processes, server, peer):
        for name in ("bad", "good"):
            await peer.write(name, 1, [frames.APPEND, b"v"])
        assert server.stop() == 0
        path = processes.layout.store(StoreId(TENANT, StoreKind.STREAM, "bad"))
        path.write_bytes(b"")
        processes.start_persist("s1")
        assert (await peer.write("good", 2, [frames.APPEND, b"v"])).results == [[2, 2]]
        owner = await peer.resolve("bad")
        reply = await peer.ask(
            frames.encode_request(b"peer", [(1, "bad", 0, 0, 0, [[frames.HEAD]])]), server=owner
        )
        assert reply[0][1:3] == [1, "store_damaged"]
        assert "quarantine" in json.dumps(reply[0][3])
        # Nor does a write make a new store in its place.
        reply = await peer.ask(
            frames.encode_request(b"peer", [(1, "bad", 2, 2, 0, [[frames.APPEND, b"v"]])])
        )
        assert reply[0][1:3] == [1, "store_damaged"]


async def test_a_store_that_was_only_read_leaves_nothing_with_server_and_coordinator(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, "--idle-close-seconds", "0.2") as (processes, server, _):
        async with connect(processes.nats.url, tenant=TENANT) as client:
            for name in ("nosuch", "nothing"):
                assert await client.stream(name).get(1) is None
            assert [store async for store in client.stores()] == []
            async with asyncio.timeout(DEADLINE_SECONDS):
                while any(each.assigned_stores for each in await client.servers()):
                    await asyncio.sleep(0.05)
            assert (await client.stream("nosuch").append(b"1")).seq == 1
            assert [store.name async for store in client.stores()] == ["nosuch"]
        assert server.stop() == 0
        processes.coordinator.stop()
        with closing(sqlite3.connect(processes.layout.coordinator / "state.db")) as state:
            assert state.execute("SELECT name FROM stores").fetchall() == [("nosuch",)]
