"""A load on many streams, which knows what was acknowledged and how long each stream paused.

async with running_load(client, 200) as load:
    ...
await load.check()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.client import Client, HoldfastError, Stream

WRITERS = 6
#: A follower notices the loss of a last broadcast by itself.
FOLLOW_SECONDS = 40.0


class Load:
    """Writers that append to all streams, round and round, one append of a stream at a time."""

    def __init__(self, client: Client, stream_count: int) -> None:
        self.names = [f"load.{number:04d}" for number in range(stream_count)]
        self.streams: dict[str, Stream] = {name: client.stream(name) for name in self.names}
        #: The acknowledged values of each stream, by seq.
        self.acked: dict[str, dict[int, bytes]] = {name: {} for name in self.names}
        self.errors: list[HoldfastError] = []
        self.longest_pause_seconds: dict[str, float] = dict.fromkeys(self.names, 0.0)
        self._stop = asyncio.Event()

    @property
    def ack_count(self) -> int:
        return sum(map(len, self.acked.values()))

    def begin_measuring(self) -> None:
        """Forget the pauses so far."""
        self.longest_pause_seconds = dict.fromkeys(self.names, 0.0)

    def pauses(self) -> str:
        """The longest pause of any stream, and the median of the longest of each."""
        longest = sorted(self.longest_pause_seconds.values())
        median, last = longest[len(longest) // 2] * 1000, longest[-1] * 1000
        return f"longest pause of a store {last:.0f} ms, median of the longest {median:.0f} ms"

    async def more(self, count: int) -> None:
        """Return once each stream has been written `count` times more."""
        wanted = {name: len(self.acked[name]) + count for name in self.names}
        while any(len(self.acked[name]) < wanted[name] for name in self.names):
            assert not self.errors, self.errors
            await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Every acknowledged value is where its ack said, once, and nothing else is there."""
        assert self.errors == []
        for name, stream in self.streams.items():
            stored = {message.seq: message.value async for message in stream.get_all()}
            assert stored == self.acked[name]

    @asynccontextmanager
    async def followed(self, names: list[str]) -> AsyncIterator[None]:
        """Follow streams from their start around the body, each in order and without a gap;
        afterwards return once all that was acknowledged has come."""
        found: dict[str, dict[int, bytes]] = {name: {} for name in names}

        async def follow(name: str) -> None:
            async for change in self.streams[name].subscribe(start_seq=1):
                if change.message is not None:
                    assert change.message.seq == len(found[name]) + 1
                    found[name][change.message.seq] = change.message.value

        async with asyncio.TaskGroup() as followers:
            tasks = [followers.create_task(follow(name)) for name in names]
            yield
            async with asyncio.timeout(FOLLOW_SECONDS):
                while any(len(found[name]) < len(self.acked[name]) for name in names):
                    await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
        assert found == {name: self.acked[name] for name in names}

    async def _write(self, names: list[str]) -> None:
        async def one(name: str, number: int) -> None:
            started_at = time.monotonic()
            value = f"{name} {number}".encode()
            try:
                ack = await self.streams[name].append(value)
            except HoldfastError as error:
                self.errors.append(error)
                return
            assert ack.seq is not None
            assert ack.seq not in self.acked[name], "a seq was given twice"
            self.acked[name][ack.seq] = value
            pause_seconds = time.monotonic() - started_at
            longest_seconds = self.longest_pause_seconds[name]
            self.longest_pause_seconds[name] = max(longest_seconds, pause_seconds)

        number = 0
        while not self._stop.is_set():
            number += 1
            await asyncio.gather(*(one(name, number) for name in names))
            # The test shares its processors with what it tests.
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_load(client: Client, stream_count: int) -> AsyncIterator[Load]:
    """Write to `stream_count` streams around the body, each of which has been written once
    before."""
    load = Load(client, stream_count)
    async with asyncio.TaskGroup() as writers:
        for number in range(WRITERS):
            writers.create_task(load._write(load.names[number::WRITERS]))
        try:
            await load.more(1)
            load.begin_measuring()
            yield load
        finally:
            load._stop.set()
