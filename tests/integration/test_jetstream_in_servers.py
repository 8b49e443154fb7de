"""On few cores each persist server of `holdfast up --jetstream` is a gateway as well: one that is
killed takes both with it, and the other one serves on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import nats
import pytest

from tests.integration.test_jetstream_gateways import Publishers, add_streams, check_each_once
from tests.support.environment import few_cores
from tests.support.holdfast_up import RunningUp, running_up
from tests.support.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningUp]:
    with few_cores(), running_up(tmp_path / "data", "--servers", "2", "--jetstream") as cluster:
        yield cluster


async def test_a_server_that_is_killed_with_its_gateway_loses_nothing_and_stores_nothing_twice(
    cluster: RunningUp,
) -> None:
    assert set(cluster.pids()) == {"nats-server", "coordinator", "s1", "s2"}
    client = await nats.connect(cluster.nats, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    try:
        js = client.jetstream()
        await add_streams(js)
        publishers = Publishers(js)
        publishers.start()
        await publishers.progress()
        for name in ("s1", "s2", "s1"):
            before = cluster.pids()[name]
            assert before is not None
            os.kill(before, signal.SIGKILL)
            await publishers.progress()
            await until(partial(_runs_again, cluster, name, before))
            await asyncio.to_thread(_wait_until_both_live, cluster)
        await publishers.end()
        await check_each_once(js, publishers.acked)
    finally:
        await client.close()
    assert cluster.stop() == 0


def _runs_again(cluster: RunningUp, name: str, before: int) -> bool:
    return cluster.pids()[name] not in (before, None)


def _wait_until_both_live(cluster: RunningUp) -> None:
    while cluster.live_servers() != {"s1", "s2"}:
        pass


async def test_a_gateway_that_cannot_work_ends_no_server(cluster: RunningUp) -> None:
    """The leafnode listener is nats-server's: without it, servers and their stores go on."""
    append = partial(cluster.json, "stream", "append", "notes")
    assert (await asyncio.to_thread(append, "0"))["seq"] == 1
    nats_server = cluster.pids()["nats-server"]
    servers = [cluster.pids()[name] for name in ("s1", "s2")]
    assert nats_server is not None
    os.kill(nats_server, signal.SIGKILL)
    await until(lambda: cluster.pids()["nats-server"] not in (nats_server, None))
    client = await nats.connect(cluster.nats, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    try:
        js = client.jetstream()
        await add_streams(js)
        assert (await js.publish("S1.x", b"x")).seq == 1
    finally:
        await client.close()
    assert [cluster.pids()[name] for name in ("s1", "s2")] == servers
    assert (await asyncio.to_thread(append, "1"))["seq"] == 2
