"""A noisy neighbour, as a process of its own: `python -m holdfast.bench.noise URL TENANT KIND`.

    writer   1,000 appends at once to one stream, for ever
    reader   reads a large stream from its beginning again and again, by four readers at once

It runs until it is killed. Its starter makes the stream (`fairness.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from holdfast.bench.load import Limit, closed_loop, value_of
from holdfast.client import connect

NOISY_STREAM: Final = "noise"
_WRITERS: Final = 1000
_READERS: Final = 4


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


KINDS: Final[dict[str, Callable[[str, str], Awaitable[None]]]] = {"writer": _write, "reader": _read}


async def _main(url: str, tenant: str, kind: str) -> None:
    await KINDS[kind](url, tenant)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:4]))
