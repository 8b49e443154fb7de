"""Frames of clients on a server's host: directly once they can, over NATS whenever not."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryBus
from holdfast.protocol.direct.caller_bus import CallerBus
from holdfast.protocol.direct.memory_pipe import MemoryPipe
from holdfast.protocol.direct.messages import (
    Hello,
    decode_welcome,
    encode_hello,
    encode_number,
    encode_welcome,
)
from holdfast.protocol.errors import InvalidTokenError, TooLargeError
from holdfast.protocol.limits import MAX_DIRECT_CLIENTS
from holdfast.protocol.subjects import Subjects
from tests.support.direct_world import (
    SERVER,
    SUBJECT,
    DirectWorld,
    begun,
    listening,
    reply_of,
)
from tests.support.received import Received
from tests.support.waiting import until

TOKEN_ID = "t" * 16


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _direct() -> tuple[DirectWorld, CallerBus, str, Received]:
    """Return a server and a client that is welcome there, its inbox, and what comes there."""
    world = DirectWorld()
    await world.serve()
    bus = world.client()
    inbox, replies = await listening(bus)
    await begun(world, bus, inbox)
    return world, bus, inbox, replies


class _Stranger:
    """Somebody who opens a pipe to a server."""

    def __init__(self, world: DirectWorld) -> None:
        self.said: list[bytes] = []
        self.is_sent_away = False
        mine, its = MemoryPipe.pair()
        mine.start(self.said.append, self._sent_away)
        assert world.door.enter(its)
        self.send = mine.send

    def _sent_away(self) -> None:
        self.is_sent_away = True


async def test_frames_and_replies_spare_nats_once_the_server_has_welcomed_the_client() -> None:
    world, bus, inbox, replies = await _direct()
    for number in range(2, 50):
        await bus.publish(SUBJECT, b"%d" % number, f"{inbox}.{number}")
    frames = await world.frames.first(49)
    assert frames[0] == BusMessage(SUBJECT, b"first", f"{inbox}.1")
    assert frames[1:] == [
        BusMessage(SUBJECT, b"%d" % number, f"{inbox}.{number}") for number in range(2, 50)
    ]
    for frame in frames:
        await world.server.publish(frame.reply, frame.payload + b"!")
    found = await replies.first(49)
    assert [each.payload for each in found] == [each.payload + b"!" for each in frames]
    assert {each.subject for each in found} == {each.reply for each in frames}
    assert world.over_nats == []


async def test_everything_else_goes_over_nats() -> None:
    world, bus, inbox, _ = await _direct()
    other, _ = await listening(bus)
    await bus.publish(SUBJECT, b"another inbox", f"{other}.1")
    await bus.publish(SUBJECT, b"no number", f"{inbox}.x")
    await bus.publish(SUBJECT, b"no reply")
    await bus.publish(Subjects().coordinator("acme", "resolve"), b"a question", f"{inbox}.7")
    await world.server.publish("hf.acme.chg.s.x", b"a change")
    await world.server.publish(f"{inbox}.x", b"no number")
    assert [payload for _, payload in world.over_nats] == [
        b"another inbox",
        b"no number",
        b"no reply",
        b"a question",
        b"a change",
        b"no number",
    ]
    for end, subject, reply in ((bus, SUBJECT, f"{inbox}.8"), (world.server, f"{inbox}.8", "")):
        with pytest.raises(TooLargeError):
            await end.publish(subject, bytes(bus.max_payload_bytes + 1), reply)


@pytest.mark.parametrize("is_here", [True, False])
async def test_broadcasts_leave_at_once_if_somebody_outside_waits_for_an_answer(
    monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    """Otherwise they leave when the turn ends, with what the receiver here has to say."""
    sent: list[MemoryBus] = []
    monkeypatch.setattr(MemoryBus, "send_now", lambda bus: sent.append(bus))
    monkeypatch.setattr(MemoryPipe, "is_here", is_here)
    world, _, inbox, _ = await _direct()
    world.server.send_now()
    sent.clear()

    async def release(*subjects: str) -> None:
        for subject in subjects:
            await world.server.publish(subject, b"an answer")
        await world.server.publish_all([("hf.acme.chg.s.x", b"a change")], lambda *_: None)
        world.server.send_now()

    await release(f"{inbox}.2")
    assert len(sent) == (not is_here)
    sent.clear()
    await release(f"{inbox}.3", "_INBOX.elsewhere.4")
    assert len(sent) == 1, "over NATS, with the broadcasts"
    await release()
    assert len(sent) == 1, "nobody waits"
    world.server.publish_soon("_INBOX.elsewhere.5", b"an answer")
    world.server.send_now()
    assert len(sent) == 2


async def test_when_a_server_dies_its_unanswered_frames_have_no_responders() -> None:
    world, bus, inbox, replies = await _direct()
    await bus.publish(SUBJECT, b"x", f"{inbox}.2")
    await bus.publish(SUBJECT, b"y", f"{inbox}.3")
    world.pipes[0].cut()
    found = await replies.first(2)
    assert [reply_of(each) for each in found] == [
        (f"{inbox}.2", b"", True),
        (f"{inbox}.3", b"", True),
    ]
    assert bus.direct_subjects == frozenset()
    await bus.publish(SUBJECT, b"y", f"{inbox}.4")
    assert world.over_nats == [(SUBJECT, b"y")]


async def test_what_a_server_answers_after_its_pipe_ended_comes_over_nats() -> None:
    world, bus, inbox, replies = await _direct()
    await bus.publish(SUBJECT, b"x", f"{inbox}.2")
    (_, frame) = await world.frames.first(2)
    world.pipes[0].cut()
    await replies.first(1)
    await world.server.publish(frame.reply, b"stored")
    (_, late) = await replies.first(2)
    assert reply_of(late) == (f"{inbox}.2", b"stored", False)


async def test_a_server_that_takes_no_more_frames_ends_its_pipes_and_answers_over_nats() -> None:
    world, bus, inbox, replies = await _direct()
    await bus.publish(SUBJECT, b"x", f"{inbox}.2")
    (_, frame) = await world.frames.first(2)
    await world.rest()
    assert not world.door.is_open
    assert reply_of((await replies.first(1))[0]) == (f"{inbox}.2", b"", True)
    await bus.publish(SUBJECT, b"y", f"{inbox}.3")
    assert reply_of((await replies.first(2))[1]) == (f"{inbox}.3", b"", True)
    assert len(world.frames.messages) == 2
    await world.server.publish(frame.reply, b"stored")
    assert reply_of((await replies.first(3))[2]) == (f"{inbox}.2", b"stored", False)


async def test_a_client_comes_back_to_a_server_that_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.protocol.direct.caller_bus.DIRECT_RETRY_SECONDS", 0.0)
    world, bus, inbox, _ = await _direct()
    await world.rest()
    await until(lambda: not bus.direct_subjects)
    await world.serve()
    await bus.publish(SUBJECT, b"x", f"{inbox}.2")
    await until(lambda: SUBJECT in bus.direct_subjects)
    assert len(world.pipes) == 2


async def test_a_server_of_another_host_is_not_tried_for_each_frame() -> None:
    world = DirectWorld()
    bus = world.client()
    inbox, _ = await listening(bus)
    tries = 0

    async def dial(server: str) -> None:
        nonlocal tries
        tries += 1

    bus._dial = dial
    for number in range(100):
        await bus.publish(SUBJECT, b"", f"{inbox}.{number}")
        await asyncio.sleep(0)
    assert tries == 1


async def test_a_server_that_does_not_answer_a_hello_gets_no_other_one_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.protocol.direct.caller_bus.DIRECT_RETRY_SECONDS", 0.0)
    world = DirectWorld()
    bus = world.client()
    inbox, _ = await listening(bus)
    hung: list[MemoryPipe] = []

    async def dial(server: str) -> MemoryPipe:
        mine, its = MemoryPipe.pair()
        hung.append(its)
        return mine

    bus._dial = dial
    for number in range(20):
        await bus.publish(SUBJECT, b"", f"{inbox}.{number}")
        await _settle()
    assert len(hung) == 1
    hung[0].close()
    await _settle()
    await bus.publish(SUBJECT, b"", f"{inbox}.20")
    await _settle()
    assert len(hung) == 2
    await bus.close()


async def test_a_reply_that_comes_with_the_welcome_is_not_lost() -> None:
    """The frame came over NATS, before the pipe."""
    world = DirectWorld()
    await world.serve()
    bus = world.client()
    inbox, replies = await listening(bus)

    def welcome(pipe: MemoryPipe) -> None:
        pipe.send(encode_welcome())
        for number in (1, 2):
            pipe.send(encode_number(number), b"answer %d" % number)

    async def dial(server: str) -> MemoryPipe:
        mine, its = MemoryPipe.pair()
        its.start(lambda hello: welcome(its), lambda: None)
        return mine

    bus._dial = dial
    await bus.publish(SUBJECT, b"", f"{inbox}.1")
    await bus.publish(SUBJECT, b"", f"{inbox}.2")
    found = await replies.first(2)
    assert [(each.subject, each.payload) for each in found] == [
        (f"{inbox}.1", b"answer 1"),
        (f"{inbox}.2", b"answer 2"),
    ]
    await bus.close()


async def test_a_client_that_was_refused_asks_again_only_much_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.protocol.direct.caller_bus.DIRECT_RETRY_SECONDS", 0.0)

    async def knows(hello: Hello) -> bool:
        return False

    world = DirectWorld(knows)
    await world.serve()
    bus = world.client()
    inbox, _ = await listening(bus)
    for number in range(1, 20):
        await bus.publish(SUBJECT, b"", f"{inbox}.{number}")
        await world.frames.first(number)
        await until(lambda: world.pipes[0].ended)
        await _settle()
    assert len(world.pipes) == 1


@pytest.mark.parametrize(
    "hello",
    [
        Hello("hf.acme.srv.s2", "_INBOX.acme.x"),
        Hello("hf.acme.ctl.s1", "_INBOX.acme.x"),
        Hello("hf._.ctl.s1", "_INBOX._.x"),
        Hello("other.acme.srv.s1", "_INBOX.acme.x"),
        Hello("hf.acme.srv.s1.*", "_INBOX.acme.x"),
        Hello("hf.acme.srv.s1", "_INBOX.other.x"),
        Hello("hf.acme.srv.s1", "hf.acme.chg.s"),
        Hello("hf.acme.srv.s1", "_INBOX.acme.>"),
        Hello("hf.acme.srv.s1", "_INBOX.acme.x\r\nPUB"),
        Hello("hf.acme.srv.s1.a.b", "_INBOX.acme.x"),
    ],
)
async def test_a_hello_for_what_the_client_may_not_have_is_refused(hello: Hello) -> None:
    world = DirectWorld()
    await world.serve()
    stranger = _Stranger(world)
    stranger.send(encode_hello(hello))
    await until(lambda: stranger.is_sent_away)
    assert len(stranger.said) == 1
    assert world.server.line_count == 0
    assert world.frames.messages == []


@pytest.mark.parametrize("first", [b"", b"x", b"\x91\x01", bytes(100_000)])
async def test_whoever_says_no_hello_is_sent_away(first: bytes) -> None:
    world = DirectWorld()
    await world.serve()
    stranger = _Stranger(world)
    stranger.send(first)
    await until(lambda: stranger.is_sent_away)
    assert world.server.line_count == 0


async def test_whoever_says_nothing_is_sent_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.protocol.direct.door_bus.DIRECT_HELLO_SECONDS", 0.01)
    world = DirectWorld()
    await world.serve()
    stranger = _Stranger(world)
    await until(lambda: stranger.is_sent_away)


async def test_only_the_holder_of_a_token_may_name_it() -> None:
    async def knows(hello: Hello) -> bool:
        if hello.token == "forged":
            raise InvalidTokenError(reason="nobody signed it")
        return hello.token == f"text of {Subjects().grant_of(hello.subject)}"

    subject = Subjects(grant=TOKEN_ID).server("acme", SERVER)
    for token, is_welcome in ((f"text of {TOKEN_ID}", True), ("forged", False), ("", False)):
        world = DirectWorld(knows)
        await world.serve()
        bus = world.client(token)
        inbox, _ = await listening(bus, f"acme.{TOKEN_ID}")
        await bus.publish(subject, b"", f"{inbox}.1")
        await until(lambda world=world: bool(world.pipes))
        await _settle()
        assert (subject in bus.direct_subjects) == is_welcome
        assert world.server.line_count == is_welcome
        assert len(world.frames.messages) == 1, "NATS decides over what came over it"


async def test_a_client_whose_token_cannot_be_looked_at_takes_no_place() -> None:
    async def knows(hello: Hello) -> bool:
        raise RuntimeError("a bug")

    world = DirectWorld(knows)
    await world.serve()
    strangers = [_Stranger(world) for _ in range(MAX_DIRECT_CLIENTS)]
    for number, stranger in enumerate(strangers):
        stranger.send(encode_hello(Hello(SUBJECT, f"_INBOX.acme.{number}")))
    await until(lambda: all(each.is_sent_away for each in strangers))
    next_one = _Stranger(world)
    await _settle()
    assert not next_one.is_sent_away


async def test_an_inbox_belongs_to_the_first_pipe_that_names_it() -> None:
    world, bus, inbox, _ = await _direct()
    stranger = _Stranger(world)
    stranger.send(encode_hello(Hello(SUBJECT, inbox)))
    await until(lambda: stranger.is_sent_away)
    assert SUBJECT in bus.direct_subjects


async def test_there_are_only_so_many_clients() -> None:
    world = DirectWorld()
    await world.serve()
    *welcome, last = [_Stranger(world) for _ in range(MAX_DIRECT_CLIENTS + 1)]
    await until(lambda: last.is_sent_away)
    assert not any(each.is_sent_away or each.said for each in welcome)
    [refusal] = last.said
    assert decode_welcome(refusal) == f"{MAX_DIRECT_CLIENTS} clients are here already"


async def test_a_peer_that_sends_what_makes_no_sense_is_left() -> None:
    world = DirectWorld()
    await world.serve()
    stranger = _Stranger(world)
    stranger.send(encode_hello(Hello(SUBJECT, "_INBOX.acme.x")))
    await until(lambda: bool(stranger.said))
    stranger.send(bytes(7) + b"\x05frame")
    stranger.send(b"short")
    (frame,) = await world.frames.first(1)
    assert frame == BusMessage(SUBJECT, b"frame", "_INBOX.acme.x.5")
    await until(lambda: stranger.is_sent_away)
    assert world.server.line_count == 0


async def test_a_server_that_sends_what_makes_no_sense_is_left_to_nats() -> None:
    world, bus, inbox, replies = await _direct()
    await bus.publish(SUBJECT, b"x", f"{inbox}.2")
    await world.frames.first(2)
    world.server._lines[inbox].send(b"short")
    assert reply_of((await replies.first(1))[0]) == (f"{inbox}.2", b"", True)
    assert bus.direct_subjects == frozenset()


async def test_a_client_that_closes_hears_nothing_more() -> None:
    world, bus, inbox, replies = await _direct()
    await bus.publish(SUBJECT, b"x", f"{inbox}.2")
    await bus.close()
    await until(lambda: world.server.line_count == 0)
    assert replies.messages == []
