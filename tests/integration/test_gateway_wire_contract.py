"""What the gateway's two ports do, asked of those over a real nats-server and those in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
import uvloop

from holdfast.gateway.jetstream.wire.client_connection import connect_client
from holdfast.gateway.jetstream.wire.leaf_connection import connect_leaf
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.ports import ClientPort, LeafPort, PortMessage
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import MAX_PORT_SUBJECTS_BYTES
from tests.support.leaf_nats import running_leaf_nats
from tests.support.nats_server import NatsServer
from tests.support.received import DEADLINE_SECONDS
from tests.support.waiting import until

ACK = "$JS.ACK.S.C.1.2.3.1234567890123456789.4"
STATUS = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 3\r\n\r\n"
BLOCK = b"NATS/1.0\r\nB: 1\r\na:  x \r\nB: 2\r\n\r\n"


@dataclass
class System:
    """A NATS system to connect to, which can be taken away and given back."""

    client: Callable[[str], Awaitable[ClientPort]]
    leaf: Callable[[], Awaitable[LeafPort]]
    stop: Callable[[], None]
    start: Callable[[], None]


def _memory() -> System:
    nats = MemoryNats()

    async def client(name: str) -> ClientPort:
        return nats.connect_client(name)

    async def leaf() -> LeafPort:
        return nats.connect_leaf("leaf")

    return System(client, leaf, nats.stop, nats.start)


def _over_nats(server: NatsServer, leaf_url: str) -> System:
    async def client(name: str) -> ClientPort:
        return await connect_client(server.url, name=name)

    async def leaf() -> LeafPort:
        return await connect_leaf(leaf_url, name="leaf")

    return System(client, leaf, server.kill, server.start)


@pytest.fixture(scope="module")
def leaf_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, str]]:
    with running_leaf_nats(tmp_path_factory.mktemp("wire")) as running:
        yield running


@pytest.fixture(params=["nats", "nats with uvloop", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runner(kind: str) -> Iterator[asyncio.Runner]:
    """Gateways run with uvloop, whose transports are others."""
    factory = uvloop.new_event_loop if "uvloop" in kind else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@pytest.fixture
def system(kind: str, request: pytest.FixtureRequest) -> System:
    if kind == "memory":
        return _memory()
    return _over_nats(*request.getfixturevalue("leaf_nats"))


@dataclass
class World:
    """A gateway's two connections, and that of an application."""

    system: System
    client: ClientPort
    leaf: LeafPort
    app: ClientPort


@pytest.fixture
def world(runner: asyncio.Runner, system: System) -> Iterator[World]:
    async def connect() -> World:
        client, app = await system.client("gateway"), await system.client("app")
        return World(system, client, await system.leaf(), app)

    async def close(world: World) -> None:
        for port in (world.client, world.leaf, world.app):
            await port.close()

    world = runner.run(connect())
    yield world
    runner.run(close(world))


class Heard:
    """What arrived at a subscription."""

    def __init__(self) -> None:
        self.messages: list[PortMessage] = []

    def __call__(self, message: PortMessage) -> None:
        self.messages.append(message)

    async def first(self, count: int) -> list[PortMessage]:
        await until(lambda: len(self.messages) >= count, f"{count} messages arrive")
        return self.messages[:count]


async def heard_by(port: ClientPort, subject: str, queue: str = "") -> Heard:
    """Subscribe, and return once nats-server knows."""
    heard = Heard()
    await port.subscribe(subject, heard, queue)
    await port.flush()
    return heard


async def passed(leaf: LeafPort) -> None:
    """Return behind a barrier."""
    done = asyncio.Event()
    leaf.barrier(done.set)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await done.wait()


@pytest.mark.parametrize(
    "subject", ["orders.1", "a@b.c", "$KV.bucket.key", "filter.*", "größe.ü", "x" * 1000]
)
async def test_a_delivery_arrives_with_the_subject_of_the_stream(
    world: World, subject: str
) -> None:
    heard = await heard_by(world.app, "_INBOX.a.*")
    await passed(world.leaf)
    world.leaf.deliver("_INBOX.a.1", b"v", reply=ACK, subject=subject, headers=BLOCK)
    world.leaf.deliver("_INBOX.a.1", b"w", reply=ACK, subject=subject)
    assert await heard.first(2) == [
        PortMessage(subject, ACK, BLOCK, b"v"),
        PortMessage(subject, ACK, b"", b"w"),
    ]


