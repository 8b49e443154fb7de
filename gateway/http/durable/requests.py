"""What requests on a durable stream ask for: their headers and parameters, checked.

Pure. Everything that is wrong with a request by itself raises ProblemError here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.gateway.http.durable.bodies import DEFAULT_CONTENT_TYPE, is_content_type
from holdfast.gateway.http.durable.offsets import OffsetWord, parse_offset
from holdfast.gateway.http.durable.producers import MAX_ID_BYTES, MAX_NUMBER, Producing
from holdfast.gateway.http.problems import ProblemError

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_MAX_TEXT: Final = 1024
_MAX_TTL_SECONDS: Final = 100 * 366 * 86_400


class Live(StrEnum):
    """How a reader waits for what is appended."""

    NO = ""
    LONG_POLL = "long-poll"
    SSE = "sse"


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A stream to begin with what another one has. `offset` None is its end."""

    path: str
    offset: int | None
    sub_offset: int


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A stream to create."""

    #: None: not named.
    content_type: str | None
    ttl_seconds: int | None
    #: As it was sent, and in int milliseconds since the epoch.
    expires_at: str | None
    expires_at_ms: int | None
    closed: bool
    fork: ForkRequest | None


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Content to append, a stream to close, or both."""

    content_type: str | None
    closed: bool
    writer_seq: str | None
    producing: Producing | None


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Content to read."""

    start: int | OffsetWord
    live: Live
    cursor: str | None
    if_none_match: str | None


def create_request(headers: Mapping[str, str]) -> CreateRequest:
    """Return what a PUT asks for. Raises ProblemError."""
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise _invalid("Stream-TTL and Stream-Expires-At exclude each other")
    content_type = _content_type(headers)
    return CreateRequest(
        content_type,
        None if ttl is None else _number("Stream-TTL", ttl, _MAX_TTL_SECONDS),
        expires,
        None if expires is None else _time_ms(expires),
        _is_closed(headers),
        _fork_request(headers),
    )


def append_request(headers: Mapping[str, str]) -> AppendRequest:
    """Return what a POST asks for. Raises ProblemError."""
    writer_seq = headers.get("stream-seq")
    if writer_seq is not None and (not writer_seq or len(writer_seq) > _MAX_TEXT):
        raise _invalid(f"Stream-Seq must be text of at most {_MAX_TEXT} characters")
    return AppendRequest(
        headers.get("content-type"), _is_closed(headers), writer_seq, _producing(headers)
    )


def read_request(
    parameters: Sequence[tuple[str, str]], headers: Mapping[str, str]
) -> ReadRequest:
    """Return what a GET asks for. Raises ProblemError."""
    given: dict[str, str] = {}
    for name, text in parameters:
        if name in ("offset", "live", "cursor"):
            if name in given:
                raise _invalid(f"more than one {name}")
            given[name] = text
    try:
        live = Live(given.get("live", ""))
    except ValueError as error:
        raise _invalid("live must be long-poll or sse") from error
    if live is not Live.NO and "offset" not in given:
        raise _invalid("live reads need an offset")
    start = parse_offset(given["offset"]) if "offset" in given else OffsetWord.BEGINNING
    return ReadRequest(start, live, given.get("cursor"), headers.get("if-none-match"))


def _content_type(headers: Mapping[str, str]) -> str | None:
    content_type = headers.get("content-type")
    if not content_type:
        return None
    if not is_content_type(content_type) or len(content_type) > _MAX_TEXT:
        raise _invalid(f"Content-Type is not a media type such as {DEFAULT_CONTENT_TYPE}")
    return content_type


def _is_closed(headers: Mapping[str, str]) -> bool:
    return headers.get("stream-closed", "").lower() == "true"


def _fork_request(headers: Mapping[str, str]) -> ForkRequest | None:
    path = headers.get("stream-forked-from")
    offset, sub_offset = headers.get("stream-fork-offset"), headers.get("stream-fork-sub-offset")
    if path is None:
        if offset is not None or sub_offset is not None:
            raise _invalid("Stream-Fork-Offset and -Sub-Offset need Stream-Forked-From")
        return None
    sub = 0 if sub_offset is None else _number("Stream-Fork-Sub-Offset", sub_offset, MAX_NUMBER)
    if sub and offset is None:
        raise _invalid("Stream-Fork-Sub-Offset needs Stream-Fork-Offset")
    start = None if offset is None else parse_offset(offset)
    if start is OffsetWord.BEGINNING:
        start = 0
    return ForkRequest(path, None if isinstance(start, OffsetWord) else start, sub)


def _producing(headers: Mapping[str, str]) -> Producing | None:
    names = ("producer-id", "producer-epoch", "producer-seq")
    producer_id, epoch, seq = (headers.get(name) for name in names)
    if producer_id is None and epoch is None and seq is None:
        return None
    if producer_id is None or epoch is None or seq is None:
        raise _invalid("Producer-Id, Producer-Epoch and Producer-Seq go together")
    if not producer_id.strip() or len(producer_id.encode()) > MAX_ID_BYTES:
        raise _invalid(f"Producer-Id must be text of at most {MAX_ID_BYTES} bytes")
    return Producing(
        producer_id,
        _number("Producer-Epoch", epoch, MAX_NUMBER),
        _number("Producer-Seq", seq, MAX_NUMBER),
    )


def _number(name: str, text: str, limit: int) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > limit:
        raise _invalid(f"{name} must be a number from 0 to {limit}, in plain digits")
    return int(text)


def _time_ms(text: str) -> int:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError("not RFC 3339")
        moment = datetime.datetime.fromisoformat(text.upper())
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise _invalid("Stream-Expires-At must be a time such as 2026-01-31T12:00:00Z") from error


def _invalid(detail: str) -> ProblemError:
    return ProblemError(400, "invalid_request", detail)
