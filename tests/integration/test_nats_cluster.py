"""A NATS cluster whose servers die and whose routes close, with real processes: a server of
holdfast that NATS hides for a moment is healthy, and keeps its stores. One that the coordinator
cannot hear for long is fenced, healthy or not: its stores are served where the coordinator is."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.client import Client, connect
from tests.support.cluster import TENANT, Processes, until
from tests.support.local_disks import LocalDisks
from tests.support.nats_server import NatsServer, running_divisible_cluster, running_nats_cluster
from tests.support.process import DEADLINE_SECONDS


@pytest.mark.parametrize("kind", [Processes, LocalDisks])
async def test_a_server_whose_nats_server_dies_under_writes_is_not_fenced(
    tmp_path: Path, kind: type[Processes]
) -> None:
    # Servers are not told of other nodes, so this one cannot be back before its own is.
    with running_nats_cluster(tmp_path, 2, "--no_advertise") as (node, other):
        processes = kind(tmp_path, other)
        try:
            server = processes.start_persist("s1", "--nats", node.url)
            async with connect(
                other.url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS
            ) as client:
                stream = client.stream("notes")
                await stream.append(b"before")
                node.kill()
                append = asyncio.create_task(stream.append(b"meanwhile"))
                await until(
                    lambda: "server_hidden" in processes.coordinator.log,
                    "the coordinator has looked",
                )
                node.restart()
                await append
                values = [message.value async for message in stream.get_all()]
                assert values == [b"before", b"meanwhile"]
            assert server.running, server.log
            assert "server_dead" not in processes.coordinator.log
        finally:
            processes.end()


class Comers:
    """Clients of one node that come anew all the time, and one that stays; all append values that
    nobody else writes. `acked` are those that were acknowledged."""

    def __init__(self, node: NatsServer, name: str) -> None:
        self._node = node
        self._name = name
        self.acked: list[tuple[str, bytes]] = []

    async def come_and_go(self, ending: asyncio.Event) -> None:
        """Connect, append to every stream, and leave; again until `ending`."""
        visit = 0
        while not ending.is_set():
            visit += 1
            async with self._connected() as client:
                for stream in STREAMS:
                    await self._append(client, stream, f"{self._name}.visit{visit}")

    async def stay(self, ending: asyncio.Event) -> None:
        """Append to all streams until `ending`, each by itself."""
        async with self._connected() as client, asyncio.TaskGroup() as tasks:
            for stream in STREAMS:
                tasks.create_task(self._keep_appending(client, stream, ending))

    async def _keep_appending(self, client: Client, stream: str, ending: asyncio.Event) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            await self._append(client, stream, f"{self._name}.{number}")

    async def _append(self, client: Client, stream: str, text: str) -> None:
        await client.stream(stream).append(text.encode())
        self.acked.append((stream, text.encode()))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        async with connect(
            self._node.url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS
        ) as client:
            yield client

    async def until_more(self) -> None:
        """Return once something was acknowledged that was not when this was called."""
        count = len(self.acked)
        await until(lambda: len(self.acked) > count, f"an ack for {self._name}")


@asynccontextmanager
async def coming(nodes: list[NatsServer]) -> AsyncIterator[list[Comers]]:
    """Let clients come to all nodes around the body. Then whatever was acknowledged is there."""
    comers = [Comers(node, f"n{number}") for number, node in enumerate(nodes)]
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for each in comers:
            tasks.create_task(each.come_and_go(ending))
            tasks.create_task(each.stay(ending))
        for each in comers:
            await each.until_more()
        yield comers
        for each in comers:
            await each.until_more()
        ending.set()
    acked = Counter(ack for each in comers for ack in each.acked)
    async with connect(nodes[-1].url, tenant=TENANT, timeout_seconds=DEADLINE_SECONDS) as client:
        there = Counter(
            [
                (stream, message.value)
                for stream in STREAMS
                async for message in client.stream(stream).get_all()
            ]
        )
    assert there == acked


def fences(log: str) -> set[tuple[str, str]]:
    """Who was fenced, and for what: the first word of the reason."""
    return set(re.findall(r"server_dead server=(\S+) incarnation=\S+ reason=\W*(\w+)", log))


async def until_live(processes: Processes, *servers: str) -> None:
    """Return once the coordinator assigns stores to all of them. A fault that comes sooner hides a
    server that nobody knows yet, so what the test waits for never happens."""
    await until(
        lambda: all(f"server_live server={each} " in processes.coordinator.log for each in servers),
        f"{servers} are live",
    )


#: Twice as many as servers, so that each server owns some.
STREAMS = [f"notes.{number}" for number in range(6)]


async def test_a_server_behind_a_closed_route_is_not_fenced_for_it(tmp_path: Path) -> None:
    async with running_divisible_cluster(tmp_path, 3, "--no_advertise") as cluster:
        node, other, _ = cluster.nodes
        processes = Processes(tmp_path, other)
        try:
            processes.start_persist("s1", "--nats", node.url)
            processes.start_persist("s2")
            await until_live(processes, "s1", "s2")
            async with coming(cluster.nodes):
                cluster.close_route(0, 1)
                # The clients of the coordinator's node find nobody, and tell it.
                await until(
                    lambda: "server_hidden server=s1" in processes.coordinator.log,
                    "the coordinator has looked",
                )
                assert fences(processes.coordinator.log) == set()
                cluster.heal()
            # If this machine was too busy to open the route in time, silence may have decided.
            assert fences(processes.coordinator.log) <= {("s1", "silent")}
        finally:
            processes.end()


async def test_of_a_split_cluster_only_the_side_without_the_coordinator_is_fenced(
    tmp_path: Path,
) -> None:
    async with running_divisible_cluster(tmp_path, 3, "--no_advertise") as cluster:
        node, other, third = cluster.nodes
        processes = Processes(tmp_path, other)
        try:
            cut_off = processes.start_persist("s1", "--nats", node.url)
            near = processes.start_persist("s2")
            far = processes.start_persist("s3", "--nats", third.url)
            await until_live(processes, "s1", "s2", "s3")
            async with coming(cluster.nodes) as (_, *reached):
                cluster.split({0}, {1, 2})
                await until(
                    lambda: "server_dead server=s1" in processes.coordinator.log,
                    "the coordinator has not heard it for too long",
                )
                await until(lambda: not cut_off.running, "it has read its fence")
                for each in reached:
                    await each.until_more()
                cluster.heal()
            assert fences(processes.coordinator.log) == {("s1", "silent")}
            assert near.running, near.log
            assert far.running, far.log
        finally:
            processes.end()
