"""The works of the comparison: what a side does, and how the result is checked.

A work belongs to one side. `prepare` is called once; then in each round `load`, which is measured,
and `check`, which is not. Every answer is checked: the acknowledged messages are counted in the
store, and the last CHECKED_MESSAGES of a round are read and compared.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from holdfast.bench.compare.side import WORK_BATCH, Kind, Side
from holdfast.bench.harness import Figures, timed
from holdfast.bench.load import Limit, LoadReport, due_at, value_of
from holdfast.bench.read_back import Checker, ReadBackRow

CHECKED_MESSAGES: Final = 5000
#: How many streams are read. All are counted.
CHECKED_STREAMS: Final = 20
#: How many new streams are opened again. The seqs of all acks are compared.
CHECKED_NEW_STREAMS: Final = 100
_FILL_CONCURRENCY: Final = 1000
_DELIVERY_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a round."""

    seconds: float
    streams: int
    #: New streams. Peers make fewer, because they are slow and only rates are compared.
    created: int
    created_by_peers: int
    read_messages: int
    #: The rate of messages for the live follower.
    per_second: float
    #: The keys of a kv.
    keys: int
    #: The most operations at once: of a peer that syncs each one, the last of them wait for all.
    concurrency: int


FULL: Final = Sizes(2.0, 1000, 10_000, 1000, 200_000, 10_000.0, 1000, 1000)
QUICK: Final = Sizes(0.05, 20, 20, 20, 500, 500.0, 50, 20)


class BenchWork(ABC):
    """One work on one side, on stores of its own."""

    kind: Kind

    def __init__(self, side: Side, sizes: Sizes, name: str, concurrency: int = 1) -> None:
        self.side = side
        self.sizes = sizes
        self.concurrency = min(concurrency, sizes.concurrency)
        self.checker = Checker(side.name, name)
        # Two sides may share a server.
        self.store = f"{name}-{side.name}".replace("_", "-")
        #: Each operation of all rounds has its own number, and so its own value.
        self.next_number = 0

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.side.variants(self.kind))

    @abstractmethod
    async def prepare(self) -> None:
        """Make the stores."""

    @abstractmethod
    async def load(self, variant: str) -> Figures:
        """Do the work. Return the measured figures."""

    @abstractmethod
    async def check(self) -> None:
        """Read back what the last load stored. Raises WrongReadBackError."""

    def counted(self, load: LoadReport) -> Figures:
        """Return the figures of a load. The next load continues with the following numbers."""
        self.next_number = load.first_number + load.operations
        return timed(load.operations, load.seconds, load.latencies_seconds)


class Append(BenchWork):
    """Append to one stream, or to many in turns."""

    kind = Kind.APPEND

    def __init__(
        self, side: Side, sizes: Sizes, name: str, concurrency: int = 1, stream_count: int = 1
    ) -> None:
        super().__init__(side, sizes, name, concurrency)
        self.streams = [f"{self.store}.{number}" for number in range(stream_count)]
        self.held = [0] * stream_count
        self._last = LoadReport()

    async def prepare(self) -> None:
        await self.side.open_streams(self.streams)

    async def load(self, variant: str) -> Figures:
        limit = Limit(seconds=self.sizes.seconds)
        return await self.append(limit, self.concurrency, variant)

    async def append(self, limit: Limit, concurrency: int, variant: str) -> Figures:
        self._last = await self.side.append(
            self.streams, concurrency, limit, self.next_number, variant
        )
        return self.counted(self._last)

    async def check(self) -> None:
        await self.check_load(self._last)

    @property
    def last_load(self) -> LoadReport:
        """What `load` has done last."""
        return self._last

    async def check_load(self, load: LoadReport) -> None:
        """Count all streams and read the newest messages of some."""
        acked: list[dict[int, bytes]] = [{} for _ in self.streams]
        for number, seq in load.answers:
            acked[number % len(self.streams)][seq] = value_of(number)
        self.checker.count("what was acknowledged", load.operations, sum(map(len, acked)))
        found = await self.side.counts(self.streams)
        for index, name in enumerate(self.streams):
            self.held[index] += len(acked[index])
            self.checker.count(name, self.held[index], found[index])
        for name, expected in list(zip(self.streams, acked, strict=True))[:CHECKED_STREAMS]:
            newest = dict(sorted(expected.items())[-CHECKED_MESSAGES:])
            if newest:
                rows = await self.side.read(name, min(newest), len(newest), "")
                self.checker.messages(newest, rows)


