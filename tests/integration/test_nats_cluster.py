"""A NATS cluster whose servers die, with real processes: a server of holdfast that NATS hides for a
moment is healthy, and keeps its stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.client import connect
from tests.support.cluster import TENANT, Processes, until
from tests.support.local_disks import LocalDisks
from tests.support.nats_server import running_nats_cluster
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
