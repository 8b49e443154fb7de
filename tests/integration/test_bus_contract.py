"""What every Bus does, asked of the one over NATS (with a real nats-server) and of the one in
memory."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from holdfast.protocol.bus import bus_nats
from holdfast.protocol.bus.bus import Bus, BusMessage, BusTimeoutError, NoRespondersError
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.direct.caller_bus import CallerBus
from holdfast.protocol.direct.door_bus import DoorBus
from holdfast.protocol.direct.memory_pipe import MemoryDoor, MemoryPipe
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.errors import ConnectionFailedError, InvalidArgumentError, TooLargeError
from holdfast.protocol.subjects import Subjects, granted
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.raw_nats import raw_nats
from tests.support.received import DEADLINE_SECONDS, Received, unknown_nats_py
from tests.support.waiting import until


@dataclass
class System:
    """A pub/sub system to connect to, which can be taken away and given back."""

    connect: Callable[[], Awaitable[Bus]]
    stop: Callable[[], None]
    start: Callable[[], None]
    #: Publishes what a foreign client can: any bytes for subject, payload and reply.
    inject: Callable[[bytes, bytes, bytes], Awaitable[None]]


def _memory() -> System:
    network = MemoryNetwork()

    async def connect() -> Bus:
        return network.connect("test")

    async def inject(subject: bytes, payload: bytes, reply: bytes) -> None:
        network.inject(subject, payload, reply)

    return System(connect, network.drop_all, network.return_all, inject)


def _over_nats(server: NatsServer) -> System:
    async def connect() -> Bus:
        return await connect_nats(server.url, name="test")

    async def inject(subject: bytes, payload: bytes, reply: bytes) -> None:
        async with raw_nats(server.port) as raw:
            await raw.publish(subject, payload, reply)

    return System(connect, server.kill, server.start, inject)


def _directly(server: NatsServer) -> System:
    """Over NATS too, but for frames of operations and their replies."""
    system = _over_nats(server)
    door = MemoryDoor()

    async def dial(server: str) -> DirectPipe | None:
        mine, its = MemoryPipe.pair()
        return mine if door.enter(its) else None

    async def connect() -> Bus:
        bus = DoorBus(await system.connect(), Subjects(), "s1", door)
        return CallerBus(bus, Subjects(), dial)

    return replace(system, connect=connect)


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path_factory.mktemp("bus")) as server:
        yield server


@pytest.fixture(params=["nats", "nats by its public API", "memory", "direct"])
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> System:
    if request.param == "memory":
        return _memory()
    if request.param == "direct":
        return _directly(request.getfixturevalue("nats_server"))
    if request.param == "nats by its public API":
        monkeypatch.setattr(bus_nats, "check_nats_py", unknown_nats_py)
    return _over_nats(request.getfixturevalue("nats_server"))


def _connected(runner: asyncio.Runner, running: System) -> Iterator[Bus]:
    async def connect() -> Bus:
        return await running.connect()

    bus = runner.run(connect())
    yield bus
    runner.run(bus.close())


@pytest.fixture
def one(runner: asyncio.Runner, running: System) -> Iterator[Bus]:
    yield from _connected(runner, running)


@pytest.fixture
def other(runner: asyncio.Runner, running: System) -> Iterator[Bus]:
    yield from _connected(runner, running)


async def _until_nobody_listens(bus: Bus, subject: str) -> None:
    """The system may still deliver to a connection that was closed a moment ago."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await bus.request(subject, b"", 0.1)
            except NoRespondersError:
                return
            except BusTimeoutError:
                continue


async def test_a_message_reaches_every_subscription_in_the_order_of_publishing(
    one: Bus, other: Bus
) -> None:
    first, second = Received(), Received()
    await one.subscribe("a.b", first)
    await other.subscribe("a.b", second)
    await one.flush()
    await other.flush()
    for number in range(100):
        await one.publish("a.b", b"%d" % number)
    expected = [BusMessage("a.b", b"%d" % number, "") for number in range(100)]
    assert await first.first(100) == expected
    assert await second.first(100) == expected


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
async def test_wildcards_match_whole_tokens(
    one: Bus, other: Bus, pattern: str, matching: list[str], others: list[str]
) -> None:
    received = Received()
    await one.subscribe(f"w.{pattern}", received)
    await one.flush()
    for subject in (*others, *matching):
        await other.publish(f"w.{subject}", b"")
    subjects = [message.subject for message in await received.first(len(matching))]
    assert subjects == [f"w.{subject}" for subject in matching]
    await other.flush()
    assert len(received.messages) == len(matching)


async def test_nothing_arrives_once_unsubscribed(one: Bus, other: Bus) -> None:
    gone, control = Received(), Received()
    subscription = await one.subscribe("u", gone)
    await one.subscribe("u", control)
    await one.flush()
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    await one.flush()
    await other.publish("u", b"x")
    await control.first(1)
    assert gone.messages == []


