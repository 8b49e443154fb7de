"""What only the bus over NATS has: connections that break or pass nothing any more, foreign bytes,
and a nats-py that is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.protocol.bus import bus_nats
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.errors import ConnectionFailedError
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.raw_nats import raw_nats
from tests.support.received import DEADLINE_SECONDS, Received, unknown_nats_py
from tests.support.stalling_proxy import stalling_proxy
from tests.support.waiting import until


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path_factory.mktemp("bus")) as server:
        yield server


async def test_no_header_that_a_peer_sends_makes_a_bus_deaf(nats_server: NatsServer) -> None:
    bus, received = await connect_nats(nats_server.url, name="test"), Received()
    try:
        await bus.subscribe("h", received)
        await bus.flush()
        async with raw_nats(nats_server.port) as raw:
            for headers in (
                b"NATS/1.0\r\n\r\n",
                b"NATS/1.0 503\r\n\r\n",
                b"NATS/1.0 \xff\xfe\r\n\r\n",
                b"NATS/1.0\r\n\xff: \x00\r\n: \r\n\r\n",
                b"N",
                b"\r\n\r\n",
            ):
                await raw.publish(b"h", b"x", headers=headers)
            await raw.publish(b"h", b"end")
        messages = await received.first(7)
        assert [message.payload for message in messages] == [b"x"] * 6 + [b"end"]
        assert not any(message.no_responders for message in messages)
    finally:
        await bus.close()


def test_a_server_does_not_start_with_a_nats_py_that_is_not_known(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_nats, "check_nats_py", unknown_nats_py)
    with pytest.raises(ConnectionFailedError, match="not known"):
        asyncio.run(connect_nats(nats_server.url, name="server", strict=True))


@pytest.mark.parametrize("unsent", [False, True])
async def test_a_connection_that_passes_nothing_any_more_is_replaced(
    nats_server: NatsServer, unsent: bool
) -> None:
    async with stalling_proxy(nats_server.port) as proxy:
        bus, other = await connect_nats(proxy.url, name="test"), None
        try:
            other = await connect_nats(nats_server.url, name="test")
            received, returned = Received(), asyncio.Event()
            bus.on_reconnect(returned.set)
            await bus.subscribe("s", received)
            await bus.flush()
            proxy.stall()
            publishing = None
            if unsent:
                publishing = asyncio.create_task(_publish_much(bus))
            await until(lambda: proxy.accepted_count > 1, 3 * DEADLINE_SECONDS)
            proxy.heal()
            await returned.wait()
            if publishing is not None:
                await publishing
            await bus.flush()
            await other.publish("s", b"after")
            assert (await received.first(1))[0].payload == b"after"
        finally:
            await bus.close()
            if other is not None:
                await other.close()


async def _publish_much(bus: Bus) -> None:
    """More than all sockets on the way hold."""
    for _ in range(40):
        await bus.publish("much", bytes(bus.max_payload_bytes))


async def test_a_bus_whose_connection_passes_nothing_any_more_can_be_closed(
    nats_server: NatsServer,
) -> None:
    async with stalling_proxy(nats_server.port) as proxy:
        bus = await connect_nats(proxy.url, name="test")
        proxy.stall()
        publishing = asyncio.create_task(_publish_much(bus))
        request = asyncio.create_task(bus.request("r", b"", 600.0))
        await asyncio.sleep(0)
        await bus.close()
        with pytest.raises(ConnectionFailedError):
            await request
        await publishing


@pytest.mark.parametrize("turns", range(6))
async def test_a_bus_can_be_closed_in_any_turn_after_its_connection_broke(
    nats_server: NatsServer, turns: int
) -> None:
    async with stalling_proxy(nats_server.port) as proxy:
        bus = await connect_nats(proxy.url, name="test")
        await bus.flush()
        proxy.drop()
        while bus.connected:
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await bus.close()
        assert not bus.connected


async def test_a_read_loop_that_ended_is_noticed_and_the_connection_replaced(
    nats_server: NatsServer,
) -> None:
    bus = await connect_nats(nats_server.url, name="test")
    try:
        received, returned = Received(), asyncio.Event()
        bus.on_reconnect(returned.set)
        await bus.subscribe("s", received)
        await bus.flush()
        bus._client._reading_task.cancel()
        await returned.wait()
        await bus.publish("s", b"after")
        assert (await received.first(1))[0].payload == b"after"
    finally:
        await bus.close()


async def test_a_connection_takes_replies_under_its_own_prefix_only_where_that_is_the_tenants(
    nats_server: NatsServer,
) -> None:
    prefix = "_INBOX.acme.ada"
    bus = await connect_nats(nats_server.url, name="test", inbox_prefix=prefix)
    try:
        assert bus.new_inbox("acme").startswith("_INBOX.acme.ada.")
        assert bus.new_inbox("acm").startswith("_INBOX.acm.")
        assert bus.new_inbox("_").startswith("_INBOX._.")
    finally:
        await bus.close()
