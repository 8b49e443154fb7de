"""A TCP proxy that can stop passing data, without closing anything, as a host that died does; or
close what passes it, and all that comes, as a host does that runs and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StallingProxy:
    """Passes connections on to one port until `stall`; those that it stalled pass nothing ever
    again."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._stalled = asyncio.Event()
        self._refuses = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        #: Connections that were made to it.
        self.accepted_count = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def stall(self) -> None:
        """Pass nothing any more on connections that there are, or are made before `heal`."""
        self._stalled.set()

    def heal(self) -> None:
        """Pass on what is connected from now on."""
        self._stalled = asyncio.Event()
        self._refuses = False

    def refuse(self) -> None:
        """Break the connections that there are, and those that are made before `heal`."""
        self._refuses = True
        self.drop()

    def drop(self) -> None:
        """Break the connections that there are."""
        for task in self._tasks:
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        self.accepted_count += 1
        stalled = self._stalled
        try:
            to, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            # There is nobody yet, or any more.
            return
        else:
            await _pass_both_ways(reader, writer, to, back, stalled)
        finally:
            writer.transport.abort()

    def spawn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection in a task."""
        if self._refuses:
            writer.transport.abort()
            return
        task = asyncio.create_task(self.serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    to: asyncio.StreamReader,
    back: asyncio.StreamWriter,
    stalled: asyncio.Event,
) -> None:
    passing = [
        asyncio.create_task(_pass_on(reader, back, stalled)),
        asyncio.create_task(_pass_on(to, writer, stalled)),
    ]
    try:
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in passing:
            task.cancel()
        back.transport.abort()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stalled: asyncio.Event
) -> None:
    """Pass on what one side sends until it ends; stalled, neither read nor end."""
    never = asyncio.get_running_loop().create_future()
    stopping = asyncio.create_task(stalled.wait())
    try:
        while True:
            reading = asyncio.create_task(reader.read(65536))
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stalled.is_set():
                reading.cancel()
                await never
            data = reading.result()
            if not data:
                return
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        stopping.cancel()


@asynccontextmanager
async def stalling_proxy(target_port: int) -> AsyncIterator[StallingProxy]:
    """Run a proxy around the body."""
    proxy = StallingProxy(target_port)
    server = await asyncio.start_server(proxy.spawn, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