class Create(BenchWork):
    """Append a first message to streams that do not exist."""

    kind = Kind.CREATE

    def __init__(
        self, side: Side, sizes: Sizes, name: str, concurrency: int, stream_count: int
    ) -> None:
        super().__init__(side, sizes, name, concurrency)
        self._stream_count = stream_count
        self._streams: list[str] = []
        self._last = LoadReport()

    async def prepare(self) -> None:
        """Do nothing: the streams must not exist."""

    async def load(self, variant: str) -> Figures:
        first = self.next_number
        self._streams = [f"{self.store}.{first + one}" for one in range(self._stream_count)]
        self._last = await self.side.create(self._streams, self.concurrency, first)
        return self.counted(self._last)

    async def check(self) -> None:
        self.checker.count("what was acknowledged", len(self._streams), self._last.operations)
        for number, seq in self._last.answers:
            self.checker.count(f"the new stream of message {number}", 1, seq)
        # Only a sample, because opening a store to check it is far more work than making it.
        step = max(1, len(self._streams) // CHECKED_NEW_STREAMS)
        checked = range(0, len(self._streams), step)
        found = await self.side.counts([self._streams[index] for index in checked])
        for index, count in zip(checked, found, strict=True):
            self.checker.count(self._streams[index], 1, count)
            rows = await self.side.read(self._streams[index], 1, 1, "")
            self.checker.messages({1: value_of(self._last.first_number + index)}, rows)
        await self.side.drop_streams(self._streams)


class Read(Append):
    """Read a stream from its first message to its last. All of it is compared."""

    kind = Kind.READ

    async def prepare(self) -> None:
        await super().prepare()
        limit = Limit(operations=self.sizes.read_messages)
        await self.append(limit, _FILL_CONCURRENCY, self.side.variants(Kind.APPEND)[-1])
        await super().check()
        self._stored = {seq: value_of(number) for number, seq in self._last.answers}
        self._rows: list[ReadBackRow] = []

    async def load(self, variant: str) -> Figures:
        count = self.sizes.read_messages
        began_at = time.perf_counter()
        self._rows = await self.side.read(self.streams[0], 1, count, variant)
        return timed(len(self._rows), time.perf_counter() - began_at)

    async def check(self) -> None:
        self.checker.messages(self._stored, self._rows)


class WorkOff(Read):
    """Process a stream from its first message on, with several workers on one consumer, each of
    which takes and acknowledges a batch at a time. Latencies are those of batches. All messages
    taken are compared: each must come once, and none may be left out."""

    kind = Kind.WORK

    async def prepare(self) -> None:
        await super().prepare()
        self._turn = 0

    async def load(self, variant: str) -> Figures:
        self._turn += 1
        limit = Limit(self.sizes.seconds, self.sizes.read_messages // WORK_BATCH)
        load = await self.side.work(
            self.streams[0], f"turn-{self._turn}", self.concurrency, limit, variant
        )
        self._rows = sorted(row for _, rows in load.answers for row in rows)
        return timed(len(self._rows), load.seconds, load.latencies_seconds)

    async def check(self) -> None:
        taken = range(1, len(self._rows) + 1)
        self.checker.messages({seq: self._stored[seq] for seq in taken}, self._rows)


class Follow(Append):
    """Append at a fixed rate, and follow live over the same connection. Latencies count from when a
    message was due to its delivery. All delivered messages are compared."""

    kind = Kind.FOLLOW

    async def load(self, variant: str) -> Figures:
        per_second = self.sizes.per_second
        limit = Limit(seconds=self.sizes.seconds)
        clock = time.perf_counter
        self._rows: list[ReadBackRow] = []
        delivered_at: list[float] = []
        news = asyncio.Event()

        def delivered(row: ReadBackRow) -> None:
            delivered_at.append(clock())
            self._rows.append(row)
            news.set()

        [name] = self.streams
        async with self.side.followed(name, delivered):
            self._last = load = await self.side.append_paced(
                name, per_second, limit, self.next_number
            )
            async with asyncio.timeout(_DELIVERY_SECONDS):
                while len(self._rows) < load.operations:
                    news.clear()
                    await news.wait()
        self.counted(load)
        numbers = {seq: number for number, seq in load.answers}
        latencies = [
            at - due_at(load, numbers[row.seq], per_second)
            for row, at in zip(self._rows, delivered_at, strict=True)
            if row.seq in numbers
        ]
        return timed(len(self._rows), delivered_at[-1] - load.began_at, latencies)

    async def check(self) -> None:
        await super().check()
        stored = {seq: value_of(number) for number, seq in self._last.answers}
        self.checker.messages(stored, self._rows)


class KvSet(BenchWork):
    """Set the keys of one kv in turns. The whole kv is compared."""

    kind = Kind.SET

    def __init__(self, side: Side, sizes: Sizes, name: str, concurrency: int = 1) -> None:
        super().__init__(side, sizes, name, concurrency)
        self.keys = [f"key-{number}" for number in range(sizes.keys)]
        self.values: dict[str, bytes] = {}
        self._last = LoadReport()

    async def prepare(self) -> None:
        await self.side.open_kv(self.store)

    async def load(self, variant: str) -> Figures:
        return await self.set(Limit(seconds=self.sizes.seconds), self.concurrency, variant)

    async def set(self, limit: Limit, concurrency: int, variant: str) -> Figures:
        self._last = await self.side.set(
            self.store, self.keys, concurrency, limit, self.next_number, variant
        )
        return self.counted(self._last)

    async def check(self) -> None:
        # If two sets of a key were pending at the same time, the one with the higher revision
        # counts.
        self.checker.unique([revision for _, revision in self._last.answers])
        for number, _ in sorted(self._last.answers, key=lambda answer: answer[1]):
            self.values[self.keys[number % len(self.keys)]] = value_of(number)
        found = await self.side.entries(self.store, list(self.values))
        self.checker.entries(self.values, found)


class KvGet(KvSet):
    """Get the keys of one kv in turns. Every value is compared."""

    kind = Kind.GET

    async def prepare(self) -> None:
        await super().prepare()
        await self.set(
            Limit(operations=len(self.keys)), _FILL_CONCURRENCY, self.side.variants(Kind.SET)[0]
        )
        await super().check()

    async def load(self, variant: str) -> Figures:
        limit = Limit(seconds=self.sizes.seconds)
        self._got = await self.side.get(self.store, self.keys, self.concurrency, limit, variant)
        return timed(self._got.operations, self._got.seconds, self._got.latencies_seconds)

    async def check(self) -> None:
        for number, value in self._got.answers:
            key = self.keys[number % len(self.keys)]
            if value != self.values[key]:
                self.checker.entries(self.values, {**self.values, key: value})
