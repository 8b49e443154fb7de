"""What travels over a pipe. Pure.

1. The client's hello: which subject its frames are for, where it wants the replies, and its token.
2. The server's welcome: nothing, or why it will not have this client.
3. From then on both ways: the number of a frame, which the last token of its reply subject would
   be, and what NATS would carry as the payload.

Numbers and lengths are big-endian. docs/protocol.md describes the bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import MAX_SUBJECT_BYTES, MAX_TOKEN_BYTES

#: The version of these messages. What they carry has its own.
PIPE_VERSION: Final = 1
#: A hello has two subjects and a token.
MAX_HELLO_BYTES: Final = 2 * MAX_SUBJECT_BYTES + MAX_TOKEN_BYTES + 64
MAX_NUMBER: Final = 2**64 - 1
NUMBER_BYTES: Final = 8
#: Longer than any number that fits.
_MAX_DIGITS: Final = 20
_MAX_REASON_CHARACTERS: Final = 500


class Hello(NamedTuple):
    """What a client says first."""

    subject: str
    #: Replies go to `<inbox>.<number>`.
    inbox: str
    #: The text of a token, or "".
    token: str = ""


def encode_hello(hello: Hello) -> bytes:
    packed: bytes = msgpack.packb([PIPE_VERSION, *hello])
    return packed


def decode_hello(data: bytes) -> Hello:
    """Raises MalformedFrameError."""
    fields = _unpack(data)
    if type(fields) is not list or len(fields) < 4 or fields[0] != PIPE_VERSION:
        raise MalformedFrameError(reason="no hello of this version")
    subject, inbox, token = fields[1:4]
    if not (type(subject) is type(inbox) is type(token) is str):
        raise MalformedFrameError(reason="a hello consists of text")
    return Hello(subject, inbox, token)


def encode_welcome(refusal: str = "") -> bytes:
    packed: bytes = msgpack.packb([PIPE_VERSION, refusal[:_MAX_REASON_CHARACTERS]])
    return packed


def decode_welcome(data: bytes) -> str:
    """Return why the server refuses, or "". Raises MalformedFrameError."""
    fields = _unpack(data)
    if (
        type(fields) is not list
        or len(fields) < 2
        or fields[0] != PIPE_VERSION
        or type(fields[1]) is not str
    ):
        raise MalformedFrameError(reason="no welcome of this version")
    refusal: str = fields[1]
    return refusal[:_MAX_REASON_CHARACTERS]


def number_of(text: str) -> int:
    """Return the number that is the last token of a reply subject, or -1 if it is none that a pipe
    carries, and gives back as the same text."""
    if not text.isdecimal() or len(text) > _MAX_DIGITS or not text.isascii():
        return -1
    number = int(text)
    return number if number <= MAX_NUMBER and (text[0] != "0" or text == "0") else -1


def encode_number(number: int) -> bytes:
    """Return what comes before a payload in a message."""
    return number.to_bytes(NUMBER_BYTES)


def decode_numbered(data: bytes) -> tuple[int, bytes]:
    """Raises MalformedFrameError."""
    if len(data) < NUMBER_BYTES:
        raise MalformedFrameError(reason="a message without a number")
    return int.from_bytes(data[:NUMBER_BYTES]), data[NUMBER_BYTES:]


def _unpack(data: bytes) -> object:
    if len(data) > MAX_HELLO_BYTES:
        raise MalformedFrameError(reason="a hello or welcome that is too long")
    try:
        return msgpack.unpackb(data)
    except Exception as error:
        raise MalformedFrameError(reason="a hello or welcome that is no msgpack") from error
