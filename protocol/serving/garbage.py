"""Garbage collection without long pauses.

Reference counting frees nearly all of a server's objects at once. Python's collector finds the
rest, objects that refer to each other in a circle, in passes during which the process does nothing
else: of a server with 10,000 open stores a pass over everything takes half a second. So

- a pass looks at a few thousand new objects only, and what survives it is put aside
  (`gc.freeze`): no such pass looks at it again;
- passes over everything find the circles among those. They are so rare that they take a
  ten-thousandth of the time, however large the process becomes, and there are none once they would
  take so long that a server counts as dead.

So what is closed often must not be part of a circle: it would stay for hours.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger("holdfast.process")

#: How many new objects begin a pass over them. It takes about half a millisecond.
YOUNG_OBJECTS: Final = 2000
#: Older objects are never looked at for their number.
_NEVER: Final = 1_000_000
#: The time between two passes over everything: at the least, and in multiples of the last one.
_FULL_SECONDS: Final = 60.0
_FULL_MULTIPLE: Final = 10_000
#: A pass that would take longer is left out. Heartbeats must not pause longer than that.
MAX_PAUSE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 10.0
_DEFAULT: Final = gc.get_threshold()


class CircleCollector:
    """The collector of this process. `begin` it once all that lives for ever is loaded."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due_at = 0.0
        #: How long the last pass over everything took for each object.
        self._object_seconds = 0.0

    def begin(self) -> None:
        """Look at new objects only from now on."""
        gc.callbacks.append(self._hear)
        gc.set_threshold(YOUNG_OBJECTS, _NEVER, _NEVER)
        self._collect_all()

    def end(self) -> None:
        """Collect as Python does without this module, but for what was put aside."""
        gc.callbacks.remove(self._hear)
        gc.set_threshold(*_DEFAULT)

    async def keep_collecting(self) -> None:
        """Pass over everything now and then, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.tend()

    def tend(self) -> bool:
        """Pass over everything if that is due. Return whether it was."""
        if self._clock() < self._due_at:
            return False
        seconds = gc.get_freeze_count() * self._object_seconds
        if seconds > MAX_PAUSE_SECONDS:
            logger.info("process.garbage_stays pause_ms=%d", seconds * 1000)
            self._put_off(seconds)
            return False
        self._collect_all()
        return True

    def _collect_all(self) -> None:
        began_at = self._clock()
        gc.unfreeze()
        gc.collect()
        seconds = self._clock() - began_at
        self._object_seconds = seconds / max(1, gc.get_freeze_count())
        self._put_off(seconds)

    def _put_off(self, seconds: float) -> None:
        self._due_at = self._clock() + max(_FULL_SECONDS, _FULL_MULTIPLE * seconds)

    def _hear(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop":
            gc.freeze()
