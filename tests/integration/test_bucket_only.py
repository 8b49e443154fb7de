"""Clusters without a shared file system: each part on a disk of its own, the truth in the bucket.

Real processes. Disks are removed as a lost machine loses them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.client import Client, connect
from holdfast.persist.bucket_only import bucket_mode
from holdfast.persist.lifecycle import heartbeats
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import HoldfastError, NotAllowedError, error_from_wire
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.serving import grant_book
from holdfast.protocol.subjects import Inboxes, Subjects
from holdfast.shared_fs.access.registry import (
    CLUSTER_ISSUER,
    REGISTRY_PREFIX,
    AccessRegistry,
    Issuer,
)
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log.bucket_log import fence_log, is_open, list_logs
from holdfast.shared_fs.snapshots.manifest import Manifests
from tests.support.cluster import DEADLINE_SECONDS, TENANT, Peer, connected_peer
from tests.support.local_disks import LocalDisks
from tests.support.nats_server import running_nats_server
from tests.support.tokens import ISSUER_KEY, a_token, register
from tests.support.waiting import eventually, until
from tests.support.world_in_loop import world_in_loop

SERVERS = ("s1", "s2", "s3")


@asynccontextmanager
async def local_disks(directory: Path) -> AsyncIterator[LocalDisks]:
    with running_nats_server(directory) as nats:
        processes = LocalDisks(directory, nats)
        try:
            yield processes
        finally:
            processes.end()


def connected(processes: LocalDisks) -> Client:
    return connect(processes.nats.url, tenant=TENANT, timeout_seconds=2 * DEADLINE_SECONDS)


async def write_much(client: Client, acked: dict[str, dict[int, bytes]], count: int = 30) -> None:
    async def one(name: str) -> None:
        stream = client.stream(name)
        for number in range(count):
            value = f"{name} {number} {time.time_ns()}".encode()
            ack = await stream.append(value)
            assert ack.seq is not None
            assert ack.durability is Durability.STORED
            acked.setdefault(name, {})[ack.seq] = value

    await asyncio.gather(*(one(f"notes.{number}") for number in range(10)))


async def read_all(client: Client, names: list[str]) -> dict[str, dict[int, bytes]]:
    return {
        name: {message.seq: message.value async for message in client.stream(name).get_all()}
        for name in names
    }


async def test_every_acknowledged_write_outlives_all_servers_and_all_their_disks(
    tmp_path: Path,
) -> None:
    async with local_disks(tmp_path) as processes:
        acked: dict[str, dict[int, bytes]] = {}
        servers = processes.start_servers()
        async with connected(processes) as client, connected_peer(processes) as peer:
            await write_much(client, acked)
            first = await peer.write("retried", 1, [frames.APPEND, b"once"])
            for server in servers.values():
                server.kill()
            for name in SERVERS:
                processes.lose_disk(name)
            processes.start_servers()
            assert await read_all(client, list(acked)) == acked
            again = await peer.write("retried", 1, [frames.APPEND, b"once"])
            assert (again.epoch, again.results) == (first.epoch, first.results)
            [message] = [each async for each in client.stream("retried").get_all()]
            assert (message.seq, message.value) == (1, b"once")
            # And on: with new epochs, no seq is given twice.
            await write_much(client, acked, count=5)
            assert await read_all(client, list(acked)) == acked


async def test_they_outlive_the_coordinators_disk_as_well(tmp_path: Path) -> None:
    async with local_disks(tmp_path) as processes:
        acked: dict[str, dict[int, bytes]] = {}
        servers = processes.start_servers()
        async with connected(processes) as client:
            await write_much(client, acked)
            for process in (*servers.values(), processes.coordinator):
                process.kill()
            for name in (*SERVERS, "coordinator"):
                processes.lose_disk(name)
            processes.coordinator = processes.start("coordinator", "coordinator")
            processes.start_servers()
            assert await read_all(client, list(acked)) == acked
            await write_much(client, acked, count=5)
            assert await read_all(client, list(acked)) == acked


async def test_a_server_that_dies_is_taken_over_from_the_bucket(tmp_path: Path) -> None:
    async with local_disks(tmp_path) as processes:
        acked: dict[str, dict[int, bytes]] = {}
        servers = processes.start_servers()
        async with connected(processes) as client:
            await write_much(client, acked, count=5)
            writing = asyncio.create_task(write_much(client, acked, count=30))
            before = sum(map(len, acked.values()))
            await until(lambda: sum(map(len, acked.values())) > before + 20, "writes go on")
            servers["s1"].kill()
            await writing
            assert await read_all(client, list(acked)) == acked
            for name, messages in acked.items():
                assert list(messages) == list(range(1, 36)), name

            async def are_told() -> bool:
                parts = await client.statistics()
                return any(part.value("persist_takeovers_total") for part in parts)

            await eventually(are_told, "the takeovers are counted")


async def test_a_zombie_that_wakes_past_its_fence_acknowledges_nothing(tmp_path: Path) -> None:
    async def ask_zombie(peer: Peer) -> object:
        write = frames.encode_request(
            b"another", [(StoreKind.STREAM, "notes", 1, 1, 0, [[frames.APPEND, b"zombie"]])]
        )
        read = frames.encode_request(
            b"another", [(StoreKind.STREAM, "notes", 0, 0, 0, [[frames.HEAD]])]
        )
        for payload in (write, read):
            try:
                return await peer.ask(payload, server="s1", timeout_seconds=8.0)
            except (BusTimeoutError, NoRespondersError):
                continue
        return None

    async with local_disks(tmp_path) as processes:
        zombie = processes.start_server("s1")
        async with connected_peer(processes) as peer:
            await peer.write("notes", 1, [frames.APPEND, b"before"])
            processes.start_server("s2")
            os.kill(zombie.pid, signal.SIGSTOP)
            try:
                # Sent to the stopped server itself, and answered by nobody.
                late = asyncio.create_task(ask_zombie(peer))
                ended = await peer.write("notes", 2, [frames.APPEND, b"after"])
                assert ended.epoch > 1
            finally:
                os.kill(zombie.pid, signal.SIGCONT)
            assert await late is None
            await until(lambda: not zombie.running, "the zombie has ended")
            assert "fenced" in zombie.log
            pages = await peer.read("notes", [frames.HEAD])
            assert pages[0][2] == 2, "its write is nowhere"


async def test_a_server_that_ends_or_is_drained_hands_over_what_only_its_log_has(
    tmp_path: Path,
) -> None:
    async with local_disks(tmp_path) as processes:
        acked: dict[str, dict[int, bytes]] = {}
        first = processes.start_server("s1", "--snapshot-seconds", "3600")
        async with connected(processes) as client:
            await write_much(client, acked, count=5)
            processes.start_server("s2", "--snapshot-seconds", "3600")
            assert first.stop() == 0, first.log
            processes.lose_disk("s1")
            assert await read_all(client, list(acked)) == acked
            await write_much(client, acked, count=5)
            third = processes.start_server("s3")
            async with connected_peer(processes) as peer:
                await until(lambda: "server.started" in third.log, "the third server runs")
                await peer.bus.request("hf._.coord.drain", frames.encode_control(server="s2"), 2.0)
                async with asyncio.timeout(30):
                    while await peer.resolve("notes.1") != "s3":
                        await asyncio.sleep(0.05)
                assert await read_all(client, list(acked)) == acked


async def test_a_clean_end_is_one_however_long_the_bucket_takes_to_fence_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that found the fence which the server itself had made ended it with code 1."""

    def take_long(bucket: Bucket, server: str, incarnation: str) -> None:
        time.sleep(10 * heartbeat_seconds)
        fence_log(bucket, server, incarnation)

    heartbeat_seconds = 0.02
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", heartbeat_seconds)
    monkeypatch.setattr(bucket_mode, "fence_log", take_long)
    bucket = Bucket(MemoryBackend())
    async with world_in_loop(tmp_path, bucket) as world:
        server = await world.start("s1")
        await world.peer.live()
        server.stop()
        assert await world.ended("s1") is None
        (log,) = list_logs(bucket, "s1")
        assert not is_open(bucket, "s1", log.incarnation)


