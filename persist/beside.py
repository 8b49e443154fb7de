"""Other work in the process of a server, in the same event loop.

It begins when the server is ready, and ends before the server does. What fails is tried again after
a pause, since a server that others rely on must not end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.process import ServerProcess, WorkBeside

logger = logging.getLogger("holdfast.persist")

#: The pause before it is tried again. It doubles up to the maximum, and begins anew once the work
#: was ready.
_AGAIN_SECONDS: Final = 0.2
_MAX_AGAIN_SECONDS: Final = 10.0
#: How long the server waits for its end, at most.
_END_SECONDS: Final = 5.0


@contextlib.asynccontextmanager
async def working_beside(
    process: ServerProcess, work: WorkBeside, server: str
) -> AsyncIterator[ServerProcess]:
    """Work while the body serves with the process that is yielded. `server` is its name."""
    working = asyncio.create_task(_work(process, work, server))
    ending: list[asyncio.Task[None]] = []

    def on_signals(stop: Callable[[], object]) -> None:
        async def end_first() -> None:
            working.cancel()
            await asyncio.wait([working], timeout=_END_SECONDS)
            stop()

        process.on_signals(lambda: ending.append(asyncio.create_task(end_first())))

    try:
        yield dataclasses.replace(process, on_signals=on_signals)
    finally:
        working.cancel()
        await asyncio.wait([working], timeout=_END_SECONDS)
        for each in ending:
            each.cancel()


async def _work(process: ServerProcess, work: WorkBeside, server: str) -> None:
    """Work until cancelled. The server's monitor tells the numbers of the work as well."""
    task = asyncio.current_task()
    assert task is not None
    await process.ready.wait()
    mishaps = Mishaps(logger)
    pause_seconds = _AGAIN_SECONDS
    while True:
        inner = ServerProcess(_no_signals, asyncio.Event(), process.monitor.beside())
        try:
            await work(inner)
        except HoldfastError as error:
            logger.error("server.beside_ended server=%s reason=%s", server, error)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (the server goes on)
            if not task.cancelling():
                mishaps.note("server.beside_failed", server, error)
        if task.cancelling():
            # Whatever it ended with.
            return
        if inner.ready.is_set():
            pause_seconds = _AGAIN_SECONDS
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _MAX_AGAIN_SECONDS)


def _no_signals(stop: Callable[[], object]) -> None:
    return None
