"""What only the bus over NATS has: connections that break or pass nothing any more, foreign bytes,
and a nats-py that is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from holdfast.client import Client, connect
from holdfast.protocol.bus import bus_nats
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin, TlsFiles
from holdfast.protocol.errors import ConnectionFailedError, InvalidArgumentError
from holdfast.protocol.subjects import Inboxes
from tests.support.certificates import TestCa
from tests.support.nats_server import NatsServer, running_nats_cluster, running_nats_server
from tests.support.raw_nats import raw_nats
from tests.support.received import DEADLINE_SECONDS, Received, unknown_nats_py
from tests.support.stalling_proxy import stalling_proxy
from tests.support.waiting import until


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path_factory.mktemp("bus")) as server:
        yield server


@dataclass(frozen=True)
class Way:
    """A way to a nats-server: its port, and how to log in."""

    port: int
    login: NatsLogin


@pytest.fixture(scope="module")
def plain(nats_server: NatsServer) -> Way:
    return Way(nats_server.port, NatsLogin())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    folder = tmp_path_factory.mktemp("tls")
    ca = TestCa(folder)
    cert, key = ca.signed("server")
    options = ("--tls", "--tlscert", str(cert), "--tlskey", str(key))
    with running_nats_server(folder, *options) as server:
        yield Way(server.port, NatsLogin(tls=TlsFiles(ca=ca.file)))


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Way:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Way)
    return found


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_messages_pass_both_ways_over_tls(
    tls: Way, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def exchange() -> None:
        url = f"nats://127.0.0.1:{tls.port}"
        bus, received = await connect_nats(url, name="test", login=tls.login), Received()
        try:
            await bus.subscribe("large", received)
            payloads = [bytes([number]) * (bus.max_payload_bytes - number) for number in range(8)]
            for payload in payloads:
                await bus.publish("large", payload)
            assert [one.payload for one in await received.first(8)] == payloads
        finally:
            await bus.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(exchange())


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


@pytest.mark.parametrize(
    ("way", "unsent"), [("plain", False), ("plain", True), ("tls", True)], indirect=["way"]
)
async def test_a_connection_that_passes_nothing_any_more_is_replaced(
    way: Way, unsent: bool
) -> None:
    async with stalling_proxy(way.port) as proxy:
        bus, other = await connect_nats(proxy.url, name="test", login=way.login), None
        try:
            url = f"nats://127.0.0.1:{way.port}"
            other = await connect_nats(url, name="test", login=way.login)
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


@pytest.mark.parametrize("way", ["plain", "tls"], indirect=True)
async def test_a_bus_whose_connection_passes_nothing_any_more_can_be_closed(way: Way) -> None:
    async with stalling_proxy(way.port) as proxy:
        bus = await connect_nats(proxy.url, name="test", login=way.login)
        proxy.stall()
        publishing = asyncio.create_task(_publish_much(bus))
        request = asyncio.create_task(bus.request("r", b"", 600.0))
        await asyncio.sleep(0)
        await bus.close()
        with pytest.raises(ConnectionFailedError):
            await request
        await publishing


@pytest.mark.parametrize("way", ["plain", "tls"], indirect=True)
@pytest.mark.parametrize("turns", range(6))
async def test_a_bus_can_be_closed_in_any_turn_after_its_connection_broke(
    way: Way, turns: int
) -> None:
    async with stalling_proxy(way.port) as proxy:
        bus = await connect_nats(proxy.url, name="test", login=way.login)
        await bus.flush()
        proxy.drop()
        while bus.connected:
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await bus.close()
        assert not bus.connected


@pytest.mark.parametrize("way", ["plain", "tls"], indirect=True)
async def test_a_read_loop_that_ended_is_noticed_and_the_connection_replaced(way: Way) -> None:
    bus = await connect_nats(f"nats://127.0.0.1:{way.port}", name="test", login=way.login)
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


@pytest.mark.parametrize("greeting", [b"", b'INFO {"server_id":"x","max_payload":1048576}\r\n'])
async def test_a_bus_that_is_closed_in_any_turn_of_a_failed_login_leaves_no_task_behind(
    tmp_path: Path, greeting: bytes
) -> None:
    arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        arrived.put_nowait(writer)

    with running_nats_server(tmp_path) as server:
        for turns in range(6):
            others = asyncio.all_tasks()
            bus = await connect_nats(server.url, name="test")
            server.kill()
            async with await asyncio.start_server(greet, "127.0.0.1", server.port):
                writer = await arrived.get()
                # Time for it to read the greeting, and to wait for more.
                await asyncio.sleep(0.02)
                writer.write(b"-ERR 'Authorization Violation'\r\n")
                writer.close()
                for _ in range(turns):
                    await asyncio.sleep(0)
                await bus.close()
                assert asyncio.all_tasks() == others, turns
                assert not bus.connected
                while not arrived.empty():
                    arrived.get_nowait().close()
            server.restart()


@pytest.mark.parametrize("greeting", [b"INFO []\r\n", bytes(200_000)])
async def test_a_bus_outlasts_a_server_that_greets_it_with_nonsense(
    tmp_path: Path, greeting: bytes
) -> None:
    greeted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        greeted.put_nowait(writer)

    with running_nats_server(tmp_path) as server:
        bus = await connect_nats(server.url, name="test")
        reconnected = asyncio.Event()
        bus.on_reconnect(reconnected.set)
        server.kill()
        async with await asyncio.start_server(greet, "127.0.0.1", server.port):
            writer = await greeted.get()
            await writer.drain()
        server.restart()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reconnected.wait()
        writer.close()
        await bus.flush()
        await bus.close()


async def test_what_fails_each_attempt_to_reconnect_is_logged_once_per_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempt_count = 0

    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempt_count
        attempt_count += 1
        writer.close()

    def errors() -> list[str]:
        return [text for text in caplog.messages if text.startswith("bus.error")]

    with running_nats_cluster(tmp_path, 2, "--no_advertise") as (one, other):
        bus = await connect_nats(f"{one.url},{other.url}", name="test")
        one.kill()
        other.kill()
        # From here on, its attempts fail for two reasons in turn.
        async with await asyncio.start_server(refuse, "127.0.0.1", other.port):
            await until(lambda: attempt_count > 4, "it has tried both several times")
        assert len(errors()) == len(set(errors())) > 1
        # A connection that breaks before its callbacks ran belongs to the same outage.
        reconnected = asyncio.Event()
        bus.on_reconnect(reconnected.set)
        one.restart()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reconnected.wait()
        caplog.clear()
        one.kill()
        await until(lambda: len(errors()) > 1, "the next outage is logged too")
        await bus.close()


async def test_a_connection_takes_replies_under_its_own_prefix_only_where_that_is_the_tenants(
    nats_server: NatsServer,
) -> None:
    inboxes = Inboxes.parse("_INBOX.acme.ada", "acme")
    bus = await connect_nats(nats_server.url, name="test", inboxes=inboxes)
    try:
        assert bus.new_inbox("acme").startswith("_INBOX.acme.ada.")
        assert bus.new_inbox("acm").startswith("_INBOX.acm.")
        assert bus.new_inbox("_").startswith("_INBOX._.")
    finally:
        await bus.close()


async def test_a_client_waits_for_a_nats_that_starts_after_it(tmp_path: Path) -> None:
    with running_nats_server(tmp_path) as server:
        server.kill()
        with pytest.raises(ConnectionFailedError):
            await connect(server.url)
        with pytest.raises(ConnectionFailedError):
            await connect(server.url, wait_seconds=0.05)

        async def opened() -> Client:
            return await connect(server.url, wait_seconds=float("inf"))

        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(opened())
            server.start()
        async with opening.result() as client:
            assert client.connected
            told: list[str] = []
            end = client.on_disconnect(lambda: told.append("lost"))
            client.on_disconnect(lambda: told.append("lost too"))
            client.on_reconnect(lambda: told.append("back"))
            server.kill()
            await until(lambda: len(told) == 2, "its loss is told")
            end()
            server.start()
            await until(lambda: len(told) == 3, "its return is told")
            assert told == ["lost", "lost too", "back"]
        assert len(told) == 3
    with pytest.raises(InvalidArgumentError):
        connect(wait_seconds=0)
