"""Zones whose owners read cold stores from a cache of their own zone, as real processes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from holdfast.client import Client, connect
from holdfast.protocol.monitoring import metrics
from tests.integration.test_tiers import EAGER, World
from tests.support.cluster import TENANT, running_processes
from tests.support.waiting import eventually

_STORES = 10
_OWNER = (*EAGER, "--roles", "persist,tier")


async def _counts(client: Client, name: str) -> dict[tuple[str, str], float]:
    """One metric with a label, by server and label."""
    return {
        (part.name, sample.labels[0][1]): float(sample.value)  # type: ignore[arg-type]
        for part in await client.statistics()
        for sample in part.samples
        if sample.name == name
    }


def _name(zone: str, number: int) -> str:
    return f"{zone}.{number}"


async def test_a_zone_fetches_each_object_of_cold_stores_once_and_needs_no_cache_that_died(
    tmp_path: Path,
) -> None:
    with running_processes(tmp_path) as processes:
        world = World(processes, tmp_path / "bucket")
        for server in ("a1", "a2", "b1"):
            world.start(server, *_OWNER, "--zone", server[0])
        caches = {
            zone: world.start(f"{zone}c", "--roles", "cache", "--zone", zone) for zone in "ab"
        }
        async with AsyncExitStack() as closing:
            clients = {
                zone: await closing.enter_async_context(
                    connect(processes.nats.url, tenant=TENANT, zone=zone)
                )
                for zone in "ab"
            }
            await eventually(lambda: _live(clients["a"], 5), "all servers are live")
            for number in range(_STORES):
                for zone in "ab":
                    stream = clients[zone].stream(_name(zone, number))
                    await stream.append(_name(zone, number).encode())
            await _all_cold(world)
            objects = {
                zone: {_object(world, _name(zone, number)) for number in range(_STORES)}
                for zone in "ab"
            }

            async def read(number: int) -> None:
                for zone in "ab":
                    name = _name(zone, number)
                    [message] = [each async for each in clients[zone].stream(name).get_all()]
                    assert message.value == name.encode()

            first_half, rest = range(_STORES // 2), range(_STORES // 2, _STORES)
            # The audit log is a store, too, and may have been read before there were caches.
            before = (await _counts(clients["a"], metrics.COLD_READS.name)).copy()
            await asyncio.gather(*(read(number) for number in first_half))

            async def told() -> bool:
                reads = await _counts(clients["a"], metrics.COLD_READS.name)
                asked = await _counts(clients["a"], metrics.CACHE_ASKED.name)
                return {("ac", "miss"), ("bc", "miss")} <= set(asked) and (
                    sum(asked.values()) >= 2 * len(first_half)
                    and sum(reads.values()) - sum(before.values()) >= 2 * len(first_half)
                )

            await eventually(told, "the servers have told what they read")
            reads = await _counts(clients["a"], metrics.COLD_READS.name)
            assert all(
                source == "cache" or count == before.get((name, source))
                for (name, source), count in reads.items()
            )
            assert {name[0] for name, source in reads if source == "cache"} == {"a", "b"}
            asked = await _counts(clients["a"], metrics.CACHE_ASKED.name)
            for zone in "ab":
                assert 0 < asked[f"{zone}c", "miss"] <= len(objects[zone])
                answered = sum(count for (name, _), count in asked.items() if name == f"{zone}c")
                assert answered >= len(first_half)

            caches["a"].kill()
            await asyncio.gather(*(read(number) for number in rest))

            async def told_again() -> bool:
                now = await _counts(clients["a"], metrics.COLD_READS.name)
                return any(
                    count > reads.get(each, 0)
                    for each, count in now.items()
                    if each[0][0] == "a" and each[1] == "bucket"
                )

            await eventually(told_again, "owners without a cache have read the bucket")


async def _live(client: Client, count: int) -> bool:
    return sum(each.state == "live" for each in await client.servers()) == count


async def _all_cold(world: World) -> None:
    for number in range(_STORES):
        for zone in "ab":
            await world.cold(_name(zone, number))


def _object(world: World, name: str) -> str:
    newest = world.newest(name)
    assert newest is not None
    return newest.key
