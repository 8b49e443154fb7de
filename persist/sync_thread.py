"""The thread that syncs the commit log, and does nothing else.

asyncio's own pool would do, but a sync then waits behind checkpoints of store files in the same pool,
and each hand-over costs several locks and a task. Here one is a queue's put there, and one
`call_soon_threadsafe` back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class SyncThread:
    """Runs functions one after the other, outside the loop's thread. `stop` it in the end."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="holdfast.sync", daemon=True)
        self._thread.start()

    def __call__(self, function: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Return the future of what `function` returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put((function, loop, future))
        return future

    def stop(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            error: BaseException | None = None
            result = None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 (raised again where it is awaited)
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future, result, error)


def _finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
