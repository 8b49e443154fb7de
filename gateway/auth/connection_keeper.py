"""Counts the connections of tokens, and closes those that may not stay.

It works in NATS's system account. The configuration of nats-server need not have a user for that:
then nothing is counted and nothing is closed, and everybody with a valid token is let in.

Nobody is refused on a count alone that may be wrong: before the first refusal, the nats-servers are
asked. And nobody gets past the limit for long: two auth services that let in one connection each at
the same time both see one too many afterwards, and both close the same one, the newest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from holdfast.gateway.auth.connection_table import ConnectionTable
from holdfast.gateway.auth.known_tokens import KnownTokens
from holdfast.gateway.auth.system_account import (
    LIST_ALL,
    ConnectionArrival,
    ConnectionPage,
    ConnectionPlace,
    came,
    close_one,
    closing_request,
    left,
    list_one,
    listing_request,
    read_closed,
    read_event,
    read_page,
)
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.errors import (
    HoldfastError,
    LoginFailedError,
    MalformedFrameError,
    NotAllowedError,
    UnavailableError,
)
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.gateway")

#: How often it looks at what was revoked, and at tokens that seem to have too many connections. A
#: connection ends within 5 s of that.
SWEEP_SECONDS: Final = 2.0
#: How often all connections are listed, to find what was lost. Never more than a twentieth of the
#: time is spent on it.
LIST_SECONDS: Final = 30.0
_LIST_SHARE: Final = 20
#: How long nats-servers have to answer. Who may answer is not known before.
ANSWER_SECONDS: Final = 1.0
#: How long the answer about the connections of one token holds: a holder who tries again and again
#: costs the nats-servers no more.
_ASK_AGAIN_SECONDS: Final = 1.0
#: How long to wait before the next attempt to log in to the system account, and if NATS knows no
#: such user. It asks the auth service about everybody whom it does not know, so that is logged.
_RETRY_SECONDS: Final = 5.0
_REFUSED_RETRY_SECONDS: Final = 300.0
#: Beyond it, all connections are listed rather than those of each newly revoked token.
_MAX_ASKED_TOKENS: Final = 8
_CLOSED_AT_A_TIME: Final = 64
#: Tokens whose terms are remembered.
_MAX_TERMS: Final = 100_000

#: Connections to close: the token, and the reason.
_Unwanted = Mapping[ConnectionPlace, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a token that was let in here says of its connections."""

    limit: int | None
    expires_at: int | None


