"""The endpoints of streams and kvs: `/v1/kv/NAME/KEY`, `/v1/streams/NAME`, and what follows them.

Revisions are entity tags: `If-Match` and `If-None-Match: *` make a write conditional. Listings are
lines of JSON. `/v1/watch/NAME` and `/v1/follow/NAME` are server-sent events whose ids are
revisions, so a reader resumes by `Last-Event-ID`, at any gateway; the same paths are WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from holdfast.client.connection import Client
from holdfast.client.following.subscription import Subscription
from holdfast.client.handles.kv import KV
from holdfast.client.handles.stream import Stream
from holdfast.client.large_values.value_reader import ValueReader
from holdfast.gateway.http.asgi import (
    Receive,
    Scope,
    Send,
    answer,
    body_of,
    chunk,
    disconnected,
    encoded,
    headers_of,
    start,
    taken_over,
    until_disconnected,
)
from holdfast.gateway.http.native.change_feed import ENDING, SEQ_ID, ChangeFeed, id_of
from holdfast.gateway.http.native.parameters import (
    expected,
    invalid,
    names,
    number,
    seconds,
    tag,
)
from holdfast.gateway.http.native.rows import change_row, entry_row, line, message_row
from holdfast.gateway.http.problems import ProblemError
from holdfast.gateway.http.sessions import Session, Sessions
from holdfast.protocol.errors import ValueReplacedError
from holdfast.protocol.messages import Ack, Change, Entry, Message

_LINES: Final = "application/x-ndjson"
_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
#: What a header of an answer may hold.
_PRINTABLE: Final = re.compile(r"[!-~][ -~]{0,255}")
#: Where changes are followed.
WATCH: Final = "/v1/watch/"
FOLLOW: Final = "/v1/follow/"
#: Lines are sent in pieces of about so many bytes.
_PIECE_BYTES: Final = 64 * 1024
#: So much of a large value is read before its answer begins.
_FIRST_BYTES: Final = 64 * 1024

Row = TypeVar("Row", Message, Entry)


class KvEndpoint:
    """Answers requests below `/v1/kv/`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError, HoldfastError."""
        headers = headers_of(scope)
        name, key = names(scope["raw_path"], "/v1/kv/")
        async with self._sessions.of(headers) as session:
            await self._answer(session.client.kv(name), key, scope, receive, send)

    async def _answer(
        self, kv: KV[bytes], key: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers, parameters, method = headers_of(scope), parameters_of(scope), scope["method"]
        if key is None:
            if method != "GET":
                raise not_allowed(method, "GET")
            prefix, limit = parameters.get("prefix", ""), number(parameters, "limit", least=1)
            rows = (line(entry_row(each)) async for each in kv.get_all(prefix=prefix))
            await send_lines(send, rows, limit)
        elif method in ("GET", "HEAD"):
            reader, first = await _opened(lambda: kv.get_reader(key))
            if reader is None:
                raise ProblemError(404, "not_found", "there is no such key")
            async with reader:
                entry = reader.row
                fields = {
                    "Content-Type": content_type_of(entry.headers),
                    "ETag": tag(entry.revision),
                    "Cache-Control": "no-cache",
                }
                if headers.get("if-none-match") in (tag(entry.revision), "*"):
                    await answer(send, 304, encoded(fields))
                else:
                    fields["Content-Disposition"] = "attachment"
                    await send_value(send, reader, first, fields, is_wanted=method == "GET")
        elif method == "PUT":
            stored = await kv.set(
                key,
                await body_of(headers, receive),
                headers=kept_headers(headers),
                expected_revision=expected(headers),
                ttl_seconds=seconds(parameters, "ttl_seconds"),
            )
            await send_ack(send, 200, stored)
        elif method == "DELETE":
            deleted = await kv.delete(key, expected_revision=expected(headers))
            if not deleted.count:
                raise ProblemError(404, "not_found", "there is no such key")
            await answer(send, 204, encoded({"ETag": tag(deleted.revision)}))
        else:
            raise not_allowed(method, "GET, HEAD, PUT, DELETE")


class StreamEndpoint:
    """Answers requests below `/v1/streams/`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError, HoldfastError."""
        headers = headers_of(scope)
        name, rest = names(scope["raw_path"], "/v1/streams/")
        async with self._sessions.of(headers) as session:
            await self._answer(session.client.stream(name), rest, scope, receive, send)

    async def _answer(
        self, stream: Stream[bytes], rest: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers, parameters, method = headers_of(scope), parameters_of(scope), scope["method"]
        if rest is not None:
            await self._message(stream, rest, method, send)
        elif method == "POST":
            ack = await stream.append(
                await body_of(headers, receive),
                headers=kept_headers(headers),
                msg_id=headers.get("idempotency-key"),
                expected_last_seq=expected(headers),
                ttl_seconds=seconds(parameters, "ttl_seconds"),
                subject=parameters.get("subject"),
            )
            await send_ack(send, 201, ack)
        elif method == "GET":
            first = number(parameters, "start_seq")
            subject = parameters.get("subject")
            found = stream.get_all(
                start_seq=1 if first is None else first,
                end_seq=number(parameters, "end_seq"),
                last=number(parameters, "last", least=1),
                subjects=None if subject is None else [subject],
            )
            rows = (line(message_row(each)) async for each in found)
            await send_lines(send, rows, number(parameters, "limit", least=1))
        else:
            raise not_allowed(method, "GET, POST")

    async def _message(self, stream: Stream[bytes], rest: str, method: str, send: Send) -> None:
        if method not in ("GET", "HEAD"):
            raise not_allowed(method, "GET, HEAD")
        seq = number({"seq": rest}, "seq", least=1)
        assert seq is not None
        reader, first = await _opened(lambda: stream.get_reader(seq))
        if reader is None:
            raise ProblemError(404, "not_found", "there is no such message")
        async with reader:
            message = reader.row
            fields = {
                "Content-Type": content_type_of(message.headers),
                "ETag": tag(message.revision),
                "Content-Disposition": "attachment",
            }
            await send_value(send, reader, first, fields, is_wanted=method == "GET")


class FollowEndpoint:
    """Follows a stream or a kv, as server-sent events or over a WebSocket."""

    def __init__(self, sessions: Sessions, ending: asyncio.Event, *, of_kv: bool) -> None:
        self._sessions = sessions
        self._ending = ending
        self._of_kv = of_kv
        self._start = WATCH if of_kv else FOLLOW

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError, HoldfastError."""
        headers, parameters = headers_of(scope), parameters_of(scope)
        name, rest = names(scope["raw_path"], self._start)
        if rest is not None:
            raise ProblemError(404, "not_found", "there is nothing at this path")
        async with self._sessions.of(headers) as session:
            client = session.client
            if scope["type"] == "websocket":
                async with self._following(client, name, headers, parameters) as following:
                    await self._over_websocket(following, receive, send)
            elif scope["method"] == "GET":
                answering = self._as_events(session, name, headers, parameters, scope, send)
                await until_disconnected(receive, answering)
            else:
                raise not_allowed(scope["method"], "GET")

    def _following(
        self, client: Client, name: str, headers: Mapping[str, str], parameters: Mapping[str, str]
    ) -> Subscription[bytes]:
        last_id = _last_id(headers, parameters)
        start_seq, revision = number(parameters, "start_seq"), None
        if last_id is not None:
            named = {"Last-Event-ID": last_id.removeprefix(SEQ_ID)}
            after = number(named, "Last-Event-ID") or 0
            is_seq = last_id.startswith(SEQ_ID) and not self._of_kv
            start_seq, revision = (after + 1, None) if is_seq else (None, after)
        return self._subscribed(client, name, parameters, start_seq, revision)

    def _subscribed(
        self,
        client: Client,
        name: str,
        parameters: Mapping[str, str],
        start_seq: int | None,
        revision: int | None,
    ) -> Subscription[bytes]:
        if self._of_kv:
            prefix = parameters.get("prefix", "")
            return client.kv(name).watch(prefix=prefix, start_revision=revision)
        subject = parameters.get("subject")
        return client.stream(name).subscribe(
            start_seq=start_seq,
            start_revision=revision,
            subjects=None if subject is None else [subject],
        )

    async def _as_events(
        self,
        session: Session,
        name: str,
        headers: Mapping[str, str],
        parameters: Mapping[str, str],
        scope: Scope,
        send: Send,
    ) -> None:
        """Begin the answer, and leave the connection to those who send what comes."""
        client, part = session.client, parameters.get("prefix" if self._of_kv else "subject", "")
        feed: ChangeFeed | None = session.feeds.get(key := (self._of_kv, name, part))
        if feed is None:

            def subscribe(revision: int | None) -> Subscription[bytes]:
                return self._subscribed(client, name, parameters, None, revision)

            feed = session.feeds[key] = ChangeFeed(name, subscribe)
        history: Subscription[bytes] | None = None
        if self._of_kv or "start_seq" in parameters or _last_id(headers, parameters) is not None:
            history = self._following(client, name, headers, parameters)
        try:
            if history is not None:
                await history.__aenter__()
            await feed.started()
            fields = {"Content-Type": "text/event-stream", "Connection": "close"}
            fields["Cache-Control"] = "no-cache, no-transform"
            await start(send, 200, encoded({**fields, "X-Accel-Buffering": "no"}))
            await chunk(send, b": here\n\n")
            connection = None if self._ending.is_set() else taken_over(scope)
            if connection is None:
                await chunk(send, ENDING)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            session.keep(connection)
            feed.join(connection, history)
            history = None
        finally:
            if history is not None:
                await history.aclose()

    async def _over_websocket(
        self, following: Subscription[bytes], receive: Receive, send: Send
    ) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        listening = asyncio.ensure_future(disconnected(receive))
        try:
            async for change, revision in self._awaited(following, listening):
                row = change_row(change)
                if (found := id_of(change, revision)) is not None:
                    row["id"] = found
                await send({"type": "websocket.send", "text": json.dumps(row, ensure_ascii=False)})
            if not listening.done():
                # Going away: come again, with the last id.
                await send({"type": "websocket.close", "code": 1001})
        finally:
            listening.cancel()

    async def _awaited(
        self, following: Subscription[bytes], until: asyncio.Future[Any]
    ) -> AsyncIterator[tuple[Change, int | None]]:
        """Yield changes as they come, each with the revision to resume after, until the gateway
        ends or `until` is done."""
        ending: asyncio.Future[Any] = asyncio.ensure_future(self._ending.wait())
        changes = following.__aiter__()
        coming: asyncio.Future[Change] | None = None
        try:
            while not ending.done() and not until.done():
                if coming is None:
                    coming = asyncio.ensure_future(changes.__anext__())
                waiting: list[asyncio.Future[Any]] = [coming, ending, until]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    try:
                        change = coming.result()
                    except StopAsyncIteration:
                        return
                    coming = None
                    yield change, following.revision
        finally:
            ending.cancel()
            if coming is not None:
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming


