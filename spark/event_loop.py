"""An event loop for blocking code: Spark's workers and planners are plain threads.

The loop runs in a thread of its own, so that a connection stays alive and the next page is fetched
while Spark is busy with the last one. Each task has its own loop, which ends with the task.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from holdfast.client import Client, connect
from holdfast.spark.options import Connection

_T = TypeVar("_T")


class EventLoop:
    """A running loop. Made by `running_loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return the result. Everything that it awaits must have
        a deadline."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # Includes an interrupt of this thread.
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[_T, None]) -> Iterator[_T]:
        """Yield what `items` yields. The next item is made while the caller uses the last one."""

        # A generator cannot be iterated and closed at the same time.
        using = asyncio.Lock()

        async def following() -> tuple[_T] | None:
            async with using:
                async for item in items:
                    return (item,)
                return None

        async def close() -> None:
            async with using:
                await items.aclose()

        ahead = asyncio.run_coroutine_threadsafe(following(), self._loop)
        try:
            while (found := ahead.result()) is not None:
                ahead = asyncio.run_coroutine_threadsafe(following(), self._loop)
                yield found[0]
        finally:
            ahead.cancel()
            self.run(close())

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
        """Enter `manager` in the loop around the body."""
        entered = self.run(_enter(manager))
        try:
            yield entered
        finally:
            self.run(_leave(manager))


@contextmanager
def running_loop() -> Iterator[EventLoop]:
    """Run a loop around the body."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="holdfast.loop", daemon=True)
    thread.start()
    try:
        yield EventLoop(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def connecting(connection: Connection) -> AbstractAsyncContextManager[Client]:
    """Return the client of a task. Enter it in the task's loop."""
    return connect(
        connection.nats,
        tenant=connection.tenant,
        prefix=connection.prefix,
        name="holdfast-spark",
        inbox_prefix=connection.inbox_prefix,
        **connection.login.connect_arguments(),
    )


def run_connected(connection: Connection, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Connect, do `work`, disconnect."""

    async def connected() -> _T:
        async with connecting(connection) as client:
            return await work(client)

    with running_loop() as loop:
        return loop.run(connected())


async def _enter(manager: AbstractAsyncContextManager[_T]) -> _T:
    return await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)
