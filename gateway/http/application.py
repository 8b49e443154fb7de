"""The ASGI application: routes, and what holds for all of them.

Every answer has the headers that keep browsers from guessing its type; every refusal is problem
details; an exception while serving one request answers that request and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.gateway.http.asgi import answer, encoded
from holdfast.gateway.http.bounded_bodies import BoundedBodies
from holdfast.gateway.http.console.api import API, ConsoleApi
from holdfast.gateway.http.console.page import ASSETS, ConsolePage
from holdfast.gateway.http.durable_endpoint import DurableEndpoint
from holdfast.gateway.http.metering import Metered, WebCounts
from holdfast.gateway.http.native.endpoints import (
    FOLLOW,
    WATCH,
    FollowEndpoint,
    KvEndpoint,
    StreamEndpoint,
)
from holdfast.gateway.http.openapi import endpoint as openapi
from holdfast.gateway.http.problems import CONTENT_TYPE, ProblemError, problem_of
from holdfast.gateway.http.sessions import Sessions
from holdfast.gateway.http.sites import KnownSites
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

_SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
)
_METHODS: Final = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"]
#: Headers of requests and answers that browsers let pages of other origins use.
_REQUEST_HEADERS: Final = [
    "Authorization", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match",
    "Last-Event-ID",
    "Stream-Seq", "Stream-TTL", "Stream-Expires-At", "Stream-Closed", "Producer-Id",
    "Producer-Epoch", "Producer-Seq", "Stream-Forked-From", "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset",
]
_ANSWER_HEADERS: Final = [
    "ETag", "Location", "Content-Type", "Stream-Next-Offset", "Stream-Cursor",
    "Stream-Up-To-Date", "Stream-Closed", "Stream-TTL", "Stream-Expires-At",
    "Stream-SSE-Data-Encoding", "Producer-Epoch", "Producer-Seq", "Producer-Expected-Seq",
    "Producer-Received-Seq",
]


@dataclass(frozen=True, slots=True)
class WebOptions:
    """What operators choose of the HTTP gateway."""

    #: Origins whose pages may use it, beside its own; "*" for all.
    origins: Sequence[str] = ()
    #: Names that requests without a token may use for it, beside private ones; "*" for all.
    hosts: Sequence[str] = ()
    long_poll_seconds: float = 30.0


class Secured:
    """Adds to every answer the headers that keep browsers from guessing what it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", ())
                named = {name.lower() for name, _ in own}
                message["headers"] = [*own, *(each for each in _SECURITY if each[0] not in named)]
            await send(message)

        await self._app(scope, receive, secured if scope["type"] == "http" else send)


class Refusing:
    """Answers what its application raises with problem details."""

    def __init__(self, app: ASGIApp, counts: WebCounts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except (ProblemError, HoldfastError) as error:
            problem = problem_of(error) if isinstance(error, HoldfastError) else error
            self._counts.errors.add(problem.code)
            if begun:
                logger.debug("gateway.answer_cut code=%s", problem.code)
                raise
            await _refuse(scope, send, problem)
        except Exception:
            logger.exception("gateway.request_failed")
            self._counts.errors.add("internal_error")
            if begun:
                raise
            await _refuse(scope, send, ProblemError(500, "internal_error", "a bug of the gateway"))


async def _refuse(scope: Scope, send: Send, problem: ProblemError) -> None:
    fields = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store", **problem.headers}
    if scope["type"] == "http":
        await answer(send, problem.status, encoded(fields), problem.body())
        return
    body = problem.body()
    headers = [*encoded(fields), (b"Content-Length", str(len(body)).encode())]
    begin = "websocket.http.response.start"
    await send({"type": begin, "status": problem.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def routes(
    sessions: Sessions, ending: asyncio.Event, options: WebOptions
) -> dict[bytes, ASGIApp]:
    """Return what answers requests, by what their paths begin with."""
    return {
        openapi.PATH.encode(): openapi.OpenApiEndpoint(),
        b"/v1/stream/": DurableEndpoint(sessions, ending, options.long_poll_seconds),
        b"/v1/kv/": KvEndpoint(sessions),
        b"/v1/streams/": StreamEndpoint(sessions),
        WATCH.encode(): FollowEndpoint(sessions, ending, of_kv=True),
        FOLLOW.encode(): FollowEndpoint(sessions, ending, of_kv=False),
        f"{API}/".encode(): ConsoleApi(sessions, ending),
        ASSETS.encode(): ConsolePage(),
    }


def application(
    sessions: Sessions, ending: asyncio.Event, options: WebOptions, counts: WebCounts | None = None
) -> ASGIApp:
    """Return the application. Streaming answers end once `ending` is set."""
    counts = counts or WebCounts()
    parts = routes(sessions, ending, options)
    page = parts[ASSETS.encode()]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        # By the bytes that were sent: what is percent-encoded is no part of these names.
        path: bytes = scope["raw_path"]
        found = next((part for start, part in parts.items() if path.startswith(start)), _nothing)
        if path.partition(b"?")[0] == b"/":
            found = page
        if scope["type"] == "websocket" and not isinstance(found, FollowEndpoint):
            found = _nothing
        await found(scope, receive, send)

    shared = CORSMiddleware(
        Refusing(BoundedBodies(serve), counts),
        allow_origins=list(options.origins),
        allow_methods=_METHODS,
        allow_headers=_REQUEST_HEADERS,
        expose_headers=_ANSWER_HEADERS,
        max_age=600,
    )
    sites = KnownSites(shared, options.origins, options.hosts)
    return Metered(Secured(Refusing(sites, counts)), counts)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ProblemError(404, "not_found", "there is nothing at this path")
