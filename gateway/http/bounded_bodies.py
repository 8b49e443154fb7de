"""Bounds the bodies of all requests in memory: those that arrive, and those that are being stored.

A client may send its body bit by bit for a minute, on as many connections as a gateway has. What a
connection buffers anyway is free, so small writes are never refused for others' large ones. Beyond
that the requests with one token get as much as is still free.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.gateway.http.asgi import MAX_BODY_BYTES
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.serving.fair_queue import SharedRoom

#: Of all bodies together, but for the first FREE_BODY_BYTES of each.
MAX_BODIES_BYTES: Final = 256 * 1024 * 1024
#: As much as uvicorn buffers of a connection whose body nobody reads.
FREE_BODY_BYTES: Final = 64 * 1024


class BoundedBodies:
    """Counts what its application receives, until the request is done."""

    def __init__(self, app: ASGIApp, most_bytes: int = MAX_BODIES_BYTES) -> None:
        self._app = app
        self._room = SharedRoom(most_bytes)

    @property
    def taken_bytes(self) -> int:
        """What the bodies of all requests take."""
        return self._room.taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket. Receiving raises ProblemError if there is no room."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        who = next((text for name, text in scope["headers"] if name == b"authorization"), b"")
        token = who.decode("latin-1")
        body_bytes = taken_bytes = 0

        async def counted() -> Message:
            nonlocal body_bytes, taken_bytes
            event = await receive()
            body_bytes += len(event.get("body", b""))
            # What is beyond the largest body is not kept.
            more_bytes = min(body_bytes, MAX_BODY_BYTES) - FREE_BODY_BYTES - taken_bytes
            if more_bytes > 0:
                if not self._room.has(token, more_bytes):
                    detail = "too many large bodies are on their way"
                    headers = {"Retry-After": "1", "Connection": "close"}
                    raise ProblemError(503, "busy", detail, headers)
                self._room.take(token, more_bytes)
                taken_bytes += more_bytes
            return event

        try:
            await self._app(scope, counted, send)
        finally:
            self._room.give_back(token, taken_bytes)
