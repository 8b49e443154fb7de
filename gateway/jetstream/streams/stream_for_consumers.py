"""A served stream as its consumers use it: reads, cursors, and the tail, followed for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import (
    Lost,
    ServedChange,
    ServedCursor,
    ServedMessage,
    ServedPage,
)
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.consumers.stream_access import (
    CursorWrite,
    StreamAccess,
    StreamState,
    TailListener,
)
from holdfast.gateway.jetstream.origins.position import is_of_source
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.streams.delivery_fence import DeliveryFence
from holdfast.gateway.jetstream.streams.tail import Tail
from holdfast.protocol.errors import DeposedWriterError, HoldfastError
from holdfast.protocol.messages import Durability

logger = logging.getLogger("holdfast.gateway")

#: A tail that fails, as when its store is damaged, is read again after so long.
_TRY_AGAIN_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 1.0


class StreamForConsumers(StreamAccess):
    """The access of one stream's consumers to it. `begin` before use."""

    def __init__(
        self,
        store: ServingStream,
        config: ApiStreamConfig,
        context: GatewayContext,
        on_deposed: Callable[[], None],
    ) -> None:
        self.name = config.name
        self.client = context.client
        self.fence = DeliveryFence(
            context.leaf, config.name, context.presence, self._is_served, on_deposed, context.spawn
        )
        self.leaf = self.fence
        self.domain = context.domain
        self.limits = context.limits
        self._config = config
        self._store = store
        self._context = context
        self._deposed = on_deposed
        self._tail: Tail
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin to follow the stream. Raises HoldfastError."""
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(
            self._follow(started), name="holdfast.jetstream.tail"
        )
        await started

    async def close(self) -> None:
        """Follow it no more. What waits to be delivered leaves first, if that does not take long.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self.fence.settled()
        self.fence.depose()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def acknowledged(self, message: ServedMessage) -> None:
        """An append of this gateway was stored."""
        self._tail.acknowledged(message)

    def configure(self, config: ApiStreamConfig) -> None:
        """The configuration is another one."""
        self._config = config
        if self._tail.listener is not None:
            self._tail.listener.configured()

    async def _follow(self, started: asyncio.Future[None]) -> None:
        while True:
            try:
                head = await self._store.head()
                if started.done():
                    self._tail.restart(head)
                else:
                    self._tail = Tail(head)
                async with self._store.follow(head.revision) as pages:
                    if not started.done():
                        started.set_result(None)
                    async for changes in pages:
                        await self._take(changes)
            except HoldfastError as error:
                if not started.done():
                    started.set_exception(error)
                    return
                logger.warning("jetstream.tail_failed stream=%s reason=%s", self.name, error)
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _take(self, changes: Sequence[ServedChange]) -> None:
        lost = [index for index, change in enumerate(changes) if isinstance(change, Lost)]
        if lost:
            self._tail.restart(await self._store.head())
            changes = changes[lost[-1] + 1 :]
        self._tail.told(changes)
        if self._tail.inexact:
            before = self._tail.state
            head = await self._store.head()
            if self._tail.state == before:
                self._tail.head(head)

    async def _is_served(self) -> bool:
        config = await self._store.config()
        return config.serving_epoch == self._store.serving_epoch

    # What consumers ask

    @property
    def config(self) -> ApiStreamConfig:
        return self._config

    async def until_writable(self) -> None:
        while True:
            await self._context.deliveries.until_writable()
            if self.fence.writable:
                return
            await self.fence.settled()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._context.spawn(work)

    def state(self) -> StreamState:
        return self._tail.state

    def now_ms(self) -> int:
        return self._context.now_ms()

    def listen(self, listener: TailListener) -> None:
        self._tail.listener = listener

    async def read(
        self, filters: Sequence[str], start_seq: int, limit: int, max_bytes: int
    ) -> ServedPage:
        return await self._store.by_subject(
            filters, start_seq=start_seq, limit=limit, max_bytes=max_bytes
        )

    async def read_lasts(
        self, filters: Sequence[str], up_to_seq: int, start_seq: int, limit: int
    ) -> ServedPage:
        page = await self._store.lasts(
            filters, up_to_seq=up_to_seq, after_seq=start_seq - 1, limit=limit
        )
        return ServedPage(page.messages, None if page.next_seq is None else page.next_seq + 1)

    async def read_seqs(self, seqs: Sequence[int]) -> tuple[list[ServedMessage], int]:
        return await self._store.get_many(seqs)

    async def count(
        self, filters: Sequence[str], start_seq: int, *, lasts: bool = False
    ) -> tuple[int, int]:
        return await self._store.count(filters, start_seq, lasts=lasts)

    async def last_seq_of(self, filters: Sequence[str]) -> int:
        if not filters:
            return (await self._store.head()).last_seq
        return max([await self._store.last_seq(each) for each in filters])

    async def seq_at(self, time_ms: int) -> int:
        page = await self._store.by_subject(start_time_ms=time_ms, limit=1)
        if page.messages:
            return page.messages[0].seq
        return (await self._store.head()).last_seq + 1

    async def write(
        self,
        cursors: Sequence[CursorWrite],
        *,
        forgotten: Sequence[str] = (),
        removed: Sequence[int] = (),
        synced: bool = False,
    ) -> None:
        packer = self._store.packer
        operations: list[list[Any]] = [packer.delete_cursor_operation(name) for name in forgotten]
        operations += [
            packer.cursor_operation(
                each.name,
                config=each.config,
                state=each.state,
                rows=each.rows,
                removed=each.removed,
            )
            for each in cursors
        ]
        if removed:
            operations.append(packer.delete_operation(removed))
        if not operations:
            return
        # What the owner could lose would never be removed again: the record says that it is done.
        level = Durability.SYNCED if synced or removed else Durability.APPLIED
        try:
            await self._store.batch(operations, durability=int(level))
        except DeposedWriterError:
            self._deposed()
            raise

    async def cursors(self) -> Sequence[ServedCursor]:
        return [each for each in await self._store.cursors() if not is_of_source(each.name)]
