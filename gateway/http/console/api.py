"""The endpoints below `/api/v1`: a cluster and its stores, as the console shows them.

Everything here is a GET and changes nothing. Who writes uses `/v1/kv` and `/v1/streams`, with the
same token. Lists are bounded, and `more` says whether they were cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes
from weakref import WeakKeyDictionary

from holdfast.gateway.http.asgi import (
    Receive,
    Scope,
    Send,
    answer,
    chunk,
    encoded,
    headers_of,
    start,
    until_disconnected,
)
from holdfast.gateway.http.console.previews import (
    config_row,
    consumer_row,
    message_preview,
    store_row,
)
from holdfast.gateway.http.console.watch import ClusterWatch
from holdfast.gateway.http.native.endpoints import not_allowed, parameters_of
from holdfast.gateway.http.native.parameters import invalid, number
from holdfast.gateway.http.problems import ProblemError
from holdfast.gateway.http.sessions import Session, Sessions
from holdfast.protocol.names import StoreKind

API: Final = "/api/v1"
_KEEP_ALIVE_SECONDS: Final = 15.0
#: Rows of one answer, and messages.
MAX_ROWS: Final = 1000
MAX_MESSAGES: Final = 200
#: Streams that are asked for their consumers by one request; each may have to be opened.
MAX_ASKED_STREAMS: Final = 50
_SHIELD: Final = {"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"}
_KINDS: Final = {"stream": StoreKind.STREAM, "kv": StoreKind.KV}

T = TypeVar("T")


class _Asked(NamedTuple):
    session: Session
    watch: ClusterWatch
    #: What follows the name of the endpoint, percent-decoded.
    rest: list[str]
    parameters: Mapping[str, str]


class ConsoleApi:
    """Answers requests below `/api/v1`."""

    def __init__(self, sessions: Sessions, ending: asyncio.Event) -> None:
        self._sessions = sessions
        self._ending = ending
        self._watches: WeakKeyDictionary[Session, ClusterWatch] = WeakKeyDictionary()
        self._endpoints: dict[str, Callable[[_Asked], Awaitable[Any]]] = {
            "cluster": _cluster,
            "consumers": _consumers,
            "servers": _servers,
            "stores": _stores,
        }

    @property
    def names(self) -> frozenset[str]:
        """What follows `/api/v1/` in paths."""
        return frozenset([*self._endpoints, "live"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError, HoldfastError."""
        if scope["method"] not in ("GET", "HEAD"):
            raise not_allowed(scope["method"], "GET, HEAD")
        name, *rest = _parts(scope["raw_path"])
        is_live = name == "live" and not rest
        endpoint = self._endpoints.get(name)
        if endpoint is None and not is_live:
            raise ProblemError(404, "not_found", "there is nothing at this path")
        async with self._sessions.of(headers_of(scope)) as session:
            watch = self._watches.get(session)
            if watch is None:
                watch = self._watches[session] = ClusterWatch(session.client)
            if endpoint is None:
                await until_disconnected(receive, self._live(watch, send))
                return
            found = await endpoint(_Asked(session, watch, rest, parameters_of(scope)))
        body = json.dumps(found, separators=(",", ":")).encode()
        await answer(send, 200, encoded({"Content-Type": "application/json", **_SHIELD}), body)

    async def _live(self, watch: ClusterWatch, send: Send) -> None:
        fields = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", **_SHIELD}
        await start(send, 200, encoded(fields))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            async with watch.viewed():
                await chunk(send, watch.begin())
                turn = told = 0
                while not ending.done():
                    events = watch.happened_after(told)
                    told = events[-1].number if events else told
                    turn, newest = watch.turn, watch.newest
                    body = b"".join(each.body for each in events) + newest
                    await chunk(send, body or b": here\n\n")
                    waiting = asyncio.ensure_future(watch.turned(turn, _KEEP_ALIVE_SECONDS))
                    await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
                    await _ended(waiting)
        finally:
            await _ended(ending)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _ended(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _parts(raw_path: bytes) -> list[str]:
    path = raw_path.partition(b"?")[0].removeprefix(API.encode())
    try:
        return [unquote_to_bytes(each).decode() for each in path.split(b"/")[1:]] or [""]
    except UnicodeDecodeError as error:
        raise invalid("the path is not UTF-8") from error


async def _cluster(asked: _Asked) -> Any:
    _nothing_more(asked)
    return await asked.watch.look()


async def _servers(asked: _Asked) -> Any:
    _nothing_more(asked)
    return {"servers": [each._asdict() for each in await asked.session.client.servers()]}


async def _stores(asked: _Asked) -> Any:
    """The list, one store, or what is in it."""
    if not asked.rest:
        return await _list(asked)
    kind = _KINDS.get(asked.rest[0])
    if kind is None or len(asked.rest) not in (2, 3):
        raise ProblemError(404, "not_found", "there is nothing at this path")
    name, what = asked.rest[1], asked.rest[2] if len(asked.rest) == 3 else ""
    if what == "" and len(asked.rest) == 2:
        return await _store(asked, kind, name)
    if what == "messages" and kind == StoreKind.STREAM:
        return await _messages(asked, name)
    if what == "keys" and kind == StoreKind.KV:
        return await _keys(asked, name)
    raise ProblemError(404, "not_found", "there is nothing at this path")


async def _list(asked: _Asked) -> Any:
    parameters = asked.parameters
    kind = parameters.get("kind")
    if kind is not None and kind not in _KINDS:
        raise invalid("kind must be stream or kv")
    limit = _limit(parameters, 100, MAX_ROWS)
    listed = asked.session.client.stores(
        None if kind is None else _KINDS[kind], parameters.get("prefix", "")
    )
    found, more = await _first(listed, limit)
    return {"stores": [store_row(each) for each in found], "more": more}


async def _store(asked: _Asked, kind: StoreKind, name: str) -> Any:
    client = asked.session.client
    if kind == StoreKind.STREAM:
        stream = client.stream(name)
        head, config, consumers = await asyncio.gather(
            stream.head(), stream.config(), stream.consumers()
        )
        rows = [consumer_row(name, each) for each in consumers[:MAX_ROWS]]
    else:
        kv = client.kv(name)
        head, config = await asyncio.gather(kv.head(), kv.config())
        rows = []
    fields = {field: getattr(head, field) for field in head.__slots__}
    fields["chain"] = None if head.chain is None else head.chain.hex()
    return {"kind": kind.word, "name": name, **fields, **config_row(config), "consumers": rows}


async def _messages(asked: _Asked, name: str) -> Any:
    last = _limit(asked.parameters, 50, MAX_MESSAGES)
    end_seq = number(asked.parameters, "end_seq")
    stream = asked.session.client.stream(name)
    found = [message_preview(each) async for each in stream.get_all(end_seq=end_seq, last=last)]
    return {"messages": found}


async def _keys(asked: _Asked, name: str) -> Any:
    listed = asked.session.client.kv(name).keys(prefix=asked.parameters.get("prefix", ""))
    found, more = await _first(listed, _limit(asked.parameters, 100, MAX_ROWS))
    return {"keys": found, "more": more}


async def _consumers(asked: _Asked) -> Any:
    """The consumers of the first hot streams that fit: asking a cold one would bring it back."""
    _nothing_more(asked)
    client = asked.session.client
    listed = client.stores(StoreKind.STREAM, asked.parameters.get("prefix", ""))
    found, more = await _first(listed, _limit(asked.parameters, 20, MAX_ASKED_STREAMS))
    names = [each.name for each in found if not each.cold]
    answers = await asyncio.gather(*(client.stream(name).consumers() for name in names))
    rows = [
        consumer_row(name, each)
        for name, of_stream in zip(names, answers, strict=True)
        for each in of_stream[:MAX_ROWS]
    ]
    return {"consumers": rows[:MAX_ROWS], "asked": len(names), "more": more}


async def _first(rows: AsyncIterator[T], limit: int) -> tuple[list[T], bool]:
    """Return the first rows, and whether there are more."""
    found: list[T] = []
    async with contextlib.aclosing(rows):  # type: ignore[type-var]
        async for row in rows:
            if len(found) == limit:
                return found, True
            found.append(row)
    return found, False


def _limit(parameters: Mapping[str, str], usual: int, most: int) -> int:
    found = number(parameters, "limit", least=1)
    if found is not None and found > most:
        raise invalid(f"limit must be at most {most}")
    return usual if found is None else found


def _nothing_more(asked: _Asked) -> None:
    if asked.rest:
        raise ProblemError(404, "not_found", "there is nothing at this path")