async def test_a_status_arrives_with_the_inbox_as_its_subject(world: World) -> None:
    heard = await heard_by(world.app, "_INBOX.a.*")
    await passed(world.leaf)
    world.leaf.deliver("_INBOX.a.1", b"", headers=STATUS)
    world.leaf.deliver("_INBOX.a.1", b"", headers=STATUS, reply="$JS.FC.S.C.1")
    world.leaf.deliver("_INBOX.a.1", b"{}")
    assert await heard.first(3) == [
        PortMessage("_INBOX.a.1", "", STATUS, b""),
        PortMessage("_INBOX.a.1", "$JS.FC.S.C.1", STATUS, b""),
        PortMessage("_INBOX.a.1", "", b"", b"{}"),
    ]


async def test_one_member_of_each_queue_group_and_all_others_get_a_delivery(world: World) -> None:
    members = [await heard_by(world.app, "work", "g") for _ in range(2)]
    wild = await heard_by(world.app, "*", "h")
    plain = [await heard_by(world.app, "work"), await heard_by(world.client, "work")]
    await passed(world.leaf)
    assert world.leaf.queue_groups("work") == {"g", "h"}
    for number in range(40):
        world.leaf.deliver("work", b"%d" % number, reply=ACK, subject="s", headers=BLOCK)
        world.leaf.deliver("work", b"%d" % number, reply=ACK, subject="s")
        world.leaf.deliver("work", b"%d" % number)
    for heard in (wild, *plain):
        assert len(await heard.first(120)) == 120
    await until(lambda: sum(len(each.messages) for each in members) >= 120)
    assert sum(len(each.messages) for each in members) == 120
    assert {each.subject for each in wild.messages} == {"s", "work"}
    # Both work: each message goes to either.
    assert all(each.messages for each in members)


async def test_many_are_answered_at_once_and_a_busy_gateway_gets_all_that_is_sent(
    world: World,
) -> None:
    asked = await heard_by(world.client, "ask")
    answers = await heard_by(world.app, "_INBOX.a.*")
    busy = True
    world.client.rest_after_pieces(lambda: 0.002 if busy else 0.0)
    for number in range(200):
        world.app.publish("ask", b"%d" % number, reply=f"_INBOX.a.{number}" if number % 4 else "")
        if number % 20 == 0:
            await world.app.flush()
        if number % 50 == 0:
            world.client.end_rest()
    found = await asked.first(200)
    busy = False
    world.client.acknowledge([each.reply for each in found], [f"{n}!" for n in range(200)])
    assert await answers.first(150) == [
        PortMessage(f"_INBOX.a.{number}", "", b"", b"%d!" % number)
        for number in range(200)
        if number % 4
    ]


async def test_a_large_delivery_and_a_large_publish_arrive_and_larger_ones_are_refused(
    world: World,
) -> None:
    heard = await heard_by(world.app, "big")
    limit = world.client.max_payload_bytes
    await passed(world.leaf)
    world.leaf.deliver("big", b"x" * limit, reply=ACK, subject="s")
    world.client.publish("big", b"y" * (limit - len(BLOCK)), headers=BLOCK)
    found = await heard.first(2)
    assert sorted(len(each.payload) for each in found) == [limit - len(BLOCK), limit]
    with pytest.raises(TooLargeError):
        world.leaf.deliver("big", b"x" * limit, headers=BLOCK)
    with pytest.raises(TooLargeError):
        world.client.publish("big", b"x" * (limit + 1))


async def test_text_that_would_break_a_line_is_refused(world: World) -> None:
    for bad in ("", "a b", "a\r\nPING", "a..b", "a\x0bb"):
        with pytest.raises(InvalidArgumentError):
            world.leaf.deliver(bad, b"")
        with pytest.raises(InvalidArgumentError):
            world.leaf.deliver("a", b"", reply=ACK, subject=bad or " ")
        with pytest.raises(InvalidArgumentError):
            world.client.publish(bad, b"")
        with pytest.raises(InvalidArgumentError):
            await world.client.subscribe(bad, print)
    with pytest.raises(InvalidArgumentError):
        world.leaf.deliver("a", b"", reply="b", subject="no.ack")


@pytest.mark.parametrize("subject", ["k" * 4080, "k" * 20_000, "é" * 2020])
async def test_a_subscription_that_nats_would_end_the_connection_for_is_refused(
    world: World, subject: str
) -> None:
    """Each reconnect would subscribe to it again."""
    with pytest.raises(InvalidArgumentError):
        await world.client.subscribe(subject, print)
    await world.client.flush()
    longest = "k" * MAX_PORT_SUBJECTS_BYTES
    await world.client.subscribe(longest, print)
    await world.client.flush()
    assert world.client.connected


