"""The endpoint of durable streams: HTTP requests below `/v1/stream/`, and their answers.

An ASGI application by itself, without the request and response classes of a framework: this is the
path of every append and of every event to every follower.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import MutableMapping
from typing import Final
from urllib.parse import parse_qsl

from holdfast.gateway.http.asgi import (
    Receive,
    Scope,
    Send,
    answer,
    body_of,
    chunk,
    encoded,
    headers_of,
    shown_path,
    start,
    taken_over,
    until_disconnected,
)
from holdfast.gateway.http.durable.bodies import JSON, is_sent_as_base64, joined, media_type
from holdfast.gateway.http.durable.durable_stream import DurableStream, Found, now_ms
from holdfast.gateway.http.durable.durable_streams import DurableStreams
from holdfast.gateway.http.durable.known_stream import KnownStream, Told
from holdfast.gateway.http.durable.live_feed import event_of
from holdfast.gateway.http.durable.offsets import OffsetWord, next_cursor
from holdfast.gateway.http.durable.requests import (
    Live,
    ReadRequest,
    append_request,
    create_request,
    read_request,
)
from holdfast.gateway.http.durable.stream_names import ROOT, store_of
from holdfast.gateway.http.problems import ProblemError
from holdfast.gateway.http.sessions import Session, Sessions
from holdfast.protocol.errors import HoldfastError

#: The protocol has event streams end about so often, so that readers gather at caches.
_SSE_SECONDS: Final = 60.0
_CACHED: Final = "public, max-age=60, stale-while-revalidate=300"


class DurableEndpoint:
    """Answers requests on durable streams."""

    def __init__(
        self, sessions: Sessions, ending: asyncio.Event, long_poll_seconds: float
    ) -> None:
        self._sessions = sessions
        self._ending = ending
        self._long_poll_seconds = long_poll_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError, HoldfastError before it has begun to answer."""
        headers = headers_of(scope)
        path = shown_path(scope)
        if not path.startswith(ROOT):
            raise ProblemError(404, "not_found", "there is nothing at this path")
        store = store_of(path[len(ROOT) :].encode("latin-1"))
        async with self._sessions.of(headers) as session:
            await self._answer(session, store, headers, scope, receive, send)

    async def _answer(
        self,
        session: Session,
        store: str,
        headers: MutableMapping[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        method, streams = scope["method"], session.durable
        if method == "POST":
            await self._append(streams, store, headers, receive, send)
        elif method == "GET":
            await self._read(session, store, headers, scope, receive, send)
        elif method == "HEAD":
            await self._head(streams.stream(store), send)
        elif method == "PUT":
            await self._create(streams, store, scope, headers, receive, send)
        elif method == "DELETE":
            await streams.delete(streams.stream(store))
            await answer(send, 204, [])
        else:
            raise ProblemError(
                405, "method_not_allowed", method, {"Allow": "GET, HEAD, PUT, POST, DELETE"}
            )

    async def _create(
        self,
        streams: DurableStreams,
        store: str,
        scope: Scope,
        headers: MutableMapping[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        request = create_request(headers)
        body = await body_of(headers, receive)
        known, is_new = await streams.create(store, request, body)
        fields = {**_state_fields(known), "Stream-Next-Offset": known.tail}
        if is_new:
            host = headers.get("host", "localhost")
            fields["Location"] = f"{scope.get('scheme', 'http')}://{host}{shown_path(scope)}"
        await answer(send, 201 if is_new else 200, encoded(fields))

    async def _append(
        self,
        streams: DurableStreams,
        store: str,
        headers: MutableMapping[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        request = append_request(headers)
        body = await body_of(headers, receive)
        done = await streams.stream(store).appends.append(request, body)
        fields = {"Stream-Next-Offset": done.next_offset}
        if done.closed:
            fields["Stream-Closed"] = "true"
        status = 204
        if done.producer is not None:
            fields["Producer-Epoch"] = str(done.producer.epoch)
            fields["Producer-Seq"] = str(done.producer.seq)
            status = 200 if done.told is Told.STORED and body else 204
        await answer(send, status, encoded(fields))

    async def _head(self, stream: DurableStream, send: Send) -> None:
        known = await stream.state()
        fields = {**_state_fields(known), "Stream-Next-Offset": known.tail}
        await answer(send, 200, encoded({**fields, "Cache-Control": "no-store"}))

    # Reads

    async def _read(
        self,
        session: Session,
        store: str,
        headers: MutableMapping[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        query = scope["query_string"].decode("latin-1")
        request = read_request(parse_qsl(query, keep_blank_values=True), headers)
        streams = session.durable
        stream = streams.stream(store)
        if request.live is Live.SSE:
            await until_disconnected(receive, self._events(session, stream, request, scope, send))
        elif request.live is Live.LONG_POLL:
            await until_disconnected(receive, self._poll(streams, stream, request, send))
        else:
            found = await streams.read(stream, request.start)
            await stream.used(found.config, found.epoch)
            if request.start is OffsetWord.END:
                await _send_found(send, found, {"Cache-Control": "no-store"}, tagged=False)
            elif request.if_none_match in (found.tag, "*"):
                await answer(send, 304, encoded({"ETag": found.tag, "Cache-Control": _CACHED}))
            else:
                await _send_found(send, found, {"Cache-Control": _CACHED})

    async def _poll(
        self, streams: DurableStreams, stream: DurableStream, request: ReadRequest, send: Send
    ) -> None:
        found = await streams.read(stream, request.start)
        await stream.used(found.config, found.epoch)
        if not found.contents and not found.closed and found.up_to_date:
            found = await self._awaited(streams, stream, found)
        cursor = {"Stream-Cursor": next_cursor(request.cursor, now_ms())}
        if found.contents:
            await _send_found(send, found, {**cursor, "Cache-Control": "no-store"})
            return
        fields = {"Stream-Next-Offset": found.next_offset, "Stream-Up-To-Date": "true"}
        if found.closed:
            fields["Stream-Closed"] = "true"
        await answer(send, 204, encoded({**fields, **cursor, "Cache-Control": "no-store"}))

    async def _awaited(
        self, streams: DurableStreams, stream: DurableStream, found: Found
    ) -> Found:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._long_poll_seconds
        async with stream.tail.used() as tail:
            while True:
                changes = tail.changes
                found = await streams.read(stream, found.next_seq)
                left = give_up_at - loop.time()
                if found.contents or found.closed or left <= 0 or self._ending.is_set():
                    return found
                await tail.wait(changes, left)

    async def _events(
        self,
        session: Session,
        stream: DurableStream,
        request: ReadRequest,
        scope: Scope,
        send: Send,
    ) -> None:
        """Send what exists, and leave the connection to those who send what comes."""
        streams, feed = session.durable, session.durable.feed(stream)
        end_at = asyncio.get_running_loop().time() + _SSE_SECONDS
        async with stream.tail.used():
            found = await streams.read(stream, request.start)
            await stream.used(found.config, found.epoch)
            fields = {
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache, no-transform",
                "X-Accel-Buffering": "no",
                "Connection": "close",
            }
            if is_sent_as_base64(found.config.content_type):
                fields["Stream-SSE-Data-Encoding"] = "base64"
            await start(send, 200, encoded(fields))
            with contextlib.suppress(ProblemError, HoldfastError):
                # A stream that is deleted meanwhile ends its events, and so does one that cannot be
                # read now: the reader comes again, and is told why.
                await chunk(send, event_of(found, request.cursor))
                while not found.up_to_date and not found.closed and not self._ending.is_set():
                    found = await streams.read(stream, found.next_seq)
                    await chunk(send, event_of(found, request.cursor))
                if not found.closed and not self._ending.is_set():
                    await feed.started()
                    connection = taken_over(scope)
                    if connection is not None:
                        connection.end_at, connection.variant = end_at, request.cursor
                        session.keep(connection)
                        feed.join(connection, found.next_seq)
                    return
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _state_fields(known: KnownStream) -> dict[str, str]:
    config = known.config
    fields = {"Content-Type": config.content_type}
    if known.state.closed:
        fields["Stream-Closed"] = "true"
    if config.ttl_seconds is not None:
        fields["Stream-TTL"] = str(config.ttl_seconds)
    if config.expires_at is not None:
        fields["Stream-Expires-At"] = config.expires_at
    return fields


async def _send_found(
    send: Send, found: Found, fields: dict[str, str], *, tagged: bool = True
) -> None:
    content_type = found.config.content_type
    fields = {"Content-Type": content_type, "Stream-Next-Offset": found.next_offset, **fields}
    if tagged:
        fields["ETag"] = found.tag
    if found.up_to_date:
        fields["Stream-Up-To-Date"] = "true"
    if found.closed:
        fields["Stream-Closed"] = "true"
    body = joined(found.contents, content_type)
    if media_type(content_type) not in (JSON, "text/plain"):
        # Nobody who opens the address of a stream shall run what others wrote.
        fields["Content-Disposition"] = "attachment"
    await answer(send, 200, encoded(fields), body)
