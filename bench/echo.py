"""One end of an echo through nats-server: `python -m holdfast.bench.echo URL`. It answers each
request with what the request said, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import uvloop

from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_nats import connect_nats

ECHO_SUBJECT: Final = "bench.echo"


async def _main(url: str) -> None:
    bus = await connect_nats(url, name="echo", patient=True)
    loop = asyncio.get_running_loop()
    answering: set[asyncio.Task[None]] = set()

    def answer(message: BusMessage) -> None:
        task = loop.create_task(bus.publish(message.reply, message.payload))
        answering.add(task)
        task.add_done_callback(answering.discard)

    await bus.subscribe(ECHO_SUBJECT, answer)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:2]))