async def test_who_is_told_to_end_as_a_flush_is_answered_ends(world: World) -> None:
    flushing = asyncio.get_running_loop().create_task(world.client.flush())
    flushes: set[asyncio.Future[object]] = world.client._flushes  # type: ignore[attr-defined]
    # It has begun, and no answer can have come.
    await asyncio.sleep(0)
    next(iter(flushes)).set_result(None)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing


async def test_messages_arrive_in_order_with_their_header_blocks(world: World) -> None:
    heard, delivered = await heard_by(world.client, "in.>"), await heard_by(world.app, "box")
    await passed(world.leaf)
    for number in range(500):
        world.app.publish("in.a", b"%d" % number, reply="r.x", headers=BLOCK if number % 2 else b"")
        world.leaf.deliver("box", b"%d" % number, reply=ACK, subject="s")
    assert await heard.first(500) == [
        PortMessage("in.a", "r.x", BLOCK if number % 2 else b"", b"%d" % number)
        for number in range(500)
    ]
    assert [each.payload for each in await delivered.first(500)] == [
        b"%d" % number for number in range(500)
    ]


async def test_many_answers_leave_together_and_those_that_are_too_large_are_named(
    world: World,
) -> None:
    answered = await heard_by(world.app, "box.>")
    large = b"x" * world.client.max_payload_bytes
    answers = [("box.1", BLOCK, b"1"), ("box.2", BLOCK, large), ("box.3", BLOCK, b"")]
    world.client.publish("box.0", b"before")
    assert world.client.answer(answers) == ["box.2"]
    world.client.publish("box.4", b"behind")
    assert await answered.first(4) == [
        PortMessage("box.0", "", b"", b"before"),
        PortMessage("box.1", "", BLOCK, b"1"),
        PortMessage("box.3", "", BLOCK, b""),
        PortMessage("box.4", "", b"", b"behind"),
    ]


async def test_a_subject_that_has_wildcards_itself_arrives(world: World) -> None:
    heard = await heard_by(world.client, "$KV.b.>")
    world.app.publish("$KV.b.a.*", b"", headers=BLOCK)
    world.app.publish("$KV.b.é", b"", reply="r.é")
    assert await heard.first(2) == [
        PortMessage("$KV.b.a.*", "", BLOCK, b""),
        PortMessage("$KV.b.é", "r.é", b"", b""),
    ]


async def test_each_message_reaches_one_member_of_a_queue_group(world: World) -> None:
    members = [await heard_by(world.client, "api.*", "hf.js") for _ in range(2)]
    everyone = await heard_by(world.client, "api.>")
    for number in range(60):
        world.app.publish("api.x", b"%d" % number)
    await everyone.first(60)
    await until(lambda: sum(len(each.messages) for each in members) >= 60)
    assert sum(len(each.messages) for each in members) == 60
    assert all(each.messages for each in members)


async def test_a_request_gets_an_answer_or_hears_that_nobody_listens_or_nothing(
    world: World,
) -> None:
    def answer(message: PortMessage) -> None:
        if message.payload:
            world.client.publish(message.reply, message.payload, headers=message.headers)

    await world.client.subscribe("echo", answer)
    await world.client.flush()
    for _ in range(2):
        found = await world.app.request("echo", b"v", timeout_seconds=9.0, headers=BLOCK)
        assert found[2:] == (BLOCK, b"v")
    with pytest.raises(NoRespondersError):
        await world.app.request("nobody", b"v", timeout_seconds=9.0)
    with pytest.raises(BusTimeoutError):
        await world.app.request("echo", b"", timeout_seconds=0.05)


async def test_a_client_may_not_ask_for_an_answer_where_acks_go(world: World) -> None:
    heard = await heard_by(world.client, "s.>")
    refused: list[NotAllowedError] = []
    world.app.on_refused(refused.append)
    world.app.publish("s.1", b"forged", reply=ACK)
    world.app.publish("s.1", b"fine")
    assert [each.payload for each in await heard.first(1)] == [b"fine"]
    await until(lambda: refused, "the refusal is told")


