"""The bodies of durable streams: from a request to messages, and from messages to an answer.

A stream of `application/json` keeps the bounds of its messages: an array in a request is as many
messages as it has elements, and an answer is an array. Every other stream is bytes. As server-sent
events, text is sent as it is and everything else in base64.

JSON is stored as it was sent, byte for byte: elements are cut out of the array, not encoded anew,
so numbers keep their digits and objects their order.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.gateway.http.problems import ProblemError

JSON: Final = "application/json"
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
_SPACE: Final = " \t\r\n"
_LINE_ENDS: Final = re.compile(b"\r\n|\r|\n")
_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_DECODER: Final = json.JSONDecoder(parse_constant=lambda word: _refuse(f"{word} is not JSON"))


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case: what is compared."""
    return content_type.partition(";")[0].strip().lower()


def is_content_type(text: str) -> bool:
    """Tell whether a header names a content type."""
    return bool(_TYPE.fullmatch(media_type(text))) and text.isprintable()


def messages_of(body: bytes, content_type: str) -> list[bytes]:
    """Return the messages that a body stands for; none for no bytes. Raises ProblemError."""
    if not body:
        return []
    return elements_of(body) if media_type(content_type) == JSON else [body]


def elements_of(body: bytes) -> list[bytes]:
    """Return the elements of a JSON array, or the one value that the body is, as they were written.
    Raises ProblemError."""
    try:
        text = body.decode()
        start = _skip(text, 0)
        if not text.startswith("[", start):
            end = _end_of(text, start)
            if _skip(text, end) != len(text):
                _refuse("there is more behind the JSON")
            return [text[start:end].encode()]
        return _elements(text, start)
    except (UnicodeDecodeError, ValueError) as error:
        raise ProblemError(400, "invalid_json", f"the body is not JSON: {error}"[:200]) from error
    except RecursionError as error:
        raise ProblemError(400, "invalid_json", "the body is nested too deep") from error


def _elements(text: str, start: int) -> list[bytes]:
    found: list[bytes] = []
    at = _skip(text, start + 1)
    if not text.startswith("]", at):
        while True:
            end = _end_of(text, at)
            found.append(text[at:end].encode())
            at = _skip(text, end)
            if text.startswith("]", at):
                break
            if not text.startswith(",", at):
                _refuse(f"a comma is missing at character {at}")
            at = _skip(text, at + 1)
    if _skip(text, at + 1) != len(text):
        _refuse("there is more behind the JSON")
    return found


def _end_of(text: str, start: int) -> int:
    _, end = _DECODER.raw_decode(text, start)
    return end


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _refuse(reason: str) -> None:
    raise ValueError(reason)


def joined(messages: Sequence[bytes], content_type: str) -> bytes:
    """Return the body of an answer with these messages."""
    if media_type(content_type) == JSON:
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


def is_sent_as_base64(content_type: str) -> bool:
    """Tell whether server-sent events carry this content in base64."""
    kind = media_type(content_type)
    return not kind.startswith("text/") and kind != JSON


def data_event(messages: Sequence[bytes], content_type: str) -> bytes:
    """Return the server-sent event with these messages.

    Each line of the data gets a field of its own, whatever ends it, so no content can pass for
    another field or another event.
    """
    body = joined(messages, content_type)
    lines: Iterable[bytes]
    lines = [base64.b64encode(body)] if is_sent_as_base64(content_type) else _LINE_ENDS.split(body)
    return b"event: data\n" + b"".join(b"data:" + line + b"\n" for line in lines) + b"\n"


def control_event(
    next_offset: str, cursor: str | None, *, up_to_date: bool, closed: bool
) -> bytes:
    """Return the server-sent event that tells a reader where it is."""
    fields: dict[str, str | bool] = {"streamNextOffset": next_offset}
    if closed:
        fields["streamClosed"] = True
    elif cursor is not None:
        fields["streamCursor"] = cursor
    if up_to_date or closed:
        fields["upToDate"] = True
    return b"event: control\ndata:" + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
