"""Where short calls of the storage run: in the loop or, if they are not short, in a thread.

A lone request waits for two syncs, and a hand-over to a thread and back wakes two threads, which
takes as long as a sync of a good disk. So calls that concern few stores run in the loop, while they
are short. If their mean is no longer short, the next ones go to the thread, and now and then one is
tried in the loop, less and less often. Persist servers sync their logs in the same way
(`persist/threads/sync_thread.py`).

If the storage begins to hang in such a call, the loop hangs with it. The coordinator is silent
then, as one that was stopped is: a standby takes over, and once it goes on it counts no server's
silence before it has heard its own messages again (`peers/heartbeat_feed.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from holdfast.coordinator.background_tasks import RunBlocking

_Result = TypeVar("_Result")

#: A mean below this is short. Heartbeats and probes may wait for hundreds of such calls.
SHORT_SECONDS: Final = 0.002
#: After this many calls in the thread, the next is tried in the loop. The number doubles each time
#: the try was not short.
TRY_AFTER_CALLS: Final = 8
TRY_AFTER_CALLS_MAX: Final = 4096
#: The weight of one call in the mean of those in the loop.
_WEIGHT: Final = 0.1


class ShortCalls:
    """Runs functions one after the other; a `RunBlocking`."""

    def __init__(
        self,
        run_blocking: RunBlocking = asyncio.to_thread,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run_blocking = run_blocking
        self._clock = clock
        #: The mean of the calls in the loop; 0 if there is none yet.
        self._mean_seconds = 0.0
        #: How many go to the thread until the next is tried in the loop.
        self._left_count = self._try_after = TRY_AFTER_CALLS

    def __call__(self, function: Callable[..., _Result], /, *arguments: Any) -> Awaitable[_Result]:
        """Return an awaitable of the result of `function`."""
        if self._left_count:
            self._left_count -= 1
            return self._run_blocking(function, *arguments)
        outcome: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        began_at = self._clock()
        try:
            outcome.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 (raised again where it is awaited)
            outcome.set_exception(error)
        self._took(self._clock() - began_at)
        return outcome

    def _took(self, seconds: float) -> None:
        """Note the duration of a call in the loop."""
        if self._mean_seconds:
            seconds = (1 - _WEIGHT) * self._mean_seconds + _WEIGHT * seconds
        if seconds < SHORT_SECONDS:
            self._mean_seconds = seconds
            self._try_after = TRY_AFTER_CALLS
        else:
            self._mean_seconds = 0.0
            self._left_count = self._try_after
            self._try_after = min(TRY_AFTER_CALLS_MAX, 2 * self._try_after)
