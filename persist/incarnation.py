"""One life of a persist server: its identity, and the resources it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.roles import ALL_ROLES, Roles
from holdfast.protocol.work.zones import NOWHERE
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Incarnation:
    """What nearly every part of a running server needs. It is made once, and passed
    as one argument."""

    #: The server's name, and the id of this life, which is never used again.
    server: str
    id: str
    bus: Bus
    subjects: Subjects
    disk: Disk
    layout: Layout
    #: Tells if this life may still acknowledge anything.
    gate: FenceGate
    #: Returns int milliseconds since the epoch.
    clock_ms: Callable[[], int]
    run_in_thread: RunInThread
    #: Separate threads for work that may take minutes, so that nothing else waits behind it.
    run_large: RunInThread
    #: What this life tells the audit log.
    audit: Audit = NO_AUDIT
    #: What this life, and the process, counts.
    statistics: Statistics = field(default_factory=lambda: Statistics(PartKind.PERSIST, "", 0))
    #: What it is there for.
    roles: Roles = ALL_ROLES
    #: Where it runs.
    zone: str = NOWHERE

    @contextmanager
    def draft(self, store: StoreId) -> Iterator[Path]:
        """Give a place for a file of a store that is being made. What is still there at the end is
        removed, with its WAL."""
        path = self.layout.store(store)
        draft = path.with_name(f"{path.name}.{self.id}")
        try:
            yield draft
        finally:
            for part in (draft, draft.with_name(f"{draft.name}-wal")):
                self.disk.remove(part)