async def test_a_request_gets_the_first_reply(one: Bus, other: Bus) -> None:
    answering: list[asyncio.Task[None]] = []

    def answer(message: BusMessage) -> None:
        assert message.reply
        payload = message.payload + b"!"
        answering.append(asyncio.ensure_future(other.publish(message.reply, payload)))

    await other.subscribe("q", answer)
    await other.flush()
    replies = await asyncio.gather(
        *(one.request("q", b"%d" % number, DEADLINE_SECONDS) for number in range(20))
    )
    assert replies == [b"%d!" % number for number in range(20)]
    await asyncio.gather(*answering)


async def test_a_request_that_nobody_listens_to_fails_at_once(one: Bus) -> None:
    with pytest.raises(NoRespondersError) as caught:
        await one.request("nobody", b"", 60.0)
    assert caught.value.fields == {"subject": "nobody"}


async def test_a_request_that_nobody_answers_times_out(one: Bus, other: Bus) -> None:
    await other.subscribe("silent", Received())
    await other.flush()
    with pytest.raises(BusTimeoutError) as caught:
        await one.request("silent", b"", 0.05)
    assert caught.value.fields == {"subject": "silent", "timeout_seconds": 0.05}


async def test_a_publish_with_a_reply_that_nobody_listens_to_is_answered_so(
    one: Bus, other: Bus
) -> None:
    mine, of_the_other = Received(), Received()
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


async def test_frames_for_a_server_reach_it_once_and_each_reply_comes_back_once(
    one: Bus, other: Bus
) -> None:
    frames, replies = Received(), Received()
    taking = [
        await one.subscribe(pattern, frames) for pattern in granted(Subjects().server_pattern("s1"))
    ]
    inbox, subject = other.new_inbox("acme"), Subjects().server("acme", "s1")
    await other.subscribe(f"{inbox}.*", replies)
    await one.flush()
    await other.flush()
    for number in range(1, 201):
        await other.publish(subject, b"%d" % number, f"{inbox}.{number}")
        (*_, frame) = await frames.first(number)
        assert frame == BusMessage(subject, b"%d" % number, f"{inbox}.{number}")
        await one.publish(frame.reply, frame.payload + b"!")
    found = await replies.first(200)
    assert found == [
        BusMessage(f"{inbox}.{number}", b"%d!" % number, "") for number in range(1, 201)
    ]
    await other.publish(subject, b"last", f"{inbox}.201")
    await frames.first(201)
    for each in taking:
        await each.unsubscribe()
    await one.flush()
    await other.publish(subject, b"late", f"{inbox}.202")
    await until(lambda: any(each.no_responders for each in replies.messages))
    assert len(frames.messages) == 201


async def test_an_inbox_is_used_by_nobody_else(one: Bus, other: Bus) -> None:
    inboxes = [bus.new_inbox() for bus in (one, other, one, other)]
    assert len(set(inboxes)) == 4


async def test_replies_come_to_inboxes_of_the_tenant_in_whose_name_is_asked(
    one: Bus, other: Bus
) -> None:
    asked: list[str] = []
    tasks = []

    def answer(message: BusMessage) -> None:
        asked.append(message.reply)
        tasks.append(asyncio.create_task(other.publish(message.reply, message.payload)))

    await other.subscribe("q", answer)
    await other.flush()
    assert await one.request("q", b"1", DEADLINE_SECONDS) == b"1"
    assert await one.request("q", b"2", DEADLINE_SECONDS, "acme") == b"2"
    assert await one.request("q", b"3", DEADLINE_SECONDS, "ac") == b"3"
    assert [".".join(reply.split(".")[:2]) for reply in asked] == [
        "_INBOX._",
        "_INBOX.acme",
        "_INBOX.ac",
    ]
    assert one.new_inbox().startswith("_INBOX._.")
    assert one.new_inbox("acme").startswith("_INBOX.acme.")
    with pytest.raises(NoRespondersError):
        await one.request("nobody", b"", 60.0, "acme")


async def test_a_payload_over_the_limit_is_refused_and_the_largest_arrives(
    one: Bus, other: Bus
) -> None:
    received = Received()
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


async def test_many_messages_are_published_in_order_but_for_those_that_are_too_large(
    one: Bus, other: Bus
) -> None:
    received = Received()
    await other.subscribe("many.*", received)
    await other.flush()
    limit = one.max_payload_bytes
    too_large: list[tuple[str, dict[str, object]]] = []

    def note(subject: str, error: TooLargeError) -> None:
        too_large.append((subject, dict(error.fields)))

    await one.publish_all([], note)
    for size in (0, limit + 1):
        messages = [(f"many.{number}", b"%d" % number) for number in range(500)]
        messages[7] = ("many.7", bytes(size))
        await one.publish_all(messages, note)
    found = await received.first(999)
    subjects = [message.subject for message in found]
    sent = [f"many.{number}" for number in range(500)]
    assert subjects == sent + [subject for subject in sent if subject != "many.7"]
    assert [message.payload for message in found[:9]] == [*b"0 1 2 3 4 5 6".split(), b"", b"8"]
    assert too_large == [("many.7", {"what": "payload", "size": limit + 1, "limit": limit})]


