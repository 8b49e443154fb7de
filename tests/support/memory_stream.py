"""A stream in memory, as the consumers of a gateway use it, with NATS in memory around it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from holdfast.client.handles.serving_wire import ServedCursor, ServedMessage, ServedPage
from holdfast.gateway.jetstream.api.limits import NO_LIMITS
from holdfast.gateway.jetstream.api.names import is_subset
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.consumers.stream_access import (
    CursorWrite,
    StreamAccess,
    StreamState,
    TailListener,
)
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.protocol.errors import HoldfastError
from tests.support.consumer_world import page_of_seqs

#: When virtual time begins.
_EPOCH_MS = 1_800_000_000_000


class MemoryStream(StreamAccess):
    """The messages and cursors of one stream. They outlive the consumers that use them: make
    another `ConsumerSet` to see what a gateway would that comes next."""

    def __init__(self, nats: MemoryNats, name: str = "S", **config: Any) -> None:
        self.name = name
        self.nats = nats
        self.client = nats.connect_client("gateway")
        self.leaf = nats.connect_leaf("gateway")
        self.domain = ""
        self.limits = NO_LIMITS
        self.messages: dict[int, ServedMessage] = {}
        self.last_seq = 0
        self.recorded: dict[str, tuple[bytes, bytes, dict[int, bytes]]] = {}
        #: How many writes and reads there were.
        self.write_count = self.read_count = 0
        #: Each write waits until it is set.
        self.writes_pass = asyncio.Event()
        self.writes_pass.set()
        self._writable = asyncio.Event()
        self._writable.set()
        #: The most rows that a write had.
        self.most_rows = 0
        #: Raised by the next reads and writes, or writes alone.
        self.fault: HoldfastError | None = None
        self.write_fault: HoldfastError | None = None
        self._config = ApiStreamConfig.parse({"name": name, "subjects": [f"{name}.>"]} | config)
        self._listener: TailListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def config(self) -> ApiStreamConfig:
        return self._config

    def configure(self, **config: Any) -> None:
        """Change the configuration."""
        self._config = ApiStreamConfig.parse({"name": self.name} | config)
        if self._listener is not None:
            self._listener.configured()

    def publish(self, subject: str, value: bytes = b"x", headers: bytes = b"") -> int:
        """Append a message."""
        self.last_seq += 1
        message = ServedMessage(self.last_seq, subject, self.now_ms(), headers, value)
        self.messages[message.seq] = message
        if self._listener is not None:
            self._listener.appended((message,))
        return message.seq

    def remove(self, *seqs: int) -> None:
        """Remove messages."""
        gone = sorted(seq for seq in seqs if self.messages.pop(seq, None) is not None)
        if self._listener is not None and gone:
            self._listener.removed(gone)

    def trim(self, first_seq: int) -> None:
        """Remove all messages below a seq."""
        self.messages = {seq: each for seq, each in self.messages.items() if seq >= first_seq}
        if self._listener is not None:
            self._listener.trimmed(first_seq)

    async def close(self) -> None:
        """End all that runs."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # What consumers ask

    def state(self) -> StreamState:
        first_seq = next(iter(self.messages), self.last_seq + 1)
        return StreamState(first_seq, self.last_seq, len(self.messages))

    def now_ms(self) -> int:
        return _EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def hold(self) -> None:
        """Let NATS take no more from the leaf for a while."""
        self.leaf._busy = True
        self._writable.clear()

    def let_go(self) -> None:
        """Let NATS take more again."""
        self.leaf._busy = False
        self._writable.set()

    async def until_writable(self) -> None:
        await self._asked()
        await self._writable.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def listen(self, listener: TailListener) -> None:
        self._listener = listener

    async def read(
        self, filters: Sequence[str], start_seq: int, limit: int, max_bytes: int
    ) -> ServedPage:
        await self._asked()
        self.read_count += 1
        return _page([each for each in self._matching(filters) if each.seq >= start_seq], limit)

    async def read_lasts(
        self, filters: Sequence[str], up_to_seq: int, start_seq: int, limit: int
    ) -> ServedPage:
        await self._asked()
        self.read_count += 1
        lasts = {each.subject: each for each in self._matching(filters) if each.seq <= up_to_seq}
        return _page([each for each in sorted(lasts.values()) if each.seq >= start_seq], limit)

    async def read_seqs(self, seqs: Sequence[int]) -> tuple[list[ServedMessage], int]:
        await self._asked()
        self.read_count += 1
        return page_of_seqs(self.messages, seqs)

    async def count(
        self, filters: Sequence[str], start_seq: int, *, lasts: bool = False
    ) -> tuple[int, int]:
        await self._asked()
        found = self._matching(filters)
        if lasts:
            found = list({each.subject: each for each in found}.values())
        return sum(each.seq >= start_seq for each in found), self.last_seq

    async def last_seq_of(self, filters: Sequence[str]) -> int:
        await self._asked()
        return max((each.seq for each in self._matching(filters)), default=0)

    async def seq_at(self, time_ms: int) -> int:
        await self._asked()
        found = (each.seq for each in self._matching(()) if each.time_ms >= time_ms)
        return next(found, self.last_seq + 1)

    async def write(
        self,
        cursors: Sequence[CursorWrite],
        *,
        forgotten: Sequence[str] = (),
        removed: Sequence[int] = (),
        synced: bool = False,
    ) -> None:
        await self.writes_pass.wait()
        await self._asked()
        if self.write_fault is not None:
            raise self.write_fault
        self.write_count += 1
        self.most_rows = max(
            self.most_rows, sum(len(each.rows) + len(each.removed) for each in cursors)
        )
        for name in forgotten:
            self.recorded.pop(name, None)
        for name, config, state, rows, gone in cursors:
            old = self.recorded.get(name, (b"", b"", {}))
            kept = old[2] | dict(rows)
            for seq in gone:
                kept.pop(seq, None)
            self.recorded[name] = (config or old[0], state or old[1], kept)
        known = [seq for seq in removed if seq in self.messages]
        if known:
            asyncio.get_running_loop().call_soon(lambda: self.remove(*known))

    async def cursors(self) -> Sequence[ServedCursor]:
        await self._asked()
        return [
            ServedCursor(name, config, state, list(rows.items()))
            for name, (config, state, rows) in self.recorded.items()
        ]

    # Inside

    async def _asked(self) -> None:
        """An owner answers in another turn of the loop."""
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault

    def _matching(self, filters: Sequence[str]) -> list[ServedMessage]:
        return [
            each
            for each in self.messages.values()
            if not filters or any(is_subset(each.subject, pattern) for pattern in filters)
        ]


def _page(found: list[ServedMessage], limit: int) -> ServedPage:
    return ServedPage(found[:limit], found[limit].seq if len(found) > limit else None)
