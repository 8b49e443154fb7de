"""Blocks of snapshots for the servers of a zone: asked for over the bus, fetched once, kept.

Only a server with the role `cache` has this. What it answers is no promise: whoever asks checks the
snapshot that is made of it, so neither the gate nor the fence is asked. Invariants:

- One request to the bucket brings what several servers want at the same time.
- What waits for the bucket is bounded. Beyond the bound, and if the bucket does not answer, the
  answer is a refusal, and the asker reads the bucket itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from holdfast.persist.block_cache.block_memory import BlockMemory
from holdfast.persist.block_cache.blocks import Ask
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage, BusSubscription
from holdfast.protocol.errors import BusyError, HoldfastError, MalformedFrameError
from holdfast.protocol.limits import CACHE_BLOCK_BYTES, CACHE_PIECE_BYTES, FRAME_RESERVE_BYTES
from holdfast.protocol.monitoring import metrics
from holdfast.shared_fs.bucket.bucket import Bucket

logger = logging.getLogger("holdfast.persist")

#: How many asks may wait for the bucket.
_MAX_WAITING: Final = 1024
_SWEEP_SECONDS: Final = 10.0


class BlockServer:
    """The blocks of one incarnation. `run` it in a task."""

    def __init__(
        self, bucket: Bucket, life: Incarnation, run_in_thread: RunInThread, limit_bytes: int
    ) -> None:
        self._bucket = bucket
        self._bus = life.bus
        self._subject = life.subjects.blocks(life.server)
        self._run_in_thread = run_in_thread
        self._memory = BlockMemory(limit_bytes)
        self._tasks = SpawnedTasks()
        self._subscription: BusSubscription | None = None
        self._waiting_count = 0
        #: What is being fetched, by its key and first block, with the block after the last.
        self._fetches: dict[tuple[str, int], tuple[int, asyncio.Future[bytes]]] = {}
        self._asked = life.statistics.counters(metrics.CACHE_ASKED)
        life.statistics.read(metrics.CACHE_BYTES, lambda: self._memory.size_bytes)

    async def run(self) -> None:
        """Answer until cancelled."""
        self._subscription = await self._bus.subscribe(self._subject, self._on_message)
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                self._memory.expire(loop.time())
        finally:
            self._tasks.cancel()
            await self._subscription.unsubscribe()

    async def part(self, ask: Ask) -> bytes:
        """Return what is asked for, shorter if the object ends before. Raises BusyError,
        BucketError."""
        loop = asyncio.get_running_loop()
        found = self._memory.find(ask.key, ask.block, loop.time())
        if found is not None:
            self._asked.add("hit")
            return _cut(ask, ask.block, found)
        if self._waiting_count >= _MAX_WAITING:
            self._asked.add("refused")
            raise BusyError(what="the cache of blocks")
        self._waiting_count += 1
        try:
            first, body = await self._fetched(ask)
        except HoldfastError:
            self._asked.add("refused")
            raise
        finally:
            self._waiting_count -= 1
        return _cut(ask, first, body)

    def drop(self, key: str) -> None:
        """Forget an object of which wrong bytes were answered."""
        self._memory.drop(key)

    async def _fetched(self, ask: Ask) -> tuple[int, bytes]:
        """Return the number of a block, and what the bucket has from there on."""
        for (key, first), (end, running) in self._fetches.items():
            if key == ask.key and first <= ask.block < end:
                self._asked.add("joined")
                return first, await asyncio.shield(running)
        self._asked.add("miss")
        first = ask.block
        end = (ask.start + ask.ahead - 1) // CACHE_BLOCK_BYTES + 1
        start, length = first * CACHE_BLOCK_BYTES, (end - first) * CACHE_BLOCK_BYTES
        assert length <= CACHE_PIECE_BYTES

        def fetch() -> bytes:
            return self._bucket.get_range(ask.key, start, length).body

        loop = asyncio.get_running_loop()
        running = loop.create_future()
        running.add_done_callback(_heard)
        self._fetches[ask.key, first] = end, running
        try:
            body = await self._run_in_thread(fetch)
        except BaseException as error:
            running.set_exception(
                error if isinstance(error, HoldfastError) else BusyError(what="the cache of blocks")
            )
            raise
        else:
            running.set_result(body)
        finally:
            del self._fetches[ask.key, first]
        self._memory.keep(ask.key, first, body, loop.time())
        return first, body

    def _on_message(self, message: BusMessage) -> None:
        if len(self._tasks) < 2 * _MAX_WAITING:
            self._tasks.spawn(self._answer(message))

    async def _answer(self, message: BusMessage) -> None:
        try:
            payload = frames.encode_control(part=await self._part(message.payload))
        except HoldfastError as error:
            payload = frames.encode_control_error(error)
        if not message.reply:
            return
        try:
            await self._bus.publish(message.reply, payload)
        except HoldfastError as error:
            # The asker waits for a second, then reads the bucket.
            logger.debug("cache.not_answered reason=%s", error)

    async def _part(self, payload: bytes) -> bytes:
        if self._bus.max_payload_bytes < CACHE_BLOCK_BYTES + FRAME_RESERVE_BYTES:
            raise BusyError(what="the cache of blocks: a block is above NATS's max_payload")
        fields: Any = frames.decode_control(payload)
        if "drop" in fields:
            if type(fields["drop"]) is not str:
                raise MalformedFrameError(reason="drop: a key")
            self.drop(fields["drop"])
            return b""
        return await self.part(Ask.from_wire(fields))


def _cut(ask: Ask, first: int, body: bytes) -> bytes:
    start = ask.start - first * CACHE_BLOCK_BYTES
    return body[start : start + ask.length]


def _heard(future: asyncio.Future[bytes]) -> None:
    """Take the exception, which nobody else may be waiting for."""
    if not future.cancelled():
        future.exception()