async def test_what_needs_not_wait_is_published_at_once_and_in_order(one: Bus, other: Bus) -> None:
    received = Received()
    await other.subscribe("soon", received)
    await other.flush()
    for number in range(200):
        payload = b"%d" % number
        if number % 3 == 0 or not one.publish_soon("soon", payload):
            await one.publish("soon", payload)
    assert not one.publish_soon("soon", bytes(one.max_payload_bytes + 1))
    found = await received.first(200)
    assert [message.payload for message in found] == [b"%d" % number for number in range(200)]


async def test_what_was_published_may_be_sent_before_the_turn_of_the_loop_ends(
    one: Bus, other: Bus
) -> None:
    received = Received()
    await other.subscribe("now", received)
    await other.flush()
    one.send_now()
    await one.publish("now", b"1")
    await one.publish("now", b"2")
    one.send_now()
    await one.publish("now", b"3")
    found = await received.first(3)
    assert [message.payload for message in found] == [b"1", b"2", b"3"]
    await one.close()
    one.send_now()


async def test_a_callback_runs_in_the_context_of_its_subscription(one: Bus, other: Bus) -> None:
    variable = contextvars.ContextVar("variable", default="")
    seen: list[str] = []
    received = Received()

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


async def test_the_loss_of_the_connection_and_its_return_are_told_once_each(
    running: System, one: Bus
) -> None:
    told: list[str] = []
    one.on_disconnect(lambda: told.append("lost" if not one.connected else "?"))
    one.on_reconnect(lambda: told.append("back" if one.connected else "?"))
    running.stop()
    await until(lambda: told == ["lost"], "its loss is told")
    running.start()
    await until(lambda: told == ["lost", "back"], "its return is told")
    await one.close()
    assert told == ["lost", "back"], "a close is no loss"


async def test_subscriptions_outlive_a_loss_of_the_connection(
    running: System, one: Bus, other: Bus
) -> None:
    received, returns = Received(), [0, 0]

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
    await until(lambda: not one.connected and not other.connected)
    running.start()
    await until(lambda: returns == [1, 1])
    assert one.connected
    await one.flush()
    await other.publish("r", b"after")
    assert (await received.first(1))[-1].payload == b"after"


async def test_a_flush_that_is_cancelled_while_its_answer_comes_is_cancelled(one: Bus) -> None:
    flushing: asyncio.Task[None] | None = None
    asked = False

    def cancel(message: BusMessage) -> None:
        nonlocal asked
        if flushing is not None and flushing.cancel():
            asked = True

    await one.subscribe("end", cancel)
    await one.flush()
    # A server nearly always sends the message and the answer to the flush in one piece.
    for _ in range(50):
        asked, flushing = False, asyncio.create_task(one.flush())
        await one.publish("end", b"")
        await asyncio.wait([flushing])
        assert flushing.cancelled() == asked


async def test_a_closed_bus_is_closed(running: System, one: Bus, other: Bus) -> None:
    received = Received()
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
@pytest.mark.parametrize("running", ["nats", "memory"], indirect=True)
@pytest.mark.parametrize("odd", _ODD_BYTES)
async def test_no_subject_or_reply_that_a_peer_sends_reaches_another_subscription_or_makes_it_deaf(
    running: System, one: Bus, odd: bytes
) -> None:
    first, second, third = Received(), Received(), Received()
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
async def test_nothing_is_published_on_what_is_no_subject(
    one: Bus, other: Bus, subject: str
) -> None:
    received = Received()
    await other.subscribe(">", received)
    await other.flush()
    with pytest.raises(InvalidArgumentError):
        await one.publish(subject, b"")
    with pytest.raises(InvalidArgumentError):
        await one.request(subject, b"", 1.0)
    with pytest.raises(InvalidArgumentError):
        if not one.publish_soon(subject, b""):
            await one.publish(subject, b"")
    if subject:
        with pytest.raises(InvalidArgumentError):
            await one.publish("a", b"", subject)
    await one.publish("end", b"")
    assert [message.subject for message in await received.first(1)] == ["end"]


async def test_an_exception_of_a_callback_costs_that_message_only(one: Bus, other: Bus) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    received = Received()

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


async def test_a_bus_can_be_closed_one_turn_after_its_connection_broke(
    running: System, one: Bus, other: Bus
) -> None:
    running.stop()
    try:
        # In the first turns of the loop that notice, and in those of reconnecting.
        await asyncio.sleep(0)
        await one.close()
        await until(lambda: not other.connected)
        await asyncio.sleep(0)
        await other.close()
    finally:
        running.start()
    assert not one.connected