def _last_id(headers: Mapping[str, str], parameters: Mapping[str, str]) -> str | None:
    return headers.get("last-event-id") or parameters.get("last_event_id")


def parameters_of(scope: Scope) -> dict[str, str]:
    """Return the parameters of a request. Raises ProblemError if one comes twice."""
    found: dict[str, str] = {}
    try:
        query = scope["query_string"].decode("ascii")
        for name, text in parse_qsl(query, keep_blank_values=True, errors="strict"):
            if name in found:
                raise invalid(f"more than one {name[:80]}")
            found[name] = text
    except (UnicodeDecodeError, ValueError) as error:
        raise invalid("the parameters are not UTF-8") from error
    return found


def content_type_of(headers: Mapping[str, str]) -> str:
    """Return the media type that is stored with a value. Programs may have stored any text there,
    such as one with line breaks."""
    found = headers.get("content-type", "")
    return found if _PRINTABLE.fullmatch(found) else _BINARY


def kept_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers of a request that are stored with the value."""
    content_type = headers.get("content-type")
    return None if not content_type else {"content-type": content_type[:256]}


async def _opened(
    find: Callable[[], Awaitable[ValueReader[Row] | None]],
) -> tuple[ValueReader[Row] | None, bytes]:
    """Return a reader of a value and its first piece. One that is replaced before that is found
    anew."""
    replaced: int | None = None
    while True:
        reader = await find()
        if reader is None or reader.row.large is None:
            return reader, b""
        try:
            return reader, await reader.read(_FIRST_BYTES)
        except ValueReplacedError:
            if reader.row.revision == replaced:
                raise
            replaced = reader.row.revision


async def send_value(
    send: Send,
    reader: ValueReader[Any],
    first: bytes,
    fields: dict[str, str],
    *,
    is_wanted: bool,
) -> None:
    """Answer with a value of which `first` was read. A large one is sent piece by piece, and an
    error after the first of them cuts the answer off."""
    if reader.row.large is None:
        await answer(send, 200, encoded(fields), reader.row.value)
        return
    await start(send, 200, encoded({**fields, "Content-Length": str(reader.size_bytes)}))
    if is_wanted:
        await chunk(send, first)
        async for piece in reader:
            await chunk(send, piece)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_lines(send: Send, rows: AsyncIterator[bytes], limit: int | None) -> None:
    """Send lines as they come. An error before the first is an answer of its own."""
    first = await anext(rows, b"")
    await start(send, 200, encoded({"Content-Type": _LINES, "Cache-Control": "no-cache"}))
    pieces, size_bytes, count = [first], len(first), 1
    if first:
        async with contextlib.aclosing(rows):  # type: ignore[type-var]
            while limit is None or count < limit:
                row = await anext(rows, None)
                if row is None:
                    break
                pieces.append(row)
                size_bytes += len(row)
                count += 1
                if size_bytes >= _PIECE_BYTES:
                    await chunk(send, b"".join(pieces))
                    pieces, size_bytes = [], 0
    await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": False})


async def send_ack(send: Send, status: int, ack: Ack) -> None:
    """Answer a write."""
    row: dict[str, Any] = {"revision": ack.revision, "time": ack.time}
    if ack.seq is not None:
        row = {"seq": ack.seq, **row, "duplicate": ack.duplicate}
    row["durability"] = ack.durability.word
    await answer(
        send, status, encoded({"Content-Type": _JSON, "ETag": tag(ack.revision)}), line(row)
    )


def not_allowed(method: str, allowed: str) -> ProblemError:
    """Return the refusal of a method."""
    detail = f"{method} is not one of {allowed}"
    return ProblemError(405, "method_not_allowed", detail, {"Allow": allowed})