@dataclass(slots=True)
class _Answers:
    """What nats-servers answer to one question."""

    #: The ids of those that are known and have not answered yet.
    awaited: set[str]
    pages: list[ConnectionPage] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class ConnectionKeeper:
    """One auth service's knowledge of connections. `keep` does the work; until that has begun, and
    while NATS cannot be asked, everybody is let in."""

    def __init__(
        self,
        tokens: KnownTokens,
        account: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._tokens = tokens
        self._account = account
        self._clock = clock
        self._wall_clock = wall_clock
        self._table = ConnectionTable()
        self._terms: dict[str, _Terms] = {}
        #: The nats-servers that answered last, or were heard since.
        self._servers: set[str] = set()
        self._trouble = Trouble(logger, "auth.not_counting", clock=clock)
        # While connected:
        self._bus: Bus | None = None
        self._inbox = ""
        self._questions: dict[str, _Answers] = {}
        self._question_count = 0
        #: By token: the last question about its connections.
        self._asking: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._is_listed = False
        #: Tokens that seem to have more connections than they may.
        self._crowded: set[str] = set()
        #: What was revoked when it was last looked at; None before.
        self._swept: Mapping[str, object] | None = None

    async def keep(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        """Count and close connections for ever, over a bus that `connect` makes: a connection of
        the system account's user. Until there is one, try again."""
        while True:
            seconds = _RETRY_SECONDS
            try:
                bus = await connect()
                try:
                    await self._keep_over(bus)
                finally:
                    self._bus, self._is_listed = None, False
                    await bus.close()
            except HoldfastError as error:
                self._trouble.note("reason=%s", error)
                if isinstance(error, LoginFailedError):
                    seconds = _REFUSED_RETRY_SECONDS
            except Exception:
                # A bug here must not keep anybody out.
                logger.exception("auth.counting_failed")
            await asyncio.sleep(seconds)

    async def may_come(self, place: ConnectionPlace, token: Token) -> bool:
        """Tell whether one more connection of a token may come; then it counts from now on."""
        limit = token.limits.connections
        if limit is not None and self._counts and self._has_all(place, token.id, limit):
            await self._ask_about(token.id)
            if self._counts and self._has_all(place, token.id, limit):
                return False
        if self._bus is not None:
            if len(self._terms) >= _MAX_TERMS:
                self._terms.pop(next(iter(self._terms)))
            self._terms[token.id] = _Terms(limit, token.expires_at)
        if self._counts:
            self._table.let_in(place, token.id, self._clock())
        return True

    def _has_all(self, place: ConnectionPlace, token: str, limit: int) -> bool:
        return self._table.count(token, self._clock(), place) >= limit

    @property
    def _counts(self) -> bool:
        """Whether the table can be believed."""
        return self._is_listed and self._bus is not None and self._bus.connected

    async def _keep_over(self, bus: Bus) -> None:
        lost = asyncio.Event()

        def reconnected() -> None:
            # What came and went meanwhile was not heard.
            self._is_listed = False
            lost.set()

        bus.on_reconnect(reconnected)
        bus.on_refused(self._refused)
        await bus.subscribe(came(self._account), self._on_came)
        await bus.subscribe(left(self._account), self._on_left)
        self._inbox = bus.new_inbox()
        await bus.subscribe(f"{self._inbox}.*", self._on_answer)
        await bus.flush()
        self._asking.clear()
        self._crowded.clear()
        self._swept = None
        async with asyncio.TaskGroup() as tasks:
            self._tasks, self._bus = tasks, bus
            tasks.create_task(self._keep_listing(lost))
            while True:
                if bus.connected:
                    await self._close_crowded()
                    await self._close_revoked()
                await asyncio.sleep(SWEEP_SECONDS)

    async def _keep_listing(self, lost: asyncio.Event) -> None:
        """List all connections again and again, and at once when messages may be `lost`."""
        while True:
            lost.clear()
            began_at = self._clock()
            await self._list_all()
            seconds = max(LIST_SECONDS, _LIST_SHARE * (self._clock() - began_at))
            if not self._is_listed:
                seconds = SWEEP_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await lost.wait()

    # What nats-servers say
    def _on_came(self, message: BusMessage) -> None:
        with self._reading():
            place, arrival = read_event(message.payload)
            self._servers.add(place.server)
            self._table.came(place, arrival, self._clock())
            terms = self._terms.get(arrival.token)
            limit = None if terms is None else terms.limit
            if limit is not None and self._has_all(place, arrival.token, limit):
                # Several auth services may have let in one each, at the same time.
                self._crowded.add(arrival.token)

    def _on_left(self, message: BusMessage) -> None:
        with self._reading():
            place, _ = read_event(message.payload)
            self._table.left(place, self._clock())

    def _on_answer(self, message: BusMessage) -> None:
        answers = self._questions.get(message.subject.rpartition(".")[2])
        if answers is None:
            return
        if message.no_responders:
            answers.complete.set()
            return
        with self._reading():
            page = read_page(message.payload)
            answers.pages.append(page)
            answers.awaited.discard(page.server)
            if not answers.awaited:
                answers.complete.set()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except MalformedFrameError as error:
            self._trouble.note("reason=%s", error)

    def _refused(self, error: NotAllowedError) -> None:
        self._trouble.note("reason=%s", error)

    # Asking them
    async def _list_all(self) -> None:
        """Learn all connections, and close those that are beyond a limit or have expired."""
        bus = self._bus
        assert bus is not None
        asked_at = self._clock()
        # A nats-server that is not known yet answers as well: wait for it.
        pages = await self._ask(listing_request(self._account), {""})
        if not pages:
            self._is_listed = False
            self._trouble.note("reason=%s", "no nats-server answers in the system account")
            return
        found: dict[ConnectionPlace, ConnectionArrival] = {}
        incomplete = set()
        for page in pages:
            found |= page.connections
            try:
                found |= await self._following(bus, page)
            except HoldfastError:
                # It has gone, or is overloaded: the next listing tells.
                incomplete.add(page.server)
        self._servers = {page.server for page in pages}
        self._table.listed(found, asked_at, incomplete=incomplete)
        self._trouble.over()
        if not self._is_listed and bus.connected:
            self._is_listed = True
            logger.info(
                "auth.counting connections=%d nats_servers=%d", len(self._table), len(pages)
            )
        self._asking = {
            token: (at, task) for token, (at, task) in self._asking.items() if not task.done()
        }
        present = self._table.tokens()
        self._terms = {token: terms for token, terms in self._terms.items() if token in present}
        await self._close(self._unwanted(self._terms))

    async def _following(
        self, bus: Bus, page: ConnectionPage
    ) -> Mapping[ConnectionPlace, ConnectionArrival]:
        """Return what a nats-server lists after its first page. Raises what the bus raises, and
        MalformedFrameError."""
        found: dict[ConnectionPlace, ConnectionArrival] = {}
        read = len(page.connections)
        while not page.is_last:
            question = listing_request(self._account, offset=read)
            page = read_page(await bus.request(list_one(page.server), question, ANSWER_SECONDS))
            found |= page.connections
            read += len(page.connections)
        return found

    async def _ask_about(self, token: str) -> None:
        """Learn the connections of one token, unless that was done just now."""
        now = self._clock()
        asked_at, task = self._asking.get(token, (now, None))
        if task is None or (task.done() and now >= asked_at + _ASK_AGAIN_SECONDS):
            task = self._tasks.create_task(self._list_token(token))
            self._asking[token] = now, task
        # Whatever becomes of it is not this login's trouble.
        await asyncio.wait([task])

    async def _list_token(self, token: str) -> None:
        asked_at = self._clock()
        pages = await self._ask(listing_request(self._account, token), set(self._servers))
        if not pages:
            return
        found: dict[ConnectionPlace, ConnectionArrival] = {}
        for page in pages:
            found |= page.connections
        # One that does not answer in time is not waited for again.
        self._servers = {page.server for page in pages}
        incomplete = {page.server for page in pages if not page.is_last}
        self._table.listed(found, asked_at, token=token, incomplete=incomplete)

    async def _ask(self, question: bytes, awaited: set[str]) -> list[ConnectionPage]:
        """Return the answers of all nats-servers, as soon as the `awaited` ones have answered."""
        assert self._bus is not None
        self._question_count += 1
        number = str(self._question_count)
        answers = self._questions[number] = _Answers(awaited)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._bus.publish(LIST_ALL, question, f"{self._inbox}.{number}")
                    await answers.complete.wait()
        finally:
            del self._questions[number]
        return answers.pages

    # Closing connections
    def _unwanted(self, tokens: Iterable[str]) -> _Unwanted:
        """Return the connections that are beyond a limit, or whose token has expired."""
        unwanted: dict[ConnectionPlace, tuple[str, str]] = {}
        now = self._wall_clock()
        for token in tokens:
            terms = self._terms.get(token, _Terms(None, None))
            places = self._table.places(token)
            if terms.expires_at is not None and now >= terms.expires_at:
                # NATS does the same, by its own clock.
                unwanted |= dict.fromkeys(places, (token, "its token has expired"))
            elif terms.limit is not None:
                reason = f"its token may have {terms.limit} connections"
                unwanted |= dict.fromkeys(places[terms.limit :], (token, reason))
        return unwanted

    async def _close_crowded(self) -> None:
        crowded, self._crowded = self._crowded, set()
        await asyncio.gather(*(self._list_token(token) for token in crowded))
        await self._close(self._unwanted(crowded))

    async def _close_revoked(self) -> None:
        try:
            revoked = await self._tokens.revoked()
        except UnavailableError:
            # The log says so already.
            return
        if self._swept is not None and revoked is not self._swept:
            # An event may have been lost: ask.
            new = revoked.keys() - self._swept.keys()
            if len(new) > _MAX_ASKED_TOKENS:
                await self._list_all()
            else:
                await asyncio.gather(*(self._list_token(token) for token in new))
        self._swept = revoked
        await self._close(
            {
                place: (token, "its token is revoked")
                for token in revoked.keys() & self._table.tokens()
                for place in self._table.places(token)
            }
        )

    async def _close(self, unwanted: _Unwanted) -> None:
        limit = asyncio.Semaphore(_CLOSED_AT_A_TIME)

        async def close(place: ConnectionPlace, token: str, reason: str) -> None:
            async with limit:
                await self._close_one(place, token, reason)

        async with asyncio.TaskGroup() as closing:
            for place, (token, reason) in unwanted.items():
                closing.create_task(close(place, token, reason))

    async def _close_one(self, place: ConnectionPlace, token: str, reason: str) -> None:
        assert self._bus is not None
        try:
            answer = await self._bus.request(
                close_one(place.server), closing_request(place), ANSWER_SECONDS
            )
            why_not = read_closed(answer)
        except HoldfastError as error:
            why_not = str(error)
        if why_not:
            # It has gone by itself, or the next sweep tries again.
            logger.debug("auth.not_closed connection=%d reason=%s", place.number, why_not)
            return
        self._table.left(place, self._clock())
        logger.info(
            "auth.closed token=%s reason=%s nats_server=%s connection=%d",
            *(token, reason, place.server, place.number),
        )
