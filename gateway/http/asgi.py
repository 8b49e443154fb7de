"""What an ASGI server gives and takes: headers, bodies and answers, without a framework's classes,
for the paths of every append and of every event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final

from holdfast.gateway.http.events.event_connection import TAKE_OVER, EventConnection
from holdfast.gateway.http.problems import ProblemError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

#: One batch of the cluster is one frame of NATS, with what is recorded beside the content.
MAX_BODY_BYTES: Final = 900_000
#: How much of a body that is too large is read before the connection is closed.
_MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
_BODY_SECONDS: Final = 60.0


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by their names in lower case. Raises ProblemError."""
    found: dict[str, str] = {}
    for raw_name, raw_text in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        text = raw_text.decode("latin-1").strip()
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def encoded(fields: dict[str, str]) -> HeaderList:
    """Return headers as an ASGI server takes them."""
    return [(name.encode(), text.encode("latin-1", "replace")) for name, text in fields.items()]


async def body_of(headers: MutableMapping[str, str], receive: Receive) -> bytes:
    """Return the body of a request. Raises ProblemError if it is too large, slow, or cut off."""
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES and "expect" in headers:
        # It is not sent before the answer to the head.
        raise _too_large()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await _whole_body(receive)
    except TimeoutError as error:
        raise ProblemError(
            408, "too_slow", "the body did not come in time", {"Connection": "close"}
        ) from error


async def _whole_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ProblemError(400, "cut_off", "the connection ended within the body")
        part = event.get("body", b"")
        size_bytes += len(part)
        if size_bytes <= MAX_BODY_BYTES:
            parts.append(part)
        elif size_bytes <= _MAX_DISCARDED_BYTES:
            # Many clients read the answer only after they have sent everything.
            parts.clear()
        else:
            raise _too_large()
        if not event.get("more_body"):
            if size_bytes > MAX_BODY_BYTES:
                raise _too_large()
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large() -> ProblemError:
    return ProblemError(
        413, "too_large", f"a body has at most {MAX_BODY_BYTES} bytes", {"Connection": "close"}
    )


async def disconnected(receive: Receive) -> None:
    """Return once the client is gone."""
    while not (await receive())["type"].endswith("disconnect"):
        pass


async def until_disconnected(receive: Receive, answering: Coroutine[Any, Any, None]) -> None:
    """AppendAnswer, but no longer than the client is there. Raises what `answering` raises."""
    task = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait((task, gone))


async def start(send: Send, status: int, headers: HeaderList) -> None:
    """Begin an answer whose length is not known."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(send: Send, status: int, headers: HeaderList, body: bytes = b"") -> None:
    """Answer whole."""
    if status not in (204, 304):
        headers.append((b"Content-Length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def chunk(send: Send, body: bytes) -> None:
    """Send a part of an answer that was begun with `start`."""
    await send({"type": "http.response.body", "body": body, "more_body": True})


def taken_over(scope: Scope) -> EventConnection | None:
    """Take the connection of a request whose chunked answer has begun: see `EventConnection`. None:
    the client is gone, or the server cannot."""
    take_over = scope.get("extensions", {}).get(TAKE_OVER)
    return None if take_over is None else take_over()


def shown_path(scope: Scope) -> str:
    """Return the path of a request, as it was sent."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")
