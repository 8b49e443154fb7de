"""Ephemeral stores on real servers that are killed, stopped and drained."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from holdfast.client import Change, ChangeKind, Durability, Stream, connect
from tests.support.cluster import DEADLINE_SECONDS
from tests.support.cluster_in_loop import cluster_with_client, pid_of
from tests.support.local_disks import LocalDisks
from tests.support.nats_server import running_nats_server
from tests.support.waiting import until

#: In every value, to be looked for where none may be.
MARK = b"zq7secret"


class Follower:
    """What one follower of a stream was told, since the last reset."""

    def __init__(self) -> None:
        self.resets = 0
        self.values: dict[int, bytes] = {}
        self.revisions: list[int] = []

    async def run(self, stream: Stream) -> None:
        async with stream.subscribe(start_seq=1) as changes:
            async for change in changes:
                self.take(change)

    def take(self, change: Change) -> None:
        if change.kind is ChangeKind.RESET:
            self.resets += 1
            self.values.clear()
            return
        assert not self.revisions or change.revision > self.revisions[-1], "told twice"
        self.revisions.append(change.revision)
        if change.message is not None:
            assert change.message.seq not in self.values
            self.values[change.message.seq] = bytes(change.message.value)


def files_with(directory: Path, what: bytes) -> list[str]:
    return [
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and what in path.read_bytes()
    ]


async def appended(stream: Stream, numbers: range) -> dict[int, bytes]:
    """Append, and return what was acknowledged by its seq."""
    acked = {}
    for number in numbers:
        value = MARK + b"%d" % number
        ack = await stream.append(value)
        assert ack.durability is Durability.MEMORY
        assert ack.seq is not None
        acked[ack.seq] = value
    return acked


async def test_a_killed_owner_takes_the_content_along_and_followers_are_told_reset(
    tmp_path: Path,
) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        stream, kv = client.stream("cursors"), client.kv("presence")
        await stream.configure(ephemeral=True, description="who is where")
        await kv.configure(ephemeral=True)
        follower = Follower()
        following = asyncio.ensure_future(follower.run(stream))
        seen: dict[int, bytes] = {}
        for life in range(3):
            acked = await appended(stream, range(life * 100, life * 100 + 20))
            assert not seen.keys() & acked.keys(), "a seq was given twice"
            seen |= acked
            await kv.set(f"user{life}", MARK)
            assert [entry.key async for entry in kv.get_all()] == [f"user{life}"]
            await until(lambda acked=acked: follower.values == acked, "followed")
            assert follower.resets == life
            assert not files_with(tmp_path / "data", MARK)
            owners = {(await stream.head()).server, (await kv.head()).server}
            if life < 2:
                for owner in owners:
                    os.kill(pid_of(cluster, owner), signal.SIGKILL)
                    cluster.start_persist(owner)
                # Nobody writes: followers hear of the loss all the same.
                await until(lambda life=life: follower.resets == life + 1, "reset told")
                assert [message async for message in stream.get_all()] == []
                assert await kv.get(f"user{life}") is None
        assert (await stream.config()).description == "who is where"
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_stopped_owner_that_wakes_tells_nobody_of_its_content(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        kv = client.kv("presence")
        await kv.configure(ephemeral=True)
        first = await kv.set("old", MARK)
        stopped = pid_of(cluster, (await kv.head()).server)
        os.kill(stopped, signal.SIGSTOP)
        try:
            second = await kv.set("new", MARK)
            assert second.revision > first.revision
            assert [entry.key async for entry in kv.get_all()] == ["new"]
        finally:
            os.kill(stopped, signal.SIGCONT)
        await until(lambda: not _runs(stopped), "the fenced server has ended")
        assert [entry.key async for entry in kv.get_all()] == ["new"]


async def test_a_drained_server_hands_over_an_empty_store(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        stream = client.stream("typing")
        await stream.configure(ephemeral=True)
        follower = Follower()
        following = asyncio.ensure_future(follower.run(stream))
        before = await appended(stream, range(10))
        await until(lambda: follower.values == before, "followed")
        owner = (await stream.head()).server
        [process] = cluster.living(owner)
        process.terminate()
        await until(lambda: follower.resets == 1, "reset told")
        after = await appended(stream, range(10, 20))
        assert min(after) > max(before)
        await until(lambda: follower.values == after, "followed")
        assert (await stream.head()).server != owner
        assert not files_with(tmp_path / "data", MARK)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_without_a_shared_disk_a_store_begins_anew_as_well(tmp_path: Path) -> None:
    with running_nats_server(tmp_path) as nats:
        processes = LocalDisks(tmp_path, nats)
        try:
            servers = processes.start_servers()
            async with connect(
                nats.url, tenant="acme", timeout_seconds=2 * DEADLINE_SECONDS
            ) as client:
                stream = client.stream("cursors")
                await stream.configure(ephemeral=True)
                before = await appended(stream, range(5))
                assert [each.value async for each in stream.get_all()] == [*before.values()]
                for server in servers.values():
                    server.kill()
                for name in servers:
                    processes.lose_disk(name)
                processes.start_servers()
                after = await appended(stream, range(5, 10))
                assert min(after) > max(before)
                assert [each.value async for each in stream.get_all()] == [*after.values()]
            assert not files_with(tmp_path, MARK)
        finally:
            processes.end()
