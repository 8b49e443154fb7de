"""What an HTTP gateway counts: requests, errors, followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind

_SSE, _WEBSOCKET, _LONG_POLL = "sse", "websocket", "long_poll"
_EVENT_STREAM: Final = b"text/event-stream"
_LONG_POLL_QUERY: Final = b"live=long-poll"


class WebCounts:
    """The numbers of one gateway."""

    def __init__(self, statistics: Statistics | None = None) -> None:
        self.statistics = statistics or Statistics(PartKind.GATEWAY_HTTP, "", 0)
        self.errors = self.statistics.counters(metrics.ERRORS)
        self._followers = dict.fromkeys((_SSE, _WEBSOCKET, _LONG_POLL), 0)
        self.statistics.read_each(metrics.FOLLOWERS, self._followers_now)
        classes = (*(f"{number}xx" for number in range(1, 6)), _LONG_POLL)
        self._durations = {
            each: self.statistics.histogram(metrics.HTTP_REQUESTS, each) for each in classes
        }

    def read(self, connections: Callable[[], int], sessions: Callable[[], int]) -> None:
        """Read how many connections and clients there are."""
        self.statistics.read(metrics.HTTP_CONNECTIONS, connections)
        self.statistics.read(metrics.HTTP_SESSIONS, sessions)

    def begun(self, seconds: float, status: int, *, is_long_poll: bool) -> None:
        """Count an answer that begins, so long after its request."""
        found = self._durations.get(_LONG_POLL if is_long_poll else f"{status // 100}xx")
        if found is not None:
            found.observe(seconds)

    def follows(self, way: str, change: int) -> None:
        """Count a follower that comes or goes."""
        self._followers[way] += change

    def _followers_now(self) -> Mapping[str, float]:
        return self._followers


class Metered:
    """Counts the requests of its application."""

    def __init__(self, app: ASGIApp, counts: WebCounts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of a WebSocket, or one request."""
        counts, now = self._counts, asyncio.get_running_loop().time
        began_at = now()
        is_long_poll = _LONG_POLL_QUERY in scope.get("query_string", b"")
        way = _LONG_POLL if is_long_poll else ""

        async def counting(message: Message) -> None:
            nonlocal way
            kind = message["type"]
            if kind == "http.response.start":
                counts.begun(now() - began_at, message["status"], is_long_poll=is_long_poll)
                if not way and _is_event_stream(message):
                    way = _SSE
                    counts.follows(way, 1)
            elif kind == "websocket.accept":
                way = _WEBSOCKET
                counts.follows(way, 1)
            await send(message)

        if way:
            counts.follows(way, 1)
        try:
            await self._app(scope, receive, counting)
        finally:
            if way:
                counts.follows(way, -1)


def _is_event_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(_EVENT_STREAM)
        for name, value in message.get("headers", ())
    )
