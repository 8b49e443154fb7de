"""Level `stored` on a shared file system: what the bucket alone gives back, and when it is away.

Real processes. The file system is removed as a whole, as its loss would.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.client import Client, connect
from holdfast.protocol import frames
from holdfast.protocol.messages import Ack, Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.snapshot import fetch
from tests.support.cluster import DEADLINE_SECONDS, TENANT, Process, Processes, connected_peer
from tests.support.nats_server import running_nats_server
from tests.support.waiting import until

NOTES = StoreId(TENANT, StoreKind.STREAM, "notes")


class WithBucket(Processes):
    """A cluster on a shared file system, with a bucket beside."""

    @property
    def bucket_folder(self) -> Path:
        return self.directory / "bucket"

    @property
    def bucket(self) -> Bucket:
        return open_bucket(self.bucket_folder.as_uri())

    def start_server(self, name: str, *arguments: str) -> Process:
        return self.start_persist(name, "--bucket", self.bucket_folder.as_uri(), *arguments)

    def lose_file_system(self) -> None:
        self.end()
        shutil.rmtree(self.data)

    def rebuild(self) -> None:
        """Rebuild everything from the bucket in the place of what is lost."""
        command = [
            *(sys.executable, "-P", "-m", "holdfast.cli", "rebuild", "--yes"),
            *("--bucket", self.bucket_folder.as_uri(), "--data", str(self.data)),
        ]
        subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)


@asynccontextmanager
async def with_bucket(directory: Path) -> AsyncIterator[tuple[WithBucket, Client]]:
    with running_nats_server(directory) as nats:
        (directory / "bucket").mkdir()
        processes = WithBucket(directory, nats)
        try:
            async with connect(
                nats.url, tenant=TENANT, timeout_seconds=2 * DEADLINE_SECONDS
            ) as client:
                yield processes, client
        finally:
            processes.end()


def values_in(processes: WithBucket, store: StoreId = NOTES) -> dict[int, bytes]:
    """What the newest snapshot of a store holds."""
    entry = Manifests(processes.bucket).find(store)
    assert entry is not None
    assert entry.newest is not None
    path = processes.directory / "looked-at.db"
    file = fetch(processes.bucket, store, entry.newest, path).open_in_memory(path)
    try:
        return {row[0]: row[3] for row in file.messages(1, None, 100_000)}
    finally:
        file.abandon()


async def test_stored_writes_are_rebuilt_from_the_bucket_alone(tmp_path: Path) -> None:
    async with with_bucket(tmp_path) as (processes, client):
        processes.start_server("s1")
        acked: dict[int, bytes] = {}
        for number in range(40):
            value = b"value %d" % number
            ack = await client.stream("notes").append(value, durability="stored")
            assert ack.durability is Durability.STORED
            acked[ack.seq or 0] = value
        processes.lose_file_system()
        processes.rebuild()
        assert values_in(processes) == acked


async def test_a_store_with_a_past_of_other_levels_is_rebuilt_with_all_of_it(
    tmp_path: Path,
) -> None:
    async with with_bucket(tmp_path) as (processes, client):
        processes.start_server("s1")
        stream = client.stream("notes")
        written = [b"%d" % number for number in range(200)]
        await asyncio.gather(*(stream.append(value) for value in written[:100]))
        await stream.append(written[100], durability="stored")
        for number, value in enumerate(written[101:]):
            await stream.append(value, durability="stored" if number % 10 == 8 else "synced")
        processes.lose_file_system()
        processes.rebuild()
        found = values_in(processes)
        last_stored = max(seq for seq in range(101, 201) if seq == 101 or (seq - 102) % 10 == 8)
        assert len(found) >= last_stored
        assert [found[seq] for seq in sorted(found)][100:] == written[100 : len(found)]


async def test_after_a_rebuild_the_cluster_goes_on_where_it_was(tmp_path: Path) -> None:
    async with with_bucket(tmp_path) as (processes, _):
        processes.start_server("s1", "--durability", "stored")
        async with connected_peer(processes) as peer:
            first = await peer.write("notes", 1, [frames.APPEND, b"once"])
            processes.lose_file_system()
            processes.rebuild()
            processes.coordinator = processes.start("coordinator", "coordinator")
            processes.start_server("s1", "--durability", "stored")
            again = await peer.write("notes", 1, [frames.APPEND, b"once"])
            assert again.results == first.results, "a retry is answered as the first time"
            after = await peer.write("notes", 2, [frames.APPEND, b"after"])
            assert after.epoch > first.epoch
        processes.lose_file_system()
        processes.rebuild()
        assert values_in(processes) == {1: b"once", 2: b"after"}


async def test_after_a_failover_stored_writes_are_rebuilt_whoever_acknowledged_them(
    tmp_path: Path,
) -> None:
    async with with_bucket(tmp_path) as (processes, client):
        first = processes.start_server("s1")
        stream = client.stream("notes")
        acked: dict[int, bytes] = {}

        async def write(count: int) -> None:
            for _ in range(count):
                value = b"%d" % len(acked)
                ack = await stream.append(value, durability="stored")
                acked[ack.seq or 0] = value

        await write(10)
        await stream.append(b"synced only")
        acked[11] = b"synced only"
        processes.start_server("s2")
        first.kill()
        await write(10)
        processes.lose_file_system()
        processes.rebuild()
        assert values_in(processes) == acked


async def test_while_the_bucket_is_away_stored_writes_wait_and_all_others_go_on(
    tmp_path: Path,
) -> None:
    async with with_bucket(tmp_path) as (processes, client):
        server = processes.start_server("s1")
        stream = client.stream("notes")
        await stream.append(b"1", durability="stored")
        away = processes.bucket_folder.with_name("away")
        processes.bucket_folder.rename(away)
        processes.bucket_folder.write_text("no folder")
        stored = asyncio.create_task(stream.append(b"2", durability="stored"))
        other = [await client.stream("other").append(b"%d" % number) for number in range(20)]
        assert [ack.seq for ack in other] == list(range(1, 21))
        # It is applied, and readable, and the commit log has it: only its promise is not kept yet.
        await until(lambda: "slot.waits" in server.log, "the server says that the bucket is away")
        assert (await stream.head()).last_seq == 2
        assert not stored.done()
        processes.bucket_folder.unlink()
        away.rename(processes.bucket_folder)
        ack: Ack = await stored
        assert (ack.seq, ack.durability) == (2, Durability.STORED)
        await until(lambda: "slot.goes_on" in server.log, "and that it is back")


async def test_a_zombie_acknowledges_no_stored_write_though_the_bucket_takes_its_slot(
    tmp_path: Path,
) -> None:
    async with with_bucket(tmp_path) as (processes, client):
        zombie = processes.start_server("s1")
        stream = client.stream("notes")
        await stream.append(b"1", durability="stored")
        processes.start_server("s2")
        os.kill(zombie.pid, signal.SIGSTOP)
        try:
            late = asyncio.create_task(stream.append(b"2", durability="stored"))
            await until(lambda: "taken_over" in last_log(processes, "s2"), "s2 has taken over")
        finally:
            os.kill(zombie.pid, signal.SIGCONT)
        assert (await late).seq == 2
        await until(lambda: not zombie.running, "the zombie has ended")
        assert [message.value async for message in stream.get_all()] == [b"1", b"2"]
        processes.lose_file_system()
        processes.rebuild()
        assert values_in(processes) == {1: b"1", 2: b"2"}


def last_log(processes: Processes, name: str) -> str:
    return "".join(path.read_text() for path in processes.directory.glob(f"{name}-*.log"))
