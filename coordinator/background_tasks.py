"""Work beside the coordinator's loop: short tasks, and calls that block.

All tasks run in one TaskGroup and end with it. An error that a task does not handle ends the
service; from then on none is started, though messages still arrive. A blocking call that has begun
is always waited for, so nothing is closed while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

_Result = TypeVar("_Result")


class RunBlocking(Protocol):
    """Runs a blocking function elsewhere, as `asyncio.to_thread` or a simulator does."""

    def __call__(
        self, function: Callable[..., _Result], /, *arguments: Any
    ) -> Awaitable[_Result]: ...


class BackgroundTasks:
    """A TaskGroup with named tasks. Start tasks between entering and leaving it."""

    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._group = asyncio.TaskGroup()
        self._names: dict[asyncio.Task[None], str] = {}
        #: A TaskGroup that ends takes no more tasks.
        self._is_ending = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_ending = self._is_ending or error is not None
        try:
            await self._group.__aexit__(error_type, error, traceback)
        finally:
            self._is_ending = True

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; if all of it ends already, do nothing."""
        if self._is_ending:
            work.close()
            return
        task = self._group.create_task(work)
        self._names[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._names[task]
        if not task.cancelled() and task.exception() is not None:
            self._is_ending = True

    def running(self, name: str) -> bool:
        return name in self._names.values()

    def cancel(self) -> None:
        """Cancel all tasks; leaving the context waits for them."""
        for task in self._names:
            task.cancel()

    async def blocking(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run `function` elsewhere and return its result.

        If the caller is cancelled, the CancelledError is raised only after the function has ended.
        """
        running = asyncio.ensure_future(self._run_blocking(function, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                # Whoever cancels once more waits all the same.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            if not running.cancelled():
                # Retrieve the exception, or asyncio logs that it was never retrieved.
                running.exception()
            raise
