"""Records the consumers of one stream, many changes at a time.

What changes is recorded some milliseconds later, together with all that changed meanwhile, and
behind the write before it. A busy stream waits longer, so that most of its messages are delivered
and done with between two records, and never recorded as pending. So a crash costs the last
milliseconds of deliveries and plain acks: some are delivered again.
Whoever must be sure waits for a `synced` record: the answer to a double ack, a created consumer.

Messages that nobody needs any more are removed in the same batch that records the last ack, so no
message is lost to a consumer, or delivered to it again, whenever the gateway dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumers.stream_access import CursorWrite, StreamAccess
from holdfast.protocol.errors import DeposedWriterError, HoldfastError
from holdfast.protocol.limits import MAX_DELETE_COUNT

logger = logging.getLogger("holdfast.gateway")

#: How long changes wait for others before they are written.
_GATHER_SECONDS: Final = 0.005
#: The same for a write that follows another; nats-server records a busy consumer every 100 ms.
_BUSY_GATHER_SECONDS: Final = 0.025
_TRY_AGAIN_SECONDS: Final = 1.0
#: One write has at most so many rows, and about so many bytes of configurations, so that it fits
#: into one frame.
_MAX_ROWS: Final = 8192
_MAX_CONFIG_BYTES: Final = 384 * 1024
_PART_ROWS: Final = _MAX_ROWS // 2 - 1
#: How long a gateway that gives the stream up waits for its last write.
_CLOSE_SECONDS: Final = 2.0


_Taken = tuple[ServedConsumer, CursorWrite]


class Recorder:
    """The records of one stream's consumers."""

    def __init__(self, access: StreamAccess, send: Callable[[str], None]) -> None:
        """`send` sends an empty message."""
        self._access = access
        self._send = send
        self._due: dict[str, ServedConsumer] = {}
        self._forgotten: list[str] = []
        self._removed: dict[int, None] = {}
        self._parts: deque[_Taken] = deque()
        # Who waits for the next write: inboxes of double acks, and callers.
        self._inboxes: list[str] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closed = False

    def touch(self, consumer: ServedConsumer) -> None:
        """Record what changed of a consumer, soon."""
        if consumer.record is not None and not consumer.gone:
            self._due[consumer.name] = consumer
            self._wake()

    def remove(self, seqs: Iterable[int]) -> None:
        """Remove messages, with the next record."""
        self._removed.update(dict.fromkeys(seqs))
        self._wake()

    def answer(self, consumer: ServedConsumer, inbox: str) -> None:
        """Answer a double ack once it is recorded durably."""
        if consumer.record is None:
            self._send(inbox)
            return
        self._inboxes.append(inbox)
        self.touch(consumer)
        self._hurry.set()

    async def record(self, consumer: ServedConsumer) -> None:
        """Record a consumer durably. Raises HoldfastError."""
        if consumer.record is not None:
            self.touch(consumer)
            await self._written()

    async def forget(self, consumer: ServedConsumer) -> None:
        """Remove the record of a consumer durably. Raises HoldfastError."""
        if consumer.record is not None:
            self._due.pop(consumer.name, None)
            self._forgotten.append(consumer.name)
            await self._written()

    def forget_soon(self, consumer: ServedConsumer) -> None:
        """Remove what may have been recorded of a consumer, with the next record."""
        if consumer.record is not None:
            self._forgotten.append(consumer.name)
            self._wake()

    async def close(self, *, write: bool) -> None:
        """Stop; with `write`, after a last write."""
        self._closed = True
        self._hurry.set()
        task = self._task
        if task is None:
            return
        if write:
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        task.cancel()
        await asyncio.wait([task])

    # Inside

    def _wake(self) -> None:
        if self._task is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name="holdfast.jetstream.recorder")

    async def _written(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        self._hurry.set()
        self._wake()
        await future

    async def _run(self) -> None:
        """Write until nothing is left to write."""
        gather_seconds = _GATHER_SECONDS
        try:
            while self._due or self._parts or self._forgotten or self._removed or self._waiters:
                if not self._hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(gather_seconds):
                            await self._hurry.wait()
                self._hurry.clear()
                gather_seconds = _BUSY_GATHER_SECONDS
                if not await self._write():
                    if self._closed:
                        return
                    await asyncio.sleep(_TRY_AGAIN_SECONDS)
        finally:
            self._task = None

    async def _write(self) -> bool:
        """Write what is due, or a part of it. Return False if that failed: it is due again."""
        inboxes, self._inboxes = self._inboxes, []
        waiters, self._waiters = self._waiters, []
        forgotten, self._forgotten = self._forgotten, []
        removed = list(self._removed)[:MAX_DELETE_COUNT]
        for seq in removed:
            del self._removed[seq]
        taken = self._take()
        try:
            await self._access.write(
                [write for _, write in taken],
                forgotten=forgotten,
                removed=removed,
                synced=bool(inboxes or waiters or forgotten),
            )
        except Exception as error:
            if isinstance(error, HoldfastError):
                name = self._access.name
                logger.warning("jetstream.record_failed stream=%s reason=%s", name, error)
            else:
                logger.exception("jetstream.record_failed stream=%s", self._access.name)
            self._put_back([*taken, *self._parts])
            self._parts.clear()
            self._removed.update(dict.fromkeys(removed))
            self._inboxes = inboxes + self._inboxes
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
            self._closed = self._closed or isinstance(error, DeposedWriterError)
            return False
        if self._parts:
            # Whoever waits, waits for all parts.
            self._inboxes = inboxes + self._inboxes
            self._waiters = waiters + self._waiters
            self._hurry.set()
            return True
        for inbox in inboxes:
            self._send(inbox)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return True

    def _take(self) -> list[_Taken]:
        """Return changes that fit into one write; the others stay in `_parts`."""
        parts = self._parts
        for consumer in self._due.values():
            if consumer.record is not None and not consumer.gone:
                write = consumer.record.take(consumer.consumer)
                parts.extend((consumer, part) for part in _split(write))
        self._due.clear()
        taken: list[_Taken] = []
        rows = config_bytes = 0
        while parts:
            consumer, part = parts[0]
            rows += 1 + len(part.rows) + len(part.removed)
            config_bytes += len(part.config or b"")
            if taken and (rows > _MAX_ROWS or config_bytes > _MAX_CONFIG_BYTES):
                break
            parts.popleft()
            if not consumer.gone:
                taken.append((consumer, part))
        return taken

    def _put_back(self, parts: Iterable[_Taken]) -> None:
        for consumer, write in parts:
            if consumer.record is not None and not consumer.gone:
                consumer.record.failed(write, consumer.consumer)
                self._due[consumer.name] = consumer


def _split(write: CursorWrite) -> list[CursorWrite]:
    """Return a change in parts of which each fits into a write. The state is in the last one: until
    then, rows say more than it, which a reader can tell."""
    name, config, state, rows, removed = write
    parts = []
    while len(rows) + len(removed) >= _MAX_ROWS:
        parts.append(CursorWrite(name, None, None, rows[:_PART_ROWS], removed[:_PART_ROWS]))
        rows, removed = rows[_PART_ROWS:], removed[_PART_ROWS:]
    return [*parts, CursorWrite(name, config, state, rows, removed)]