async def test_the_registry_of_tokens_is_in_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers verify tokens, and hear of revocations, without a shared file system."""
    monkeypatch.setattr(grant_book, "REVOCATIONS_SECONDS", 0.01)
    bucket = Bucket(MemoryBackend())
    registry = AccessRegistry(bucket, REGISTRY_PREFIX)
    registry.add_issuer(Issuer(CLUSTER_ISSUER, bytes(ISSUER_KEY.verify_key), ("*",)))
    token = a_token(stores=["notes"], tenant=TENANT)
    register(registry, token)
    async with world_in_loop(tmp_path, bucket) as world:
        await world.start("s1")
        bus = world.network.connect("client")

        async def append(name: str, grant: str, counter: int = 1) -> HoldfastError | None:
            bus.move_inboxes(Inboxes(tenant=TENANT, own=grant))
            subject = Subjects(grant=grant).server(TENANT, "s1")
            group = [1, name, counter, counter, 0, [[frames.APPEND, b"x"]]]
            while True:
                try:
                    payload = frames.encode_request(b"w", [group])
                    reply = await bus.request(subject, payload, DEADLINE_SECONDS, TENANT)
                except NoRespondersError:
                    continue
                [element] = frames.decode(reply)
                if element[1] == 0:
                    return None
                error = error_from_wire(element[2], element[3])
                if not error.retryable:
                    return error
                await asyncio.sleep(0.01)

        assert await append("notes", token.id) is None
        assert isinstance(await append("others", token.id), NotAllowedError)
        assert isinstance(await append("notes", ""), NotAllowedError)
        registry.revoke(token, 0.0)
        async with asyncio.timeout(DEADLINE_SECONDS):
            counter = 2
            while (refused := await append("notes", token.id, counter)) is None:
                counter += 1
        assert isinstance(refused, NotAllowedError) and refused.missing == "a token"
        await bus.close()


async def test_slots_go_when_snapshots_are_beyond_them_and_logs_of_the_dead_too(
    tmp_path: Path,
) -> None:
    async with local_disks(tmp_path) as processes:
        acked: dict[str, dict[int, bytes]] = {}
        server = processes.start_server("s1")
        async with connected(processes) as client:
            await write_much(client, acked, count=10)
            manifests = Manifests(processes.bucket)

            def all_snapshotted() -> bool:
                return all(
                    (entry := manifests.find(StoreId(TENANT, StoreKind.STREAM, name))) is not None
                    and entry.newest is not None
                    and entry.newest.last_seq == 10
                    for name in acked
                )

            await until(all_snapshotted, "every store has a snapshot")
            await until(
                lambda: len(list_logs(processes.bucket)[0].slots) == 1,
                "only the newest slot is left",
            )
            server.kill()
            processes.lose_disk("s1")
            processes.start_server("s2")
            assert await read_all(client, list(acked)) == acked


async def test_a_store_whose_snapshot_is_gone_is_refused_and_not_begun_anew(tmp_path: Path) -> None:
    async with local_disks(tmp_path) as processes:
        server = processes.start_server("s1")
        async with connected(processes) as client:
            await client.stream("notes").append(b"1")
            bucket = processes.bucket
            await until(
                lambda: len(list_logs(bucket)[0].slots) == 1 and list_logs(bucket)[0].slots != (0,),
                "the slot is gone, the snapshot has it all",
            )
            server.kill()
            processes.lose_disk("s1")
            for listed in [*bucket.list("manifests/")]:
                bucket.delete(listed.key)
            processes.start_server("s2")
            with pytest.raises(Exception, match="no snapshot of it"):
                await client.stream("notes").append(b"2")
