"""Quotas of tenants, kept by real servers: each is reached, refused with its error, and lifted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Client, LimitExceededError, RateLimitedError, connect
from tests.support.cluster import Processes
from tests.support.cluster_in_loop import cluster_with_client, pid_of
from tests.support.holdfast_up import call_holdfast

DEADLINE_SECONDS = 40.0
#: What a server logs when it knows other quotas.
CHANGED = " quotas.changed "


async def test_a_tenant_reaches_each_of_its_quotas_while_another_goes_on(tmp_path: Path) -> None:
    async with (
        cluster_with_client(tmp_path) as (cluster, acme),
        connect(cluster.nats.url, tenant="other") as other,
    ):
        await acme.stream("before").append(b"x" * 1000)
        await other.stream("notes").append(b"hello")

        # Stores: existing ones go on.
        await allow(cluster, "--max-stores", "2")
        second = await refused(lambda number: acme.kv(f"store-{number}").set("key", b"value"))
        assert isinstance(second, LimitExceededError)
        assert (second.what, second.limit, second.value) == ("the tenant's max_stores", 2, 3)
        await acme.stream("before").append(b"x" * 1000)

        # Bytes: what frees space goes on too.
        await allow(cluster, "--max-stores", "none", "--max-bytes", "20kB")
        full = await refused(lambda number: acme.stream("before").append(b"x" * 1000))
        assert isinstance(full, LimitExceededError)
        assert (full.what, full.limit) == ("the tenant's max_bytes", 20_000)
        assert full.value > 20_000
        taken = (await acme.stream("before").head()).bytes
        # Its owner counts what it adds at once, and soon what was there before.
        assert taken <= 23_000
        assert await acme.stream("before").get(1) is not None

        # Neither a server nor the coordinator forgets.
        await restart_all(cluster)
        again = await refused(lambda number: acme.stream("before").append(b"x"))
        assert isinstance(again, LimitExceededError)
        killed = (await acme.stream("before").head()).server
        os.kill(pid_of(cluster, killed), signal.SIGKILL)
        again = await refused(lambda number: acme.stream("before").append(b"x"))
        assert isinstance(again, LimitExceededError)
        await acme.stream("before").delete_all()
        await allowed(lambda: acme.stream("before").append(b"x" * 1000))
        use = await shown(cluster)
        assert use["quota"] == {"max_bytes": 20_000}

        # Rates.
        await allow(cluster, "--max-bytes", "none", "--max-rate", "20/s")
        fast = await refused(lambda number: acme.stream("before").append(b"%d" % number))
        assert isinstance(fast, RateLimitedError)
        assert (fast.what, fast.limit) == ("the tenant's max_rate", 20)
        assert 0 < fast.retry_after_seconds < 10
        await allow(cluster, "--max-rate", "none", "--max-bytes-per-second", "10kB")
        fast = await refused(lambda number: acme.stream("before").append(b"x" * 1000))
        assert isinstance(fast, RateLimitedError)
        assert fast.what == "the tenant's max_bytes_per_second"

        # What servers hold at a time.
        await allow(
            cluster,
            *("--max-bytes-per-second", "none", "--max-open-stores", "1", "--max-uploads", "0"),
        )
        for _ in range(3):
            for name in ("one", "two", "three"):
                await acme.stream(name).append(b"x")
        with pytest.raises(LimitExceededError) as raised:
            await acme.stream("one").put_file(BytesIO(b"x" * 2_000_000))
        assert (raised.value.what, raised.value.limit) == ("the tenant's max_uploads", 0)

        async def are_few_open() -> bool:
            return bool((await shown(cluster))["open_stores"] == 1)

        await until(are_few_open, "the tenant has one store open")

        for _ in range(100):
            await other.stream("notes").append(b"x" * 1000)
        await other.kv("another").set("key", b"value")

        # Nothing of the tenant goes while its quota would stay.
        command = ("--nats", cluster.nats.url, "tenant", "destroy", "acme", "--yes")
        done = await asyncio.to_thread(call_holdfast, *command)
        assert (done.returncode, b"give --data" in done.stderr) == (2, True)
        assert (await acme.stream("one").head()).count == 3


async def test_the_count_of_bytes_comes_right_after_a_kill(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, acme):
        await allow(cluster, "--max-bytes", "1GB")
        streams = [acme.stream(f"stream-{number}") for number in range(4)]
        kv = acme.kv("settings")

        async def write() -> None:
            for stream in streams:
                await stream.append(b"x" * 500)
            await kv.set("key", b"x" * 100)

        await write()
        await until(lambda: used(cluster, acme), "the first sizes are told")
        await write()
        for server in ("s1", "s2"):
            os.kill(pid_of(cluster, server), signal.SIGKILL)
        cluster.start_persist("s1")
        await write()
        await streams[0].delete_all()
        await until(lambda: used(cluster, acme), "the sizes after the kill are told")
        await restart_all(cluster)
        assert await used(cluster, acme)


async def allow(cluster: Processes, *limits: str) -> None:
    """Change the tenant's quota; return once all know it."""
    servers = [process for name in ("s1", "s2") for process in cluster.living(name)]
    before = {process.log_file: process.log.count(CHANGED) for process in servers}
    done = await asyncio.to_thread(
        call_holdfast, "tenant", "set", "acme", *limits, "--data", str(cluster.data), "--json"
    )
    assert done.returncode == 0, done.stderr
    quota = json.loads(done.stdout)["quota"]

    async def is_known() -> bool:
        if any(each.log.count(CHANGED) == before[each.log_file] for each in servers):
            return False
        return bool((await shown(cluster))["quota"] == quota)

    await until(is_known, "all know the quota")


async def shown(cluster: Processes) -> dict[str, Any]:
    command = ("--nats", cluster.nats.url, "tenant", "show", "acme", "--json")
    done = await asyncio.to_thread(call_holdfast, *command)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def used(cluster: Processes, client: Client) -> bool:
    """Tell if the coordinator counts what the stores hold."""
    heads = [
        await (client.stream(each.name) if each.kind == 1 else client.kv(each.name)).head()
        async for each in client.stores()
    ]
    use = await shown(cluster)
    assert use["streams"] + use["kvs"] == len(heads)
    return bool(use["bytes"] == sum(head.bytes for head in heads))


async def refused(write: Callable[[int], Awaitable[Any]]) -> Exception:
    """Write until that is refused, and return the error."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        for number in range(1_000_000):
            try:
                await write(number)
            except (LimitExceededError, RateLimitedError) as error:
                return error
    raise AssertionError("nothing is refused")


async def allowed(write: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await write()
            except LimitExceededError:
                await asyncio.sleep(0.05)
            else:
                return


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await holds():
            await asyncio.sleep(0.05)


async def restart_all(cluster: Processes) -> None:
    """Restart the coordinator, and then each server, cleanly."""
    assert await asyncio.to_thread(cluster.coordinator.stop) == 0
    cluster.coordinator = cluster.start("coordinator", "coordinator")
    for server in ("s1", "s2"):
        for process in cluster.living(server):
            assert await asyncio.to_thread(process.stop) == 0
            cluster.start_persist(server)
