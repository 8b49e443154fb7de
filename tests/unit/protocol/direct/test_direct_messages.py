"""The bytes of direct connections: what goes in comes out, and nothing else breaks anything."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.direct.messages import (
    MAX_HELLO_BYTES,
    MAX_NUMBER,
    PIPE_VERSION,
    Hello,
    decode_hello,
    decode_numbered,
    decode_welcome,
    encode_hello,
    encode_number,
    encode_welcome,
    number_of,
)
from holdfast.protocol.direct.socket_pipe import Splitter
from holdfast.protocol.errors import MalformedFrameError

_WORDS = st.text(max_size=40)


@given(_WORDS, _WORDS, _WORDS)
def test_a_hello_comes_out_as_it_went_in(subject: str, inbox: str, token: str) -> None:
    hello = Hello(subject, inbox, token)
    assert decode_hello(encode_hello(hello)) == hello


@given(_WORDS)
def test_a_welcome_comes_out_as_it_went_in(refusal: str) -> None:
    assert decode_welcome(encode_welcome(refusal)) == refusal


@given(st.integers(0, MAX_NUMBER), st.binary())
def test_a_frame_comes_out_with_its_number(number: int, payload: bytes) -> None:
    assert decode_numbered(encode_number(number) + payload) == (number, payload)
    assert number_of(str(number)) == number


@pytest.mark.parametrize(
    "text",
    ["", "-1", "01", "00", "1.0", "x", "1e3", " 1", "\u0663", str(MAX_NUMBER + 1), "9" * 400],
)
def test_only_a_number_that_is_given_back_as_the_same_text_is_one(text: str) -> None:
    assert number_of(text) == -1


@given(st.binary(max_size=64))
def test_bytes_that_are_no_hello_are_malformed_and_nothing_else(data: bytes) -> None:
    for decode in (decode_hello, decode_welcome):
        try:
            decode(data)
        except MalformedFrameError:
            continue
        assert msgpack.unpackb(data)[0] == PIPE_VERSION


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [PIPE_VERSION],
        [PIPE_VERSION + 1, "a", "b", "c"],
        [PIPE_VERSION, "a", "b", 3],
        [PIPE_VERSION, b"a", "b", "c"],
        {"a": 1},
        [PIPE_VERSION, "a", "b", "x" * MAX_HELLO_BYTES],
    ],
)
def test_a_hello_of_another_shape_is_malformed(fields: object) -> None:
    with pytest.raises(MalformedFrameError):
        decode_hello(msgpack.packb(fields))


def test_a_frame_without_a_number_is_malformed() -> None:
    with pytest.raises(MalformedFrameError):
        decode_numbered(b"1234567")


@given(st.lists(st.binary(max_size=30)), st.data())
def test_messages_come_out_whole_however_they_are_cut(
    messages: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(len(each).to_bytes(4) + each for each in messages)
    splitter, found = Splitter(30), []
    while stream:
        length = data.draw(st.integers(1, len(stream)))
        found += splitter.split(stream[:length])
        stream = stream[length:]
    assert found == messages


def test_a_message_that_says_it_is_too_long_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        Splitter(30).split((31).to_bytes(4))
