"""The parts of a running server: the result of its composition."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.persist.access.gatekeeper import Gatekeeper
from holdfast.persist.archive_reading.archive_server import ArchiveServer
from holdfast.persist.bucket_log.budget_keeping import BudgetKeeping
from holdfast.persist.encryption.key_keeping import KeyKeeping
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.administration import Administrator
from holdfast.persist.lifecycle.ending import Ending
from holdfast.persist.lifecycle.heartbeats import Heartbeats
from holdfast.persist.lifecycle.leaving import Leaving
from holdfast.persist.lifecycle.moving import Mover
from holdfast.persist.lifecycle.open_queue import OpenQueue
from holdfast.persist.lifecycle.resting import FileRest
from holdfast.persist.lifecycle.telling_totals import TotalsTelling
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.prefetch.prefetching import Prefetcher
from holdfast.persist.quotas.quota_keeping import QuotaKeeping
from holdfast.persist.reception import Reception
from holdfast.persist.storage_mode import StorageMode
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.tier.archiving import Archiver
from holdfast.persist.tier.claims import Claims
from holdfast.persist.tier.lag_keeping import LagKeeping
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol.serving.audit_trail import AuditTrail


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one incarnation."""

    life: Incarnation
    storage: StorageMode
    tasks: SpawnedTasks
    open_stores: OpenStores
    inbox: Inbox
    pipeline: Pipeline
    checkpointer: Checkpointer
    coordination: Coordination
    claims: Claims
    open_queue: OpenQueue
    heartbeats: Heartbeats
    leaving: Leaving
    mover: Mover
    resting: FileRest
    ending: Ending
    administrator: Administrator
    reception: Reception
    gatekeeper: Gatekeeper
    archive_reads: ArchiveReads
    prefetcher: Prefetcher
    tier: Tier | None
    #: None: it reads the archive for no other server.
    archive_server: ArchiveServer | None
    archiver: Archiver | None
    quota_keeping: QuotaKeeping | None
    totals_telling: TotalsTelling
    #: None: no tenant's values are encrypted.
    key_keeping: KeyKeeping | None
    #: None: this server tells the audit log nothing.
    audit_trail: AuditTrail | None
    #: None: nothing limits what its bucket costs.
    budget: BudgetKeeping | None
    #: None: there is no bucket, or its log has what its snapshots lack.
    lag: LagKeeping | None

    def work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the tasks that run beside everything else, until cancelled."""
        if self.tier is not None:
            yield from self.tier.work()
        yield self.archive_reads.run()
        yield self.prefetcher.run()
        if self.archive_server is not None:
            yield self.archive_server.run()
        if self.archiver is not None:
            yield self.archiver.run()
        yield self.claims.run()
        yield from self.storage.work(self.tier, self.claims)
        yield self.pipeline.run()
        yield self.heartbeats.run()
        yield self.open_queue.run()
        yield self.gatekeeper.run()
        yield self.leaving.drain()
        yield self.mover.run()
        if self.quota_keeping is not None:
            yield self.quota_keeping.run()
        yield self.totals_telling.run()
        if self.key_keeping is not None:
            yield self.key_keeping.run()
        if self.audit_trail is not None:
            yield self.audit_trail.run()
        if self.budget is not None:
            yield self.budget.run()
        if self.lag is not None:
            yield self.lag.run()
