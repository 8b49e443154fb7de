"""The parser of a leafnode connection: strict, and the same however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.jetstream.wire.leaf_parser import InterestEvent, LeafEvent, LeafParser
from holdfast.protocol.bus.nats_parser import (
    ErrorEvent,
    InfoEvent,
    NatsProtocolError,
    PingEvent,
    PongEvent,
)
from holdfast.protocol.limits import MAX_NATS_LINE_BYTES
from tests.support.effort import examples

#: All that nats-server takes for a byte of a subject or a queue group.
NAMES = st.binary(min_size=1, max_size=12).filter(lambda one: not set(one) & set(b" \t\r\n"))
EVENTS = st.one_of(
    st.builds(InterestEvent, st.booleans(), NAMES, st.one_of(st.just(b""), NAMES)),
    st.just(PingEvent()),
    st.just(PongEvent()),
    st.builds(ErrorEvent, st.sampled_from(["Authorization Violation", "x"])),
    st.builds(InfoEvent, st.sampled_from([b"{}", b'{"nonce": "a b"}'])),
)
BODIES = st.one_of(st.binary(max_size=40), st.just(b"\r\n"), st.just(b"LS+ a\r\nPING\r\n"))
#: Messages, which are skipped.
MESSAGES = st.builds(
    lambda line, body: line % len(body) + b"\r\n" + body + b"\r\n",
    st.sampled_from(
        [b"LMSG a %d", b"LMSG a b@c %d", b"LMSG a + b q r %d", b"HMSG a 0 %d", b"HMSG a | q 0 %d"]
    ),
    BODIES,
)


def wire(event: LeafEvent) -> bytes:
    """What a nats-server sends for it."""
    if isinstance(event, PingEvent):
        return b"PING\r\n"
    if isinstance(event, PongEvent):
        return b"PONG\r\n"
    if isinstance(event, ErrorEvent):
        return b"-ERR '%s'\r\n" % event.text.encode()
    if isinstance(event, InfoEvent):
        return b"INFO %s\r\n" % event.body
    began, subject, queue = event
    if not queue:
        return b"%s %s\r\n" % (b"LS+" if began else b"LS-", subject)
    return b"LS+ %s %s 2\r\n" % (subject, queue) if began else b"LS- %s %s\r\n" % (subject, queue)


def parse(*pieces: bytes) -> list[LeafEvent]:
    parser = LeafParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(st.lists(st.one_of(EVENTS, MESSAGES), max_size=6), st.lists(st.integers(0, 300), max_size=8))
@settings(deadline=None, max_examples=examples(400))
def test_events_come_whole_and_messages_not_at_all_however_the_bytes_are_cut(
    sent: list[LeafEvent | bytes], cuts: list[int]
) -> None:
    data = b"".join(each if isinstance(each, bytes) else wire(each) for each in sent)
    ends = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(ends)]
    assert parse(*pieces) == [each for each in sent if not isinstance(each, bytes)]


@given(st.binary(max_size=60), st.integers(0, 60))
@settings(deadline=None, max_examples=examples(400))
def test_any_bytes_are_events_or_an_error_and_alike_in_two_pieces(data: bytes, cut: int) -> None:
    def outcome(*pieces: bytes) -> list[LeafEvent] | None:
        try:
            return parse(*pieces)
        except NatsProtocolError:
            return None

    assert outcome(data) == outcome(data[:cut], data[cut:])


@pytest.mark.parametrize(
    "line",
    [
        b"LS+",
        b"LS+ ",
        b"LS+ a b",
        b"LS+ a b x",
        b"LS+ a  1",
        b"LS- a b 1",
        b"LS+ a b 1 1",
        b"LS+ a b 99999999999",
        b"LMSG a",
        b"LMSG  1",
        b"LMSG a x",
        b"LMSG a -1",
        b"HMSG a 1",
        b"HMSG a x 1",
        b"LMSG a %d" % 10**11,
        b"MSG a 1 1",
        b"ping",
        b"",
        b"HTTP/1.1 400 Bad Request",
    ],
)
def test_a_line_of_another_form_is_an_error_and_waits_for_nothing(line: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        parse(line + b"\r\n")


def test_a_message_that_is_longer_than_it_says_is_an_error() -> None:
    for data in (b"LMSG a 1\r\nxyz\r\n", b"LMSG a 1\r\nx\ry"):
        with pytest.raises(NatsProtocolError):
            parse(data)
        with pytest.raises(NatsProtocolError):
            parse(*(data[at : at + 1] for at in range(len(data))))


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    parser = LeafParser()
    parser.feed(b"LS+ " + b"a" * (MAX_NATS_LINE_BYTES - 4))
    with pytest.raises(NatsProtocolError):
        parser.feed(b"aa")


def test_the_body_of_a_message_is_not_kept() -> None:
    parser = LeafParser()
    parser.feed(b"LMSG a 1000000000\r\n")
    for _ in range(10):
        assert parser.feed(b"x" * 100_000) == []
    assert parser._line == b""
