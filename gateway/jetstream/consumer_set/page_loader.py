"""Answers what consumers ask of their stream: pages, messages that are due again, counts.

What the cache of the tail has is answered at once. Reads that several consumers want at the same
time, as when many clients begin to watch the same keys, are made once. A read that fails is made
again after a while. Nothing is read for clients while NATS takes less than it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast.client.handles.serving_wire import ServedPage
from holdfast.gateway.jetstream.api.names import is_subset
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumer_set.tail_cache import TailCache
from holdfast.gateway.jetstream.consumers.effects import Effect, LoadDue, LoadPage, Recount
from holdfast.gateway.jetstream.consumers.stream_access import StreamAccess
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import PAGE_BYTES

logger = logging.getLogger("holdfast.gateway")

#: A read that failed is made again after so long; the client below has tried for longer.
_TRY_AGAIN_SECONDS: Final = 1.0
#: Questions that are asked at a time.
_AT_A_TIME: Final = 64

Question = LoadPage | LoadDue | Recount


class PageLoader:
    """The reads of one stream's consumers. `resume` is called with the effects of an answer that
    came later."""

    def __init__(
        self,
        access: StreamAccess,
        cache: TailCache,
        resume: Callable[[ServedConsumer, list[Effect]], None],
    ) -> None:
        self._access = access
        self._cache = cache
        self._resume = resume
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._waiters: list[asyncio.Future[None]] = []
        # Reads of pages on their way, by what they read.
        self._reads: dict[tuple[Any, ...], asyncio.Future[ServedPage]] = {}

    def ask(self, consumer: ServedConsumer, question: Question) -> list[Effect]:
        """Answer a question of a consumer, and return the effects; or answer it later."""
        if self._access.leaf.writable:
            if type(question) is LoadPage and not question.lasts_up_to:
                page = self._cached(consumer, question.start_seq, question.limit)
                if page is not None:
                    return self._loaded(consumer, question, page)
            elif type(question) is LoadDue:
                cached = [self._cache.get(seq) for seq in question.seqs]
                messages = [message for message in cached if message is not None]
                if len(messages) == len(question.seqs):
                    now = self._access.now_ms()
                    return consumer.consumer.loaded_due(question, messages, len(messages), now)
        self._access.spawn(self._answer(consumer, question))
        return []

    async def _answer(self, consumer: ServedConsumer, question: Question) -> None:
        try:
            async with self._turns:
                effects = await self._read(consumer, question)
        except HoldfastError as error:
            logger.warning("jetstream.read_failed consumer=%s reason=%s", consumer.label, error)
            effects = await self._tried_later(consumer, question)
        except Exception:
            logger.exception("jetstream.read_failed consumer=%s", consumer.label)
            effects = await self._tried_later(consumer, question)
        if not consumer.gone:
            self._resume(consumer, effects)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def answered(self) -> None:
        """Return when the next question of any consumer was answered."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    async def _tried_later(self, consumer: ServedConsumer, question: Question) -> list[Effect]:
        await asyncio.sleep(_TRY_AGAIN_SECONDS)
        consumer.consumer.failed(question)
        return consumer.consumer.tick(self._access.now_ms())

    async def _read(self, consumer: ServedConsumer, question: Question) -> list[Effect]:
        await self._access.until_writable()
        if isinstance(question, Recount):
            return await self._counted(consumer, question)
        if isinstance(question, LoadDue):
            found, count = await self._access.read_seqs(question.seqs)
            return consumer.consumer.loaded_due(question, found, count, self._access.now_ms())
        return self._loaded(consumer, question, await self._page(consumer, question))

    async def _counted(self, consumer: ServedConsumer, question: Recount) -> list[Effect]:
        filters = consumer.config.filters
        count, counted_to = await self._access.count(filters, question.start_seq)
        return consumer.consumer.counted(question, count, counted_to, self._access.now_ms())

    async def _page(self, consumer: ServedConsumer, question: LoadPage) -> ServedPage:
        filters, access = consumer.config.filters, self._access
        start_seq, up_to, limit = question.start_seq, question.lasts_up_to, question.limit
        if up_to:
            return await self._shared(
                ("lasts", filters, start_seq, up_to, limit),
                lambda: access.read_lasts(filters, up_to, start_seq, limit),
            )
        page = await self._shared(
            ("page", filters, start_seq, limit),
            lambda: access.read(filters, start_seq, limit, PAGE_BYTES),
        )
        if page.next_seq is not None or len(page.messages) >= limit:
            return page
        # What the tail told meanwhile is behind the page, if it was not read yet.
        last_seq = page.messages[-1].seq if page.messages else start_seq - 1
        behind = self._cached(consumer, last_seq + 1, limit - len(page.messages))
        if behind is None:
            return page
        return ServedPage([*page.messages, *behind.messages], behind.next_seq)

    async def _shared(
        self, key: tuple[Any, ...], read: Callable[[], Awaitable[ServedPage]]
    ) -> ServedPage:
        """Read a page, or wait for the same read of another consumer."""
        running = self._reads.get(key)
        if running is not None:
            return await asyncio.shield(running)
        future = asyncio.get_running_loop().create_future()
        self._reads[key] = future
        try:
            page = await read()
        except BaseException as error:
            future.set_exception(error)
            # Nobody may be waiting for it.
            future.exception()
            raise
        else:
            future.set_result(page)
            return page
        finally:
            del self._reads[key]

    def _cached(self, consumer: ServedConsumer, start_seq: int, limit: int) -> ServedPage | None:
        filters = consumer.config.filters
        wants = None if consumer.matches_all else lambda subject: _matches(subject, filters)
        return self._cache.page(wants, start_seq, limit, PAGE_BYTES)

    def _loaded(
        self, consumer: ServedConsumer, question: LoadPage, page: ServedPage
    ) -> list[Effect]:
        now = self._access.now_ms()
        return consumer.consumer.loaded(question, page.messages, page.next_seq, now)


def _matches(subject: str, filters: tuple[str, ...]) -> bool:
    return any(is_subset(subject, each) for each in filters)
