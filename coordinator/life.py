"""One life of a coordinator: its id, and the resources that its parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.decisions.part_book import PartBook, PartKey
from holdfast.coordinator.storage import Storage
from holdfast.coordinator.storage_use import StorageUse
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.telling import encode_report
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """What nearly every part of a coordinator needs. Made once and passed on."""

    #: Distinguishes this coordinator's messages to itself from those of other coordinators.
    id: str
    bus: Bus
    subjects: Subjects
    storage: Storage
    #: Returns int milliseconds since the epoch.
    clock_ms: Callable[[], int]
    background_tasks: BackgroundTasks
    wakeup: Wakeup
    mishaps: Mishaps
    storage_use: StorageUse
    #: What this coordinator counts, and what other parts told.
    statistics: Statistics = field(
        default_factory=lambda: Statistics(PartKind.STANDBY, "", 0)
    )
    part_book: PartBook = field(default_factory=PartBook)
    #: What this coordinator tells the audit log.
    audit: Audit = NO_AUDIT

    def now(self) -> float:
        """Return monotonic seconds; silence is measured with this clock."""
        return asyncio.get_running_loop().time()

    def tell_itself(self) -> None:
        """Put this coordinator's own numbers, as they are now, among those of all parts."""
        key = PartKey(self.statistics.kind, self.id)
        self.part_book.hear(key, encode_report(self.statistics), self.now())
