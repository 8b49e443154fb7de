"""A JetStream to copy from: its streams, their consumers and messages, over the API alone.

Messages are asked for one by one by their seqs, many at a time: that works for streams of every
retention policy, changes nothing there, and gives header blocks, subjects and times just as they
are stored. Across a large gap the next message is asked for by its subject.

Whatever the source answers is checked: a stream that tells nonsense ends its own migration with
SourceError.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.gateway.jetstream.api.times import parse_time
from holdfast.gateway.jetstream.wire.ports import ClientPort
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.header_block import check_block
from holdfast.protocol.limits import MAX_INTEGER, MAX_MESSAGE_SUBJECT_BYTES

#: How many messages are asked for at a time. nats-server answers each in its own time.
WINDOW: Final = 256
_MANY_MISSING: Final = WINDOW * 3 // 4
_REQUEST_SECONDS: Final = 10.0
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.5
_NO_MESSAGE: Final = 10037
_NOT_FOUND: Final = 404
#: The errors that pass by: JetStream is not ready, or busy.
_PASSING: Final = (429, 500, 503)
_NS: Final = 1_000_000

Json = Mapping[str, Any]


class SourceError(HoldfastError):
    """The JetStream to copy from refuses, or cannot be understood."""

    code = "source_failed"
    template = "{source} cannot be copied: {reason}"


class SourceMessage(NamedTuple):
    """A stored message. `headers` is its header block, or b""."""

    seq: int
    time_ms: int
    subject: str
    headers: bytes
    value: bytes


class JetStreamSource:
    """The streams of an account. `domain` is a JetStream domain, or ""."""

    def __init__(self, client: ClientPort, domain: str = "") -> None:
        self._client = client
        self._api = f"$JS.{domain}.API" if domain else "$JS.API"

    async def streams(self) -> list[Json]:
        """Return the StreamInfo of each stream, in order of name. Raises SourceError."""
        return await self._pages("STREAM.LIST", "streams")

    async def stream(self, name: str, *, deleted: bool = False) -> Json:
        """Return a StreamInfo, with the seqs that were `deleted` if asked. Raises SourceError."""
        body = {"deleted_details": True} if deleted else None
        answer = await self._asked(f"STREAM.INFO.{name}", body)
        if "error" in answer:
            raise SourceError(source=name, reason=_said(answer))
        return answer

    async def consumers(self, stream: str) -> list[Json]:
        """Return the ConsumerInfo of each consumer of a stream. Raises SourceError."""
        return await self._pages(f"CONSUMER.LIST.{stream}", "consumers")

    async def messages(
        self, stream: str, start_seq: int, end_seq: int
    ) -> AsyncIterator[list[SourceMessage]]:
        """Yield the messages from `start_seq` to `end_seq` in order, some at a time. Raises
        SourceError."""
        seq = start_seq
        while seq <= end_seq:
            window = range(seq, min(seq + WINDOW, end_seq + 1))
            answers = await asyncio.gather(*(self._message(stream, each) for each in window))
            found = [each for each in answers if each is not None]
            if found:
                yield found
            seq = window.stop
            if len(window) - len(found) > _MANY_MISSING and seq <= end_seq:
                following = await self._message(stream, seq, next_by_subj=">")
                seq = end_seq + 1 if following is None else following.seq

    async def _message(self, stream: str, seq: int, **how: str) -> SourceMessage | None:
        """Return a message; None if there is none."""
        answer = await self._asked(f"STREAM.MSG.GET.{stream}", {"seq": seq, **how})
        if "error" in answer:
            if answer["error"].get("err_code") == _NO_MESSAGE:
                return None
            raise SourceError(source=stream, reason=_said(answer))
        return _parsed(stream, answer)

    async def _pages(self, verb: str, field: str) -> list[Json]:
        found: list[Json] = []
        while True:
            answer = await self._asked(verb, {"offset": len(found)})
            if "error" in answer:
                raise SourceError(source=verb, reason=_said(answer))
            page = answer.get(field) or []
            if not isinstance(page, list) or not all(isinstance(each, dict) for each in page):
                raise SourceError(source=verb, reason=f"its {field} are no list of objects")
            found += page
            if not page or len(found) >= int(answer.get("total", 0)):
                return found

    async def _asked(self, verb: str, body: Json | None) -> Json:
        """Return the answer to a request, after some tries if JetStream cannot answer now."""
        payload = b"" if body is None else json.dumps(body).encode()
        tries = 0
        while True:
            tries += 1
            try:
                message = await self._client.request(
                    f"{self._api}.{verb}", payload, timeout_seconds=_REQUEST_SECONDS
                )
            except NoRespondersError:
                reason = "no JetStream answers: is it enabled for this account?"
            except BusTimeoutError:
                reason = f"no answer within {_REQUEST_SECONDS:g} s"
            else:
                answer = _object(verb, message.payload)
                passing = answer.get("error", {}).get("code") in _PASSING
                if not passing or tries == _TRIES:
                    return answer
                reason = _said(answer)
            if tries == _TRIES:
                raise SourceError(source="what JetStream has", reason=f"{verb}: {reason}")
            await asyncio.sleep(_PAUSE_SECONDS)


def _object(verb: str, payload: bytes) -> Json:
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise SourceError(source=verb, reason=f"its answer is no JSON: {error}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("error", {}), dict):
        raise SourceError(source=verb, reason="its answer is no object")
    return answer


def _said(answer: Json) -> str:
    error = answer["error"]
    return f"{str(error.get('description'))[:200]} ({error.get('err_code')})"


def _parsed(stream: str, answer: Json) -> SourceMessage:
    try:
        message = answer["message"]
        seq, subject = message["seq"], message["subject"]
        headers = base64.b64decode(message.get("hdrs") or "", validate=True)
        value = base64.b64decode(message.get("data") or "", validate=True)
        time_ms = parse_time(message["time"]) // _NS
        if headers:
            check_block(headers)
        if type(seq) is not int or not 1 <= seq <= MAX_INTEGER:
            raise ValueError("its seq is none")
        if not isinstance(subject, str) or len(subject.encode()) > MAX_MESSAGE_SUBJECT_BYTES:
            raise ValueError("its subject is none, or too long")
    except (HoldfastError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise SourceError(source=stream, reason=f"a message of it: {error}") from error
    return SourceMessage(seq, time_ms, subject, headers, value)
