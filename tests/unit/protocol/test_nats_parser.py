"""The parser of what a nats-server sends: strict, and the same however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.bus.nats_parser import (
    ErrorEvent,
    Event,
    InfoEvent,
    MessageEvent,
    NatsParser,
    NatsProtocolError,
    PingEvent,
    PongEvent,
)
from holdfast.protocol.limits import MAX_NATS_LINE_BYTES
from tests.support.effort import examples

#: All that a nats-server takes for a byte of a subject: anything but space, tab and the end of the
#: line. (A lone CR is one too.)
SUBJECTS = st.binary(min_size=1, max_size=12).filter(lambda one: not set(one) & set(b" \t\n"))
#: What nats-py takes for the end of a subject.
HOSTILE = st.sampled_from(
    [b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\r", b"\xff", b"\x85"]
)
ODD_SUBJECTS = st.builds(
    lambda start, odd, number: start + odd + b"%d" % number, SUBJECTS, HOSTILE, st.integers(0, 99)
)
BODIES = st.one_of(st.binary(max_size=40), st.just(b"\r\n"), st.just(b"PING\r\nMSG a 1 1\r\n"))
MESSAGES = st.builds(
    MessageEvent,
    st.integers(0, 10**6),
    st.one_of(SUBJECTS, ODD_SUBJECTS),
    st.one_of(st.just(b""), SUBJECTS, ODD_SUBJECTS),
    BODIES,
    BODIES,
)
EVENTS = st.one_of(
    MESSAGES,
    st.just(PingEvent()),
    st.just(PongEvent()),
    st.builds(ErrorEvent, st.sampled_from(['Permissions Violation for Publish to "a.b"', "x"])),
    st.builds(InfoEvent, st.sampled_from([b"{}", b'{"max_payload": 1048576}'])),
)


def wire(event: Event) -> bytes:
    """What a nats-server sends for it."""
    if isinstance(event, PingEvent):
        return b"PING\r\n"
    if isinstance(event, PongEvent):
        return b"PONG\r\n"
    if isinstance(event, ErrorEvent):
        return b"-ERR '%s'\r\n" % event.text.encode()
    if isinstance(event, InfoEvent):
        # Some servers put a space behind it.
        return b"INFO %s\r\n" % event.body
    fields = [event.subject, b"%d" % event.sid]
    if event.reply:
        fields.append(event.reply)
    if event.headers:
        fields.append(b"%d" % len(event.headers))
    body = event.headers + event.payload
    operation = b"HMSG" if event.headers else b"MSG"
    line = b" ".join([operation, *fields, b"%d" % len(body)])
    return line + b"\r\n" + body + b"\r\n"


def parse(*pieces: bytes) -> list[Event]:
    parser = NatsParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(st.lists(EVENTS, max_size=6), st.lists(st.integers(0, 400), max_size=8))
@settings(deadline=None, max_examples=examples(400))
def test_any_split_of_the_bytes_gives_the_events_that_were_sent(
    events: list[Event], cuts: list[int]
) -> None:
    data = b"".join(wire(event) for event in events)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert parse(*(data[start:end] for start, end in pairwise(edges))) == events


@given(st.lists(EVENTS, max_size=3))
@settings(deadline=None, max_examples=examples(60))
def test_bytes_that_come_one_by_one_give_the_events_that_were_sent(events: list[Event]) -> None:
    data = b"".join(wire(event) for event in events)
    assert parse(*(data[at : at + 1] for at in range(len(data)))) == events


@pytest.mark.parametrize(
    "odd", [b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\r", b"\x85"]
)
def test_no_byte_of_a_subject_makes_the_message_one_of_another_subscription(odd: bytes) -> None:
    subject = b"hf.evil.chg" + odd + b"1"
    (event,) = parse(b"MSG " + subject + b" 7 2\r\nhi\r\n")
    assert event == MessageEvent(7, subject, b"", b"", b"hi")
    (event,) = parse(b"MSG a 7 in" + odd + b"box 2\r\nhi\r\n")
    assert event == MessageEvent(7, b"a", b"in" + odd + b"box", b"", b"hi")


@pytest.mark.parametrize(
    "line",
    [
        *(b"MSG a 1", b"MSG a x 1", b"MSG a \x0b1 1", b"MSG a 1 1_0", b"MSG  1 1", b"MSG a  1 1"),
        *(b"MSG a\t1 1", b"MSG a 1 b c 1", b"MSG a 1 -1", b"msg a 1 1", b"MSGS a 1 1"),
        *(b"HMSG a 1 12", b"HMSG a 1 13 12", b"HMSG a 1 x 12"),
        *(b"MSG a 1 1\r\nlong", b"PINGS", b""),
    ],
)
def test_what_is_not_the_protocol_is_an_error_and_waits_for_nothing(line: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        parse(line + b"\r\n")


def test_a_message_in_pieces_that_is_longer_than_it_says_is_an_error() -> None:
    for pieces in ((b"MSG a 1 3\r\nab", b"c", b"d\r\n"), (b"MSG a 1 3\r\nabc\r", b"x")):
        with pytest.raises(NatsProtocolError):
            parse(*pieces)


def test_a_line_without_an_end_is_an_error_at_last() -> None:
    parser = NatsParser()
    with pytest.raises(NatsProtocolError):
        for _ in range(20):
            parser.feed(b"x" * (MAX_NATS_LINE_BYTES // 10))


def test_an_error_of_the_server_keeps_its_letters() -> None:
    assert parse(b"+OK\r\n-ERR 'Permissions Violation for Publish to \"hf.A\"'\r\n") == [
        ErrorEvent('Permissions Violation for Publish to "hf.A"')
    ]
