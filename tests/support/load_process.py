"""The load of `load.py` in a process of its own, so that a client of another version can make it.

It says `begun` when every stream has been written. Told `more`, it says `written` when each has got
some more writes. Told `end`, it ends the load, lets its followers catch up, reads all, and says
`checked`; its exit code is 0 if nothing is wrong.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from holdfast.client import connect
from tests.support.load import running_load


def main(arguments: Sequence[str]) -> int:
    """Run the load: a NATS URL, a tenant, a number of streams, a number of writes."""
    url, tenant, streams, writes = arguments
    asyncio.run(_run(url, tenant, int(streams), int(writes)))
    return 0


async def _run(url: str, tenant: str, stream_count: int, write_count: int) -> None:
    async with connect(url, tenant=tenant) as client:
        async with AsyncExitStack() as followers, running_load(client, stream_count) as load:
            await followers.enter_async_context(load.followed(load.names[:2]))
            print("begun", flush=True)
            while (await asyncio.to_thread(sys.stdin.readline)).strip() == "more":
                await load.more(write_count)
                print("written", flush=True)
        await load.check()
        print(f"checked {load.ack_count} acknowledged", flush=True)