async def test_an_error_in_a_callback_costs_only_that_message(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def fragile(message: PortMessage) -> None:
        if not message.payload:
            raise ValueError("a bug")
        heard(message)

    await world.client.subscribe("a", fragile)
    await world.client.flush()
    world.app.publish("a", b"")
    world.app.publish("a", b"v")
    assert len(await heard.first(1)) == 1
    world.leaf.barrier(lambda: fragile(PortMessage("", "", b"", b"")))
    await passed(world.leaf)
    assert sum("callback_failed" in record.message for record in caplog.records) == 2


async def test_messages_that_come_together_are_taken_in_order_and_once(world: World) -> None:
    heard, sizes = Heard(), []

    def together(messages: list[PortMessage]) -> bool:
        if any(each.payload.endswith(b"33") for each in messages):
            return False
        sizes.append(len(messages))
        heard.messages += messages
        return True

    await world.client.subscribe("in.*", heard, together=together)
    await world.client.subscribe("other", heard)
    await world.client.flush()
    sent = []
    for number in range(500):
        subject = "other" if number % 50 == 49 else f"in.{number % 3}"
        reply = "" if number % 170 == 120 else f"box.{number}"
        headers = BLOCK if number % 4 == 0 else b""
        sent.append(PortMessage(subject, reply, headers, b"%d" % number))
        world.app.publish(subject, b"%d" % number, reply=reply, headers=headers)
    assert await heard.first(500) == sent
    assert sizes and 0 not in sizes


async def test_an_error_costs_the_messages_that_came_together_and_no_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    lost: list[PortMessage] = []

    def fragile(messages: list[PortMessage]) -> bool:
        if messages[0].payload == b"behind":
            return False
        lost.extend(messages)
        raise ValueError("a bug")

    await world.client.subscribe("a", heard, together=fragile)
    await world.client.flush()
    for number in range(20):
        world.app.publish("a", b"%d" % number, reply="r")
    await until(lambda: len(lost) + len(heard.messages) == 20, "all messages have come")
    world.app.publish("a", b"behind", reply="r")
    await until(lambda: heard.messages[-1:] == [PortMessage("a", "r", b"", b"behind")], "the last")
    assert sum("callback_failed" in record.message for record in caplog.records) >= 1


async def test_no_callback_after_unsubscribing(world: World) -> None:
    heard, other = Heard(), await heard_by(world.client, "a.*")
    subscription = await world.client.subscribe("a.b", heard)
    await world.client.flush()
    world.app.publish("a.b", b"")
    await heard.first(1)
    await subscription.unsubscribe()
    world.app.publish("a.b", b"")
    await other.first(2)
    await world.client.flush()
    assert len(heard.messages) == 1
    with pytest.raises(NoRespondersError):
        await world.app.request("a", b"", timeout_seconds=9.0)


async def test_what_is_on_its_way_arrives_after_a_subscription_was_stopped(world: World) -> None:
    heard, other = Heard(), await heard_by(world.client, "a.*")
    subscription = await world.client.subscribe("a.b", heard)
    await world.client.flush()
    for _ in range(50):
        world.app.publish("a.b", b"")
    await subscription.stop()
    await world.client.flush()
    count = len(heard.messages)
    world.app.publish("a.b", b"")
    await other.first(51)
    await world.client.flush()
    assert len(heard.messages) == count
    await subscription.unsubscribe()


async def test_interest_is_that_of_all_subscribers(world: World) -> None:
    leaf = world.leaf
    subscriptions = [
        await world.app.subscribe(subject, print, queue)
        for subject, queue in (("a.b", ""), ("c.*", ""), ("d.>", ""), ("e", "q"), ("f.*", "r"))
    ]
    everything = await world.app.subscribe(">", print)
    await world.app.flush()
    await passed(leaf)
    expected = {
        "a.b": True,
        "a.c": False,
        "c.x": True,
        "c.x.y": False,
        "d.x.y": True,
        "d": False,
        "e": True,
        "f.1": True,
    }
    assert {each: leaf.has_interest(each) for each in expected} == expected
    assert [leaf.has_plain_interest(each) for each in ("a.b", "e", "f.1")] == [True, False, False]
    assert [leaf.queue_groups(each) for each in ("a.b", "e", "f.1")] == [set(), {"q"}, {"r"}]
    for each in (*subscriptions, everything):
        await each.unsubscribe()
    await world.app.flush()
    await passed(leaf)
    assert not any(leaf.has_interest(each) for each in expected)


async def test_a_watch_hears_of_the_first_subscriber_and_the_last(world: World) -> None:
    told: list[bool] = []
    watch = world.leaf.watch("box.1", told.append)
    other = world.leaf.watch("box.2", told.append)
    first = await world.app.subscribe("box.1", print)
    second = await world.client.subscribe("box.1", print)
    await world.app.flush()
    await world.client.flush()
    await passed(world.leaf)
    assert told == [True]
    wild = await world.app.subscribe("*.1", print)
    await first.unsubscribe()
    await second.unsubscribe()
    await world.app.flush()
    await world.client.flush()
    await passed(world.leaf)
    assert told == [True]
    await wild.unsubscribe()
    await world.app.flush()
    await passed(world.leaf)
    assert told == [True, False]
    watch.close()
    other.close()
    await heard_by(world.app, "box.*")
    await passed(world.leaf)
    assert told == [True, False] and world.leaf.has_interest("box.1")


async def test_behind_a_barrier_the_inbox_of_a_request_has_interest(world: World) -> None:
    found: list[bool] = []

    def asked(message: PortMessage) -> None:
        world.leaf.barrier(lambda: found.append(world.leaf.has_interest(message.reply)))

    await world.client.subscribe("next", asked)
    await world.client.flush()
    for number in range(60):
        await world.app.subscribe(f"_INBOX.{number}", print)
        world.app.publish("next", b"", reply=f"_INBOX.{number}")
    await until(lambda: len(found) == 60)
    assert all(found)


async def test_after_a_restart_subscriptions_and_interest_are_as_before(world: World) -> None:
    back: list[str] = []
    writable: list[str] = []
    world.client.on_reconnect(lambda: back.append("client"))
    world.leaf.on_reconnect(lambda: back.append("leaf"))
    world.app.on_reconnect(lambda: back.append("app"))
    world.client.on_writable(lambda: writable.append("client"))
    world.leaf.on_writable(lambda: writable.append("leaf"))
    heard, queued = await heard_by(world.client, "a.*"), await heard_by(world.client, "q", "g")
    inbox = await heard_by(world.app, "_INBOX.a")
    gone = await world.app.subscribe("_INBOX.gone", print)
    await world.app.flush()
    await passed(world.leaf)
    told: list[bool] = []
    world.leaf.watch("_INBOX.gone", told.append)

    world.system.stop()
    await until(lambda: not (world.client.connected or world.leaf.connected or world.app.connected))
    assert not world.client.writable and not world.leaf.writable
    await gone.unsubscribe()
    # Lost, as with core NATS.
    world.client.publish("a.lost", b"")
    world.leaf.deliver("_INBOX.a", b"lost")
    assert world.leaf.has_interest("_INBOX.a"), "it is what it last was"
    behind = asyncio.Event()
    world.leaf.barrier(behind.set)
    flushing = asyncio.create_task(world.client.flush())
    subscribed = await world.client.subscribe("meanwhile", heard)
    world.system.start()

    await flushing
    await until(lambda: sorted(back) == ["app", "client", "leaf"], "all are connected again")
    assert {"client", "leaf"} <= set(writable) and world.client.writable and world.leaf.writable
    await asyncio.wait_for(behind.wait(), DEADLINE_SECONDS)
    await world.app.flush()
    await passed(world.leaf)
    assert world.leaf.has_interest("_INBOX.a") and not world.leaf.has_interest("_INBOX.gone")
    assert told[-1:] == [False]
    world.leaf.deliver("_INBOX.a", b"v", reply=ACK, subject="s")
    world.app.publish("a.b", b"1")
    world.app.publish("q", b"2")
    world.app.publish("meanwhile", b"3")
    assert await inbox.first(1) == [PortMessage("s", ACK, b"", b"v")]
    assert [each.payload for each in await heard.first(2)] == [b"1", b"3"]
    assert [each.payload for each in await queued.first(1)] == [b"2"]
    await subscribed.unsubscribe()


async def test_what_is_closed_takes_no_subscriptions_and_its_interest_ends(world: World) -> None:
    await heard_by(world.app, "box")
    await passed(world.leaf)
    assert world.leaf.has_interest("box")
    told: list[bool] = []
    world.leaf.watch("box", told.append)
    world.app.publish("last", b"")
    heard = await heard_by(world.client, "last.word")
    world.app.publish("last.word", b"v")
    await world.app.close()
    await world.app.close()
    assert [each.payload for each in await heard.first(1)] == [b"v"], "it was sent before"
    await until(lambda: told == [False], "the interest ends")
    with pytest.raises(ConnectionFailedError):
        await world.app.subscribe("a", print)
    with pytest.raises(ConnectionFailedError):
        await world.app.flush()
    world.app.publish("a", b"")
