"""One life of a coordinator: who it is, and what it lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.storage import Storage
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """What nearly every part of a coordinator needs, made once and passed once."""

    #: Tells this coordinator's messages to itself from any other's.
    id: str
    bus: Bus
    subjects: Subjects
    storage: Storage
    #: Returns int milliseconds since the epoch.
    clock_ms: Callable[[], int]
    background_tasks: BackgroundTasks
    wakeup: Wakeup
    mishaps: Mishaps

    def now(self) -> float:
        """Return the time by which silence is judged, in seconds, monotonic."""
        return asyncio.get_running_loop().time()
