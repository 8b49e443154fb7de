"""Removals: what quiet users feel while very many messages of a neighbour are removed at once.

The quiet users are those of `fairness.py`. Beside them a stream of `removed` messages is emptied by
`delete_all`, or by a maximum age that all of its messages exceed, as soon as the load has begun; it
is then read, so that its file is brought up to date within the load. JetStream does the same beside
quiet publishers, with its default syncs: a purge and a maximum age, and a stream that is written as
fast as possible. Each side is compared with the same server's quiet users alone.

A round fills the stream anew, which is not timed. With 3,000,000 messages that takes a minute.
After that the quiet users append for a second, which is not timed either: their stores were closed,
or their files rested, because nobody used them meanwhile, and opening a hundred at once is not what
is measured here.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, Protocol

import nats
import uvloop
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from holdfast.bench.harness import Figures, Goal, Measurement, Report, Work, turns
from holdfast.bench.load import Limit, value_of, windowed
from holdfast.bench.machine import machine_facts
from holdfast.bench.noise import JETSTREAM_WRITER, NOISY_STREAM
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchProcess, JetStreamSync, running_cluster, running_nats
from holdfast.bench.read_back import WrongReadBackError
from holdfast.bench.store.fairness import (
    FairnessSettings,
    QuietStreams,
    append_quietly,
    verify,
)
from holdfast.client import Client, Stream, connect

WORK_NAMES: Final = ("removals",)
_TIMEOUT_SECONDS: Final = 300.0
_ALONE: Final = "alone"
_DELETE_ALL: Final = "delete_all"
_AGE: Final = "age"
_JETSTREAM: Final = "jetstream "
_BATCH: Final = 1000
_FILLED_BATCH: Final = 4000
_FILLED_AT_ONCE: Final = 6
_MAX_AGE_SECONDS: Final = 1.0
_WARM_SECONDS: Final = 1.0
#: How long the noise takes until it is at full speed.
_NOISE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
_QUIET: Final = "quiet"


class _Side(Protocol):
    """A server with quiet users and a neighbour."""

    async def fill(self, count: int) -> None: ...
    def removal(self, kind: str) -> Callable[[], Awaitable[None]]: ...
    async def append(self, number: int) -> int | None: ...


def run(options: BenchOptions, settings: FairnessSettings, removed: int) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    with tempfile.TemporaryDirectory(prefix="holdfast-removals-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        work = uvloop.run(_measure(options, settings, removed, Path(folder)))
    facts = options.to_json() | asdict(settings) | {"removed": removed}
    return Report("removals", machine, facts, (work,))


async def _measure(
    options: BenchOptions, settings: FairnessSettings, removed: int, folder: Path
) -> Work:
    kinds = (_ALONE, _DELETE_ALL, _AGE)
    with (
        running_cluster(options, folder / "holdfast") as cluster,
        running_nats(options, folder / "jetstream", JetStreamSync.DEFAULT) as peer,
    ):
        async with (
            connect(cluster.url, tenant="bench", timeout_seconds=_TIMEOUT_SECONDS) as client,
            _jetstream(peer.url, settings) as jetstream,
        ):
            ours = _Holdfast(client, settings)
            sides: dict[str, tuple[_Side, str]] = {kind: (ours, kind) for kind in kinds}
            for kind in (*kinds, JETSTREAM_WRITER):
                sides[_JETSTREAM + kind.removeprefix(_JETSTREAM)] = jetstream, kind
            rounds: dict[str, list[Figures]] = {side: [] for side in sides}
            written: dict[int, int] = {id(ours): 0, id(jetstream): 0}
            for number, name in turns(tuple(sides), options.rounds):
                side, kind = sides[name]
                options.say(f"removals: {name}, {f'round {number}' if number else 'warm-up'}")
                if kind in (_DELETE_ALL, _AGE):
                    await side.fill(removed if number else _BATCH)
                quiet = replace(settings, seconds=min(_WARM_SECONDS, settings.seconds))
                figures = await append_quietly(side.append, quiet, written[id(side)])
                written[id(side)] += int(figures["operations"])
                writer = _writer(options, folder, peer.url) if kind == JETSTREAM_WRITER else None
                async with writer or contextlib.nullcontext(), asyncio.TaskGroup() as beside:
                    beside.create_task(_started(side.removal(kind)))
                    figures = await append_quietly(side.append, settings, written[id(side)])
                written[id(side)] += int(figures["operations"])
                cluster.check()
                if number:
                    rounds[name].append(figures)
            await verify(ours.streams, written[id(ours)])
            await jetstream.verify(written[id(jetstream)])
    measured = {name: Measurement(tuple(each)) for name, each in rounds.items()}
    return Work("removals", "quiet users' appends", measured, _goals())


def _goals() -> tuple[Goal, ...]:
    return tuple(
        Goal(kind, "p99_ms", 2.0, at_least=False, than=_ALONE) for kind in (_DELETE_ALL, _AGE)
    )


async def _started(removal: Callable[[], Awaitable[None]]) -> None:
    await removal()


@contextlib.asynccontextmanager
async def _writer(options: BenchOptions, folder: Path, url: str) -> AsyncIterator[None]:
    command = [sys.executable, "-P", "-m", "holdfast.bench.noise", url, "-", JETSTREAM_WRITER]
    process = BenchProcess(JETSTREAM_WRITER, options.tethered(command), folder / "writer.log")
    try:
        await asyncio.sleep(_NOISE_SECONDS)
        process.check()
        yield
        process.check()
    finally:
        process.kill()


class _Holdfast:
    """Quiet users of holdfast, and the stream that is emptied."""

    def __init__(self, client: Client, settings: FairnessSettings) -> None:
        self.streams = QuietStreams(client, settings.users)
        self._client = client
        self._emptied = 0

    async def append(self, number: int) -> int | None:
        return await self.streams.append(number)

    async def fill(self, count: int) -> None:
        self._emptied += 1
        stream, slots = self._stream, asyncio.Semaphore(_FILLED_AT_ONCE)

        async def append(start: int) -> None:
            batch = range(start, min(count, start + _FILLED_BATCH))
            try:
                await stream.append_many([value_of(number) for number in batch])
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for start in range(0, count, _FILLED_BATCH):
                await slots.acquire()
                tasks.create_task(append(start))

    def removal(self, kind: str) -> Callable[[], Awaitable[None]]:
        async def remove() -> None:
            if kind == _ALONE:
                return
            stream = self._stream
            if kind == _DELETE_ALL:
                await stream.delete_all()
            else:
                await stream.configure(max_age_seconds=_MAX_AGE_SECONDS)
            # A read has the file brought up to date, and waits for that. Only just written
            # messages still have to reach their age.
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                while (await stream.head()).count:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)

        return remove

    @property
    def _stream(self) -> Stream:
        return self._client.stream(f"emptied.{self._emptied}")


class _JetStream:
    """The same of JetStream. Made by `_jetstream`."""

    def __init__(self, context: JetStreamContext, settings: FairnessSettings) -> None:
        self._context = context
        self._users = settings.users

    async def append(self, number: int) -> int | None:
        name = f"{_QUIET}.{number % self._users}"
        return (await self._context.publish(name, value_of(number))).seq

    async def fill(self, count: int) -> None:
        await self._context.update_stream(StreamConfig(name=NOISY_STREAM, max_age=0))

        async def start(number: int) -> Awaitable[object]:
            return await self._context.publish_async(NOISY_STREAM, value_of(number))

        await windowed(start, _BATCH, Limit(operations=count), take=lambda *_: None)  # type: ignore[arg-type]

    def removal(self, kind: str) -> Callable[[], Awaitable[None]]:
        async def remove() -> None:
            if kind == _DELETE_ALL:
                await self._context.purge_stream(NOISY_STREAM)
            elif kind == _AGE:
                config = StreamConfig(name=NOISY_STREAM, max_age=_MAX_AGE_SECONDS)
                await self._context.update_stream(config)

        return remove

    async def verify(self, written: int) -> None:
        """Check that every publish of a quiet user was stored."""
        infos = [await self._context.stream_info(f"{_QUIET}{user}") for user in range(self._users)]
        found = sum(info.state.messages for info in infos)
        if found != written:
            reason = f"{found} messages for the {written} written"
            raise WrongReadBackError(side="jetstream", work="removals", reason=reason)


@contextlib.asynccontextmanager
async def _jetstream(url: str, settings: FairnessSettings) -> AsyncIterator[_JetStream]:
    client = await nats.connect(url)
    try:
        context = client.jetstream(timeout=_TIMEOUT_SECONDS, publish_async_max_pending=2 * _BATCH)
        await context.add_stream(StreamConfig(name=NOISY_STREAM, subjects=[NOISY_STREAM]))
        for user in range(settings.users):
            config = StreamConfig(name=f"{_QUIET}{user}", subjects=[f"{_QUIET}.{user}"])
            await context.add_stream(config)
        yield _JetStream(context, settings)
    finally:
        await client.close()
