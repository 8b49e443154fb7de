"""Three zones of servers, as real processes, and a client in each."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from holdfast.client import Client, connect
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreKind
from tests.support.cluster import TENANT, running_processes
from tests.support.waiting import eventually

_ZONES = ("a", "b", "c")
_STORES = 4


async def _crossing(client: Client) -> dict[str, dict[str, float]]:
    """The bytes of requests and answers of each server, by where the client was."""
    found: dict[str, dict[str, float]] = {}
    for part in await client.statistics():
        for sample in part.samples:
            if sample.name in (metrics.REQUEST_BYTES.name, metrics.REPLY_BYTES.name):
                counts = found.setdefault(part.name, {})
                place = sample.labels[0][1]
                counts[place] = counts.get(place, 0) + float(sample.value)  # type: ignore[arg-type]
    return found


async def test_clients_that_keep_to_their_zone_send_no_byte_to_another_also_after_a_kill(
    tmp_path: Path,
) -> None:
    with running_processes(tmp_path) as processes:
        servers = {
            f"{zone}{number}": processes.start_persist(f"{zone}{number}", "--zone", zone)
            for zone in _ZONES
            for number in (1, 2)
        }
        async with AsyncExitStack() as closing:
            clients = {
                zone: await closing.enter_async_context(
                    connect(processes.nats.url, tenant=TENANT, zone=zone)
                )
                for zone in _ZONES
            }
            any_client = clients["a"]

            async def live(*names: str) -> bool:
                found = await any_client.servers()
                return {each.server for each in found if each.state == "live"} >= set(names)

            async def owners(zone: str) -> set[str]:
                names = {f"{zone}.{number}" for number in range(_STORES)}
                found = any_client.stores(kind=StoreKind.STREAM, prefix=zone)
                return {each.server async for each in found if each.name in names}

            await eventually(lambda: live(*servers), "all servers are live")
            zones = {each.server: each.zone for each in await any_client.servers()}
            assert zones == {name: name[0] for name in servers}

            async def use(zone: str, text: bytes) -> None:
                for number in range(_STORES):
                    stream = clients[zone].stream(f"{zone}.{number}")
                    await stream.append(text)
                    assert [each.value async for each in stream.get_all()][-1] == text

            for zone in _ZONES:
                await use(zone, b"one")
                assert await owners(zone) == {f"{zone}1", f"{zone}2"}
            servers["b1"].kill()
            await use("b", b"two")
            assert await owners("b") == {"b2"}

            async def told() -> bool:
                counts = await _crossing(any_client)
                return all(counts.get(name, {}).get("same", 0) > 100 for name in ("a1", "b2", "c2"))

            await eventually(told, "the servers have told what they counted")
            counts = await _crossing(any_client)
            assert not any("another" in each for each in counts.values()), counts

            # Whoever leaves the zone is counted.
            await clients["c"].stream("a.0").get(1)

            async def crossed() -> bool:
                counts = await _crossing(any_client)
                return sum(each.get("another", 0) for each in counts.values()) > 0

            await eventually(crossed, "what crossed the zones is told")
