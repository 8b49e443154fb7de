"""A noisy neighbour, as a process of its own: `python -m holdfast.bench.noise URL TENANT KIND`.

    writer   1,000 appends at once to one stream, for ever
    reader   reads a large stream from its beginning again and again, by four readers at once
    jetstream writer   1,000 publishes to a stream of JetStream at once, for ever

It runs until it is killed. Its starter makes the stream (`fairness.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import nats
import uvloop
from nats.js.api import PubAck

from holdfast.bench.load import Limit, closed_loop, value_of, windowed
from holdfast.client import connect

NOISY_STREAM: Final = "noise"
WRITER: Final = "writer"
READER: Final = "reader"
JETSTREAM_WRITER: Final = "jetstream writer"
_WRITERS: Final = 1000
_READERS: Final = 4
_TIMEOUT_SECONDS: Final = 60.0


async def _write(url: str, tenant: str) -> None:
    async with connect(url, tenant=tenant) as client:
        stream = client.stream(NOISY_STREAM)

        async def append(number: int) -> None:
            await stream.append(value_of(number))

        # In pieces, because a load keeps its answers.
        while True:
            await closed_loop(append, _WRITERS, Limit(seconds=1.0))


async def _read(url: str, tenant: str) -> None:
    async with connect(url, tenant=tenant) as client:
        stream = client.stream(NOISY_STREAM)

        async def read_all() -> None:
            while True:
                async for _ in stream.get_all():
                    pass

        async with asyncio.TaskGroup() as readers:
            for _ in range(_READERS):
                readers.create_task(read_all())


async def _publish(url: str, _: str) -> None:
    client = await nats.connect(url)
    context = client.jetstream(timeout=_TIMEOUT_SECONDS, publish_async_max_pending=2 * _WRITERS)

    async def start(number: int) -> asyncio.Future[PubAck]:
        return await context.publish_async(NOISY_STREAM, value_of(number))

    while True:
        await windowed(start, _WRITERS, Limit(seconds=1.0))


_KINDS: Final[dict[str, Callable[[str, str], Awaitable[None]]]] = {
    WRITER: _write,
    READER: _read,
    JETSTREAM_WRITER: _publish,
}


async def _main(url: str, tenant: str, kind: str) -> None:
    await _KINDS[kind](url, tenant)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:4]))
