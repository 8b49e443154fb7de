"""The streams that this gateway serves: begun a few at a time, tried again if that fails, ended.

What is wanted and what is so may differ for a while: `want` and `unwant` say what is wanted, and
one worker at a time brings a stream there. An idle stream has no worker.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.catalogue.catalogue import StreamEntry
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.streams.served_stream import ServedStream
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

#: How many streams are begun at a time: each takes its owner a few operations.
_AT_A_TIME: Final = 64
#: How long a request waits for a stream that is being begun.
WAIT_SECONDS: Final = 2.0
#: How often streams that have lost their consumers are looked for.
_REST_SECONDS: Final = 20.0
#: Until a stream that could not be begun, or was lost to another gateway, is tried again.
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


class _Slot:
    """One stream that is wanted, or still runs."""

    __slots__ = ("entry", "failures", "queued", "served", "waiting")

    def __init__(self) -> None:
        #: What is wanted; None: that it ends.
        self.entry: StreamEntry | None = None
        #: What runs.
        self.served: ServedStream | None = None
        #: Whether a worker has it, or will.
        self.queued = False
        self.failures = 0
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def served_now(self) -> ServedStream | None:
        """What runs by the entry that is wanted."""
        served = self.served
        if served is None or self.entry is None or served.ended or served.entry != self.entry:
            return None
        return served


class ServedStreams:
    """All streams that one gateway serves. `run` it in a task."""

    def __init__(self, context: GatewayContext, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is told of streams that another gateway has begun to serve."""
        self._context = context
        self._on_lost = on_lost
        self._slots: dict[str, _Slot] = {}
        #: Who waits for a stream that is not wanted yet.
        self._expecting: dict[str, list[asyncio.Future[None]]] = {}
        #: How many streams are being begun or ended, and who waits until none is.
        self._busy_count = 0
        self._settling: list[asyncio.Future[None]] = []
        self._queue: deque[str] = deque()
        self._news = asyncio.Semaphore(0)

    def __len__(self) -> int:
        return sum(slot.served is not None for slot in self._slots.values())

    def __iter__(self) -> Iterator[ServedStream]:
        return (slot.served for slot in list(self._slots.values()) if slot.served is not None)

    def get(self, name: str) -> ServedStream | None:
        """Return a stream that is served now."""
        slot = self._slots.get(name)
        return None if slot is None else slot.served

    def want(self, entry: StreamEntry) -> None:
        """Serve a stream, by this entry from now on."""
        slot = self._slots.get(entry.name)
        if slot is None:
            slot = self._slots[entry.name] = _Slot()
        if slot.entry != entry:
            slot.entry = entry
            self._enqueue(entry.name, slot)
            _wake(self._expecting.pop(entry.name, []))

    def unwant(self, name: str) -> None:
        """Serve a stream no longer."""
        slot = self._slots.get(name)
        if slot is not None and slot.entry is not None:
            slot.entry = None
            self._enqueue(name, slot)

    async def serving(self, name: str) -> ServedStream:
        """Return a stream once it is served by the entry that is wanted now. Raises ApiError if
        that takes too long."""
        slot = self._slots.get(name)
        if slot is not None and (served := slot.served_now) is not None:
            return served
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    slot = self._slots.get(name)
                    if slot is None or slot.entry is None:
                        # It was created a moment ago, or its shard is on its way here.
                        await _wait(self._expecting.setdefault(name, []))
                        continue
                    if (served := slot.served_now) is not None:
                        return served
                    await _wait(slot.waiting)
        except TimeoutError:
            raise errors.temporarily_unavailable() from None

    async def gone(self, name: str) -> None:
        """Return once a stream that is not wanted has ended. Raises ApiError if that takes too
        long."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while (slot := self._slots.get(name)) is not None and slot.entry is None:
                    await _wait(slot.waiting)
        except TimeoutError:
            raise errors.temporarily_unavailable() from None

    async def settled(self) -> None:
        """Return once no stream is being begun or ended."""
        while self._busy_count:
            await _wait(self._settling)

    async def emptied(self) -> None:
        """Return once no stream is served or wanted."""
        while self._slots:
            await _wait(next(iter(self._slots.values())).waiting)

    async def run(self) -> None:
        """Begin and end streams until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_A_TIME):
                tasks.create_task(self._work())
            tasks.create_task(self._let_rest())

    async def _let_rest(self) -> None:
        """Now and then, stop following streams that have lost their consumers."""
        while True:
            await asyncio.sleep(_REST_SECONDS)
            for served in list(self._context.followed):
                try:
                    await served.rest()
                except Exception:
                    logger.exception("jetstream.stream_failed stream=%s", served.name)

    async def close(self, *, drain: bool) -> None:
        """End all streams."""
        for slot in list(self._slots.values()):
            slot.entry = None
        streams = [slot.served for slot in self._slots.values() if slot.served is not None]
        self._slots.clear()
        for start in range(0, len(streams), _AT_A_TIME):
            part = streams[start : start + _AT_A_TIME]
            await asyncio.gather(*(stream.end(drain=drain) for stream in part))

    def _enqueue(self, name: str, slot: _Slot) -> None:
        if not slot.queued:
            slot.queued = True
            self._busy_count += 1
            self._queue.append(name)
            self._news.release()

    async def _work(self) -> None:
        while True:
            await self._news.acquire()
            name = self._queue.popleft()
            slot = self._slots.get(name)
            if slot is not None:
                await self._bring(name, slot)
            self._busy_count -= 1
            if not self._busy_count:
                waiting, self._settling = self._settling, []
                _wake(waiting)

    async def _bring(self, name: str, slot: _Slot) -> None:
        """Bring one stream to what is wanted of it."""
        wanted = slot.entry
        try:
            await self._step(slot, wanted)
            slot.failures = 0
        except Exception as error:
            slot.failures += 1
            if not isinstance(error, HoldfastError):
                logger.exception("jetstream.stream_failed stream=%s", name)
            else:
                logger.warning("jetstream.stream_failed stream=%s reason=%s", name, error)
            if slot.served is not None:
                await self._end(slot, drain=False)
            self._again(name, slot)
            return
        slot.queued = False
        # It may have been lost while it was begun, and be wanted again.
        if slot.entry != wanted or (slot.served is not None and slot.served.ended):
            self._enqueue(name, slot)
        elif wanted is None and self._slots.get(name) is slot:
            del self._slots[name]
        self._tell(slot)

    async def _step(self, slot: _Slot, wanted: StreamEntry | None) -> None:
        served = slot.served
        if served is not None and (wanted is None or served.ended):
            await self._end(slot, drain=not served.ended)
            served = None
        if wanted is None:
            return
        if served is None:
            served = ServedStream(self._context, wanted, self._deposed)
            try:
                await served.begin()
            except BaseException:
                await served.end(drain=False)
                raise
            slot.served = served
            logger.debug("jetstream.stream_served stream=%s", wanted.name)
        elif served.entry != wanted:
            await served.update(wanted)

    async def _end(self, slot: _Slot, *, drain: bool) -> None:
        served, slot.served = slot.served, None
        if served is not None:
            await served.end(drain=drain)

    def _deposed(self, served: ServedStream) -> None:
        logger.info("jetstream.stream_lost stream=%s", served.name)
        self._on_lost(served.name)

    def _again(self, name: str, slot: _Slot) -> None:
        """Let a worker have it again after a pause."""
        seconds = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(slot.failures, 10))
        asyncio.get_running_loop().call_later(
            seconds * random.uniform(0.5, 1.0), self._enqueue_again, name, slot
        )

    def _enqueue_again(self, name: str, slot: _Slot) -> None:
        slot.queued = False
        if self._slots.get(name) is slot:
            self._enqueue(name, slot)

    @staticmethod
    def _tell(slot: _Slot) -> None:
        waiting, slot.waiting = slot.waiting, []
        _wake(waiting)


async def _wait(waiting: list[asyncio.Future[None]]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(future)
    await future


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
