"""What every Bus does, asked of the one over NATS (with a real nats-server) and of the one in
memory."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from holdfast.protocol.bus import bus_nats
from holdfast.protocol.bus.bus import Bus, BusMessage, BusTimeoutError, NoRespondersError
from holdfast.protocol.bus.bus_memory import MemoryDelivery, MemoryNetwork
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.errors import ConnectionFailedError, InvalidArgumentError, TooLargeError
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.raw_nats import raw_nats
from tests.support.stalling_proxy import stalling_proxy

_DEADLINE_SECONDS = 10.0

Connect = Callable[[], Awaitable[Bus]]


@dataclass
class _System:
    """A pub/sub system to connect to, which can be taken away and given back."""

    connect: Connect
    stop: Callable[[], None]
    start: Callable[[], None]
    #: Publishes what a foreign client can: any bytes for subject, payload and reply.
    inject: Callable[[bytes, bytes, bytes], Awaitable[None]]


@asynccontextmanager
async def _memory() -> AsyncIterator[_System]:
    network = MemoryNetwork()

    async def connect() -> Bus:
        return network.connect("test")

    async def inject(subject: bytes, payload: bytes, reply: bytes) -> None:
        network.inject(subject, payload, reply)

    yield _System(connect, network.drop_all, network.return_all, inject)


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path_factory.mktemp("bus")) as server:
        yield server


@pytest.fixture(params=["nats", "nats by its public API", "memory"])
def system(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], AbstractAsyncContextManager[_System]]:
    if request.param == "memory":
        return _memory
    if request.param == "nats by its public API":
        monkeypatch.setattr(bus_nats, "check_nats_py", _unknown_nats_py)
    server: NatsServer = request.getfixturevalue("nats_server")

    @asynccontextmanager
    async def over_nats() -> AsyncIterator[_System]:
        async def connect() -> Bus:
            return await connect_nats(server.url, name="test")

        async def inject(subject: bytes, payload: bytes, reply: bytes) -> None:
            async with raw_nats(server.port) as raw:
                await raw.publish(subject, payload, reply)

        yield _System(connect, server.kill, server.start, inject)

    return over_nats


def _unknown_nats_py() -> None:
    raise ConnectionFailedError(url="NATS", reason="this nats-py is not known")


_AnySystem = Callable[[], AbstractAsyncContextManager[_System]]


def _run(system: _AnySystem, test: Callable[[_System, Bus, Bus], Awaitable[None]]) -> None:
    """Run `test` with two connections."""

    async def main() -> None:
        async with asyncio.timeout(4 * _DEADLINE_SECONDS), system() as running:
            one, other = await running.connect(), await running.connect()
            try:
                await test(running, one, other)
            finally:
                await one.close()
                await other.close()

    asyncio.run(main())


class _Received:
    """Collects messages, and waits for them."""

    def __init__(self) -> None:
        self.messages: list[BusMessage] = []
        self._arrived = asyncio.Event()

    def __call__(self, message: BusMessage) -> None:
        self.messages.append(message)
        self._arrived.set()

    async def first(self, count: int) -> list[BusMessage]:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while len(self.messages) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.messages[:count]


async def _until(condition: Callable[[], bool], seconds: float = _DEADLINE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def _until_nobody_listens(bus: Bus, subject: str) -> None:
    """The system may still deliver to a connection that was closed a moment ago."""
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            try:
                await bus.request(subject, b"", 0.1)
            except NoRespondersError:
                return
            except BusTimeoutError:
                continue


def test_a_message_reaches_every_subscription_in_the_order_of_publishing(
    system: _AnySystem,
) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        first, second = _Received(), _Received()
        await one.subscribe("a.b", first)
        await other.subscribe("a.b", second)
        await one.flush()
        await other.flush()
        for number in range(100):
            await one.publish("a.b", b"%d" % number)
        expected = [BusMessage("a.b", b"%d" % number, "") for number in range(100)]
        assert await first.first(100) == expected
        assert await second.first(100) == expected

    _run(system, test)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", "b.a"]),
        ("a.*", ["a.b", "a.c"], ["a", "a.b.c", "b.a"]),
        ("*.b", ["a.b", "c.b"], ["b", "a.b.c", "a.c"]),
        ("a.>", ["a.b", "a.b.c"], ["a", "b.a"]),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.d", "a.b.c.d"]),
        (">", ["a", "a.b"], []),
    ],
)
def test_wildcards_match_whole_tokens(
    system: _AnySystem, pattern: str, matching: list[str], others: list[str]
) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        received = _Received()
        await one.subscribe(f"w.{pattern}", received)
        await one.flush()
        for subject in (*others, *matching):
            await other.publish(f"w.{subject}", b"")
        subjects = [message.subject for message in await received.first(len(matching))]
        assert subjects == [f"w.{subject}" for subject in matching]
        await other.flush()
        assert len(received.messages) == len(matching)

    _run(system, test)


def test_nothing_arrives_once_unsubscribed(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        gone, control = _Received(), _Received()
        subscription = await one.subscribe("u", gone)
        await one.subscribe("u", control)
        await one.flush()
        await subscription.unsubscribe()
        await subscription.unsubscribe()
        await one.flush()
        await other.publish("u", b"x")
        await control.first(1)
        assert gone.messages == []

    _run(system, test)


def test_a_request_gets_the_first_reply(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        answering: list[asyncio.Task[None]] = []

        def answer(message: BusMessage) -> None:
            assert message.reply
            payload = message.payload + b"!"
            answering.append(asyncio.ensure_future(other.publish(message.reply, payload)))

        await other.subscribe("q", answer)
        await other.flush()
        replies = await asyncio.gather(
            *(one.request("q", b"%d" % number, _DEADLINE_SECONDS) for number in range(20))
        )
        assert replies == [b"%d!" % number for number in range(20)]
        await asyncio.gather(*answering)

    _run(system, test)


def test_a_request_that_nobody_listens_to_fails_at_once(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        with pytest.raises(NoRespondersError) as caught:
            await one.request("nobody", b"", 60.0)
        assert caught.value.fields == {"subject": "nobody"}

    _run(system, test)


def test_a_request_that_nobody_answers_times_out(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        await other.subscribe("silent", _Received())
        await other.flush()
        with pytest.raises(BusTimeoutError) as caught:
            await one.request("silent", b"", 0.05)
        assert caught.value.fields == {"subject": "silent", "timeout_seconds": 0.05}

    _run(system, test)


def test_a_publish_with_a_reply_that_nobody_listens_to_is_answered_so(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        mine, of_the_other = _Received(), _Received()
        inbox = one.new_inbox()
        await one.subscribe(f"{inbox}.*", mine)
        await other.subscribe("replies", of_the_other)
        await one.flush()
        await one.publish("nobody", b"x", f"{inbox}.7")
        await one.publish("nobody", b"x")
        (message,) = await mine.first(1)
        assert (message.subject, message.payload) == (f"{inbox}.7", b"")
        assert message.no_responders
        await one.flush()
        assert len(mine.messages) == 1

    _run(system, test)


def test_an_inbox_is_used_by_nobody_else(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        inboxes = [bus.new_inbox() for bus in (one, other, one, other)]
        assert len(set(inboxes)) == 4

    _run(system, test)


def test_replies_come_to_inboxes_of_the_tenant_in_whose_name_is_asked(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        asked: list[str] = []
        tasks = []

        def answer(message: BusMessage) -> None:
            asked.append(message.reply)
            tasks.append(asyncio.create_task(other.publish(message.reply, message.payload)))

        await other.subscribe("q", answer)
        await other.flush()
        assert await one.request("q", b"1", _DEADLINE_SECONDS) == b"1"
        assert await one.request("q", b"2", _DEADLINE_SECONDS, "acme") == b"2"
        assert await one.request("q", b"3", _DEADLINE_SECONDS, "ac") == b"3"
        assert [".".join(reply.split(".")[:2]) for reply in asked] == [
            "_INBOX._",
            "_INBOX.acme",
            "_INBOX.ac",
        ]
        assert one.new_inbox().startswith("_INBOX._.")
        assert one.new_inbox("acme").startswith("_INBOX.acme.")
        with pytest.raises(NoRespondersError):
            await one.request("nobody", b"", 60.0, "acme")

    _run(system, test)


def test_a_payload_over_the_limit_is_refused_and_the_largest_arrives(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        received = _Received()
        await other.subscribe("large", received)
        await other.flush()
        limit = one.max_payload_bytes
        too_large = {"what": "payload", "size": limit + 1, "limit": limit}
        with pytest.raises(TooLargeError) as caught:
            await one.publish("large", bytes(limit + 1))
        assert caught.value.fields == too_large
        with pytest.raises(TooLargeError) as caught:
            await one.request("large", bytes(limit + 1), 1.0)
        assert caught.value.fields == too_large
        await one.publish("large", bytes(limit))
        (message,) = await received.first(1)
        assert len(message.payload) == limit

    _run(system, test)


def test_a_callback_runs_in_the_context_of_its_subscription(system: _AnySystem) -> None:
    variable = contextvars.ContextVar("variable", default="")

    async def test(_: _System, one: Bus, other: Bus) -> None:
        seen: list[str] = []
        received = _Received()

        def callback(message: BusMessage) -> None:
            seen.append(variable.get())
            received(message)

        variable.set("subscriber")
        await one.subscribe("c", callback)
        variable.set("later")
        await one.flush()
        await other.publish("c", b"")
        await received.first(1)
        assert seen == ["subscriber"]

    _run(system, test)


def test_subscriptions_outlive_a_loss_of_the_connection(system: _AnySystem) -> None:
    async def test(running: _System, one: Bus, other: Bus) -> None:
        received, returns = _Received(), [0, 0]

        def count(index: int) -> Callable[[], None]:
            def callback() -> None:
                returns[index] += 1

            return callback

        for index, bus in enumerate((one, other)):
            bus.on_reconnect(count(index))
        await one.subscribe("r", received)
        await one.flush()
        assert one.connected
        running.stop()
        await _until(lambda: not one.connected and not other.connected)
        running.start()
        await _until(lambda: returns == [1, 1])
        assert one.connected
        await one.flush()
        await other.publish("r", b"after")
        assert (await received.first(1))[-1].payload == b"after"

    _run(system, test)


def test_a_closed_bus_is_closed(system: _AnySystem) -> None:
    async def test(running: _System, one: Bus, other: Bus) -> None:
        received = _Received()
        await one.subscribe("x", received)
        await one.flush()
        await one.close()
        await one.close()
        assert not one.connected
        await one.publish("x", b"lost in silence")
        with pytest.raises(ConnectionFailedError):
            await one.request("x", b"", 1.0)
        with pytest.raises(ConnectionFailedError):
            await one.flush()
        await _until_nobody_listens(other, "x")
        assert received.messages == []

    _run(system, test)


#: What nats-py takes for white space, or cannot decode, and a nats-server for a byte like others.
_ODD_BYTES = [
    b"\x0b",
    b"\x0c",
    b"\x1c",
    b"\x1d",
    b"\x1e",
    b"\x1f",
    b"\r",
    b"\x00",
    b"\xff\xfe",
    b"\x85",
]


# Not by the public API: nats-py's own parser takes these for spaces, which is why no server starts
# with it.
@pytest.mark.parametrize("system", ["nats", "memory"], indirect=True)
@pytest.mark.parametrize("odd", _ODD_BYTES)
def test_no_subject_or_reply_that_a_peer_sends_reaches_another_subscription_or_makes_it_deaf(
    system: _AnySystem, odd: bytes
) -> None:
    async def test(running: _System, one: Bus, other: Bus) -> None:
        first, second, third = _Received(), _Received(), _Received()
        # Their numbers are 1, 2, 3 on this connection.
        await one.subscribe("quiet.one", first)
        await one.subscribe("hf.*.coord.>", second)
        await one.subscribe("quiet.two", third)
        await one.flush()
        for number in (b"1", b"2", b"3", b""):
            await running.inject(b"hf.evil.coord." + odd + number, b"as a subject", b"")
            await running.inject(b"hf.evil.coord.x" + odd + number, b"as a subject", b"in.box")
            await running.inject(b"hf.evil.coord.r", b"as a reply", b"in" + odd + number)
            await running.inject(b"hf.evil.coord.r", b"as a reply", b"in" + odd + number + b".x")
        for reply in (b"in..box", b".in", b"in.", b"in.*", b"in.>", b"in\xc3\xa9", b"x" * 2000):
            await running.inject(b"hf.evil.coord.r", b"as a reply", reply)
        await running.inject(b"hf.evil.coord.end", b"", b"in.box")
        received = await second.first(16)
        assert [message.payload for message in received] == [b"as a reply"] * 15 + [b""]
        # Nobody can be answered there, so nobody is asked to.
        assert {message.reply for message in received[:-1]} == {""}
        assert received[-1].reply == "in.box"
        assert first.messages == third.messages == []
        assert one.connected

    _run(system, test)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "a b",
        "a\tb",
        "a\r\nPUB x 0\r\n",
        "a\x0bb",
        "a\x00",
        "a..b",
        ".a",
        "a.",
        "a.*",
        ">",
        "\xe9",
    ],
)
def test_nothing_is_published_on_what_is_no_subject(system: _AnySystem, subject: str) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        received = _Received()
        await other.subscribe(">", received)
        await other.flush()
        with pytest.raises(InvalidArgumentError):
            await one.publish(subject, b"")
        with pytest.raises(InvalidArgumentError):
            await one.request(subject, b"", 1.0)
        if subject:
            with pytest.raises(InvalidArgumentError):
                await one.publish("a", b"", subject)
        await one.publish("end", b"")
        assert [message.subject for message in await received.first(1)] == ["end"]

    _run(system, test)


def test_an_exception_of_a_callback_costs_that_message_only(system: _AnySystem) -> None:
    async def test(_: _System, one: Bus, other: Bus) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        received = _Received()

        def callback(message: BusMessage) -> None:
            received(message)
            if message.payload == b"1":
                raise RecursionError("planted")

        await one.subscribe("c", callback)
        await one.flush()
        for payload in (b"0", b"1", b"2"):
            await other.publish("c", payload)
        assert [message.payload for message in await received.first(3)] == [b"0", b"1", b"2"]
        assert one.connected

    _run(system, test)


def test_a_bus_can_be_closed_one_turn_after_its_connection_broke(system: _AnySystem) -> None:
    async def test(running: _System, one: Bus, other: Bus) -> None:
        running.stop()
        try:
            # In the first turns of the loop that notice, and in those of reconnecting.
            await asyncio.sleep(0)
            await one.close()
            await _until(lambda: not other.connected)
            await asyncio.sleep(0)
            await other.close()
        finally:
            running.start()
        assert not one.connected

    _run(system, test)


# What only the one over NATS has
def test_no_header_that_a_peer_sends_makes_a_bus_deaf(nats_server: NatsServer) -> None:
    async def main() -> None:
        bus, received = await connect_nats(nats_server.url, name="test"), _Received()
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

    asyncio.run(main())


def test_a_server_does_not_start_with_a_nats_py_that_is_not_known(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_nats, "check_nats_py", _unknown_nats_py)
    with pytest.raises(ConnectionFailedError, match="not known"):
        asyncio.run(connect_nats(nats_server.url, name="server", strict=True))


@pytest.mark.parametrize("unsent", [False, True])
def test_a_connection_that_passes_nothing_any_more_is_replaced(
    nats_server: NatsServer, unsent: bool
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(6 * _DEADLINE_SECONDS),
            stalling_proxy(nats_server.port) as proxy,
        ):
            bus, other = await connect_nats(proxy.url, name="test"), None
            try:
                other = await connect_nats(nats_server.url, name="test")
                received, returned = _Received(), asyncio.Event()
                bus.on_reconnect(returned.set)
                await bus.subscribe("s", received)
                await bus.flush()
                proxy.stall()
                publishing = None
                if unsent:
                    publishing = asyncio.create_task(_publish_much(bus))
                await _until(lambda: proxy.accepted_count > 1, 3 * _DEADLINE_SECONDS)
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

    asyncio.run(main())


async def _publish_much(bus: Bus) -> None:
    """More than all sockets on the way hold."""
    for _ in range(40):
        await bus.publish("much", bytes(bus.max_payload_bytes))


def test_a_bus_whose_connection_passes_nothing_any_more_can_be_closed(
    nats_server: NatsServer,
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(2 * _DEADLINE_SECONDS),
            stalling_proxy(nats_server.port) as proxy,
        ):
            bus = await connect_nats(proxy.url, name="test")
            proxy.stall()
            publishing = asyncio.create_task(_publish_much(bus))
            request = asyncio.create_task(bus.request("r", b"", 600.0))
            await asyncio.sleep(0)
            await bus.close()
            with pytest.raises(ConnectionFailedError):
                await request
            await publishing

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_bus_can_be_closed_in_any_turn_after_its_connection_broke(
    nats_server: NatsServer, turns: int
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(2 * _DEADLINE_SECONDS),
            stalling_proxy(nats_server.port) as proxy,
        ):
            bus = await connect_nats(proxy.url, name="test")
            await bus.flush()
            proxy.drop()
            while bus.connected:
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await bus.close()
            assert not bus.connected

    asyncio.run(main())


def test_a_read_loop_that_ended_is_noticed_and_the_connection_replaced(
    nats_server: NatsServer,
) -> None:
    async def main() -> None:
        async with asyncio.timeout(3 * _DEADLINE_SECONDS):
            bus = await connect_nats(nats_server.url, name="test")
            try:
                received, returned = _Received(), asyncio.Event()
                bus.on_reconnect(returned.set)
                await bus.subscribe("s", received)
                await bus.flush()
                bus._client._reading_task.cancel()
                await returned.wait()
                await bus.publish("s", b"after")
                assert (await received.first(1))[0].payload == b"after"
            finally:
                await bus.close()

    asyncio.run(main())


def test_a_connection_takes_replies_under_its_own_prefix_only_where_that_is_the_tenants(
    nats_server: NatsServer,
) -> None:
    async def main() -> None:
        prefix = "_INBOX.acme.ada"
        bus = await connect_nats(nats_server.url, name="test", inbox_prefix=prefix)
        try:
            assert bus.new_inbox("acme").startswith("_INBOX.acme.ada.")
            assert bus.new_inbox("acm").startswith("_INBOX.acm.")
            assert bus.new_inbox("_").startswith("_INBOX._.")
        finally:
            await bus.close()

    asyncio.run(main())


# What only the one in memory can
def test_the_policy_of_the_one_in_memory_loses_doubles_and_delays() -> None:
    fates = {b"lost": (), b"doubled": (0.0, 0.0), b"late": (0.02,), b"early": (0.0,)}

    def policy(delivery: MemoryDelivery) -> tuple[float, ...]:
        assert (delivery.sender, delivery.receiver) == ("sender", "receiver")
        return fates[delivery.payload]

    async def main() -> None:
        network = MemoryNetwork(policy)
        published: list[bytes] = []
        network.taps.append(lambda sender, message: published.append(message.payload))
        sender, receiver = network.connect("sender"), network.connect("receiver")
        received = _Received()
        await receiver.subscribe("s", received)
        for payload in (b"late", b"lost", b"doubled", b"early"):
            await sender.publish("s", payload)
        payloads = [message.payload for message in await received.first(4)]
        assert payloads == [b"doubled", b"doubled", b"early", b"late"]
        assert published == [b"late", b"lost", b"doubled", b"early"]

    asyncio.run(main())


def test_what_is_on_its_way_when_the_connection_is_lost_does_not_arrive_after_its_return() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        sender, receiver = network.connect("sender"), network.connect("receiver")
        received = _Received()
        await receiver.subscribe("s", received)
        await sender.publish("s", b"before")
        receiver.drop()
        await sender.publish("s", b"meanwhile")
        receiver.come_back()
        await sender.publish("s", b"after")
        assert [message.payload for message in await received.first(1)] == [b"after"]
        await sender.flush()
        assert len(received.messages) == 1

    asyncio.run(main())
