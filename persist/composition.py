"""The composition root: makes the parts of a server, each after those that it depends on.

Only this module knows which storage mode a server has, whether it has a bucket, and which part is
told of what. A part gets what it needs when it is made. Parts that report events let others
register (`on_closed`, `on_published`, `on_work`), so no part needs one that does not exist yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from holdfast.persist.access.gatekeeper import Gatekeeper
from holdfast.persist.archive_reading.archive_access import ArchiveAccess
from holdfast.persist.archive_reading.archive_server import ArchiveServer
from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.bucket_log.budget_keeping import BudgetKeeping
from holdfast.persist.bucket_only.bucket_mode import BucketMode
from holdfast.persist.encryption.key_book import KeyBook
from holdfast.persist.encryption.key_keeping import KeyKeeping
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.administration import Administrator, BucketJobs, ErasingJobs
from holdfast.persist.jobs.closing import StoreCloser
from holdfast.persist.jobs.deleting import DeletionJobs
from holdfast.persist.jobs.erasure import ErasureJobs, LogTurnover
from holdfast.persist.jobs.forking import ForkJobs
from holdfast.persist.jobs.placing import DraftPlacing
from holdfast.persist.jobs.point_in_time_restore import PointInTimeRestore
from holdfast.persist.jobs.purging import PurgeJobs
from holdfast.persist.jobs.reencrypting import ReencryptJobs
from holdfast.persist.jobs.reopening.beginning_in_memory import EphemeralBeginnings
from holdfast.persist.jobs.reopening.larger_pages import LargerPages
from holdfast.persist.jobs.replacing import StoreReplacement
from holdfast.persist.jobs.sharing import Sharing
from holdfast.persist.jobs.versions import VersionJobs
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.draining import Drainer
from holdfast.persist.lifecycle.ending import Ending
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.lifecycle.heartbeats import Heartbeats, Load
from holdfast.persist.lifecycle.leaving import Leaving
from holdfast.persist.lifecycle.moving import Mover
from holdfast.persist.lifecycle.open_queue import OpenQueue
from holdfast.persist.lifecycle.openings import Openings
from holdfast.persist.lifecycle.resting import FileRest
from holdfast.persist.lifecycle.steady_clock import SteadyClock
from holdfast.persist.lifecycle.telling_totals import TotalsTelling
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.parts import Parts
from holdfast.persist.peers.commands import Commands
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.peers.store_loads import StoreLoads
from holdfast.persist.peers.zone_helpers import ZoneHelpers
from holdfast.persist.prefetch.prefetching import PARALLEL_FETCHES, Prefetcher
from holdfast.persist.quotas.open_room import OpenRoom
from holdfast.persist.quotas.quota_book import QuotaBook
from holdfast.persist.quotas.quota_keeping import QuotaKeeping
from holdfast.persist.reception import Reception
from holdfast.persist.shared_disk.shared_disk_mode import SharedDiskMode
from holdfast.persist.storage_mode import StorageMode
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.threads.sync_thread import SyncThread
from holdfast.persist.threads.tier_threads import TierThreads
from holdfast.persist.tier.archiving import Archiver
from holdfast.persist.tier.claims import Claims
from holdfast.persist.tier.cold_stores import ColdStores
from holdfast.persist.tier.cooling import Cooler
from holdfast.persist.tier.garbage import GarbageCollection
from holdfast.persist.tier.lag_keeping import LagKeeping
from holdfast.persist.tier.left_behind import LeftBehind
from holdfast.persist.tier.snapshotter import Snapshotter
from holdfast.persist.tier.tending import OwnTending, SharedTending, Tending
from holdfast.persist.tier.tier import Tier
from holdfast.persist.tier.tier_pools import TierPools
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.checkpointing import Checkpointer, OpenLimits
from holdfast.persist.write_path.durable_files import BesideWrites, DurableFiles
from holdfast.persist.write_path.durable_reads import DurableReads
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.output_gate import OutputGate
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.persist.write_path.releasing import Releaser
from holdfast.persist.write_path.setting_aside import SettingAside
from holdfast.persist.write_path.turn import Promises, TurnBuilder
from holdfast.persist.write_path.waiting_places import WaitingPlaces
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.control import ServerLoad
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.audit_trail import NO_AUDIT, AuditTrail, tell_recorder
from holdfast.protocol.work.cold_work import CATCH_UP, COLLECT, REAP, SWEEPS, archive_works
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.cluster_id import bucket_cluster_id, claim_bucket, read_cluster_id
from holdfast.shared_fs.bucket_log.fences import BucketGate
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.read_ahead.host_cache import HostCache

#: How many files of any size are checked or copied at once.
_LARGE_THREADS: Final = 2


class Origins(NamedTuple):
    """What a server is made from."""

    bus: Bus
    layout: Layout
    disk: Disk
    bucket: Bucket | None
    options: ServerOptions
    machine: Machine


class _Threads(NamedTuple):
    """Where an incarnation runs blocking work."""

    run_in_thread: RunInThread
    #: The log's own thread.
    sync: RunInThread
    #: For work that may take minutes: checking or copying a file of gigabytes.
    large: RunInThread
    #: For reads of files that are not in memory.
    prefetch: RunInThread
    tier: TierPools
    #: Around what writes much to the disk of the log.
    beside_writes: BesideWrites = contextlib.nullcontext


class _WritePath(NamedTuple):
    """The path of a write, without the pipeline that drives it."""

    inbox: Inbox
    progress: LogProgress
    materialiser: Materialiser
    archive_reads: ArchiveReads
    prefetcher: Prefetcher
    releaser: Releaser


def compose(
    origins: Origins,
    server: str,
    incarnation: str,
    phase: LifePhase,
    resources: contextlib.ExitStack,
) -> Parts:
    """Begin an incarnation and return its parts. The caller holds the lock of the server's name.
    `resources` are closed when the incarnation ends.

    Raises StorageError.
    """
    bus, layout, disk, bucket, options, machine = origins
    threads = _threads(machine, resources)
    clock = machine.clock_ms or SteadyClock()
    gate = _gate(origins, server, incarnation)
    trail = None
    if options.audits:
        deliver = tell_recorder(bus, options.subjects)
        trail = AuditTrail(f"persist {server}", deliver, clock)
    life = Incarnation(
        server,
        incarnation,
        bus,
        options.subjects,
        disk,
        layout,
        gate,
        clock,
        threads.run_in_thread,
        threads.large,
        trail or NO_AUDIT,
        machine.statistics or Statistics(PartKind.PERSIST, server, clock()),
        options.roles,
        options.zone,
    )
    tasks, open_stores = SpawnedTasks(), OpenStores(options.max_open_stores)
    read_cluster = (
        partial(bucket_cluster_id, bucket)
        if bucket is not None and options.bucket_only
        else partial(read_cluster_id, disk, layout)
    )
    told_time = clock.compare if isinstance(clock, SteadyClock) else _nothing
    claim = _nothing if bucket is None or options.bucket_only else partial(claim_bucket, bucket)
    coordination = Coordination(life, read_cluster, told_time, claim)
    gatekeeper = Gatekeeper(life, options.tokens)
    owners = Owners(bus, life.subjects, asks_for_tokens=gatekeeper.asks_for_tokens)
    storage: StorageMode
    blocks = None
    if bucket is not None and Role.CACHE in options.roles:
        blocks = BlockServer(bucket, life, threads.tier.blocks, options.cache_bytes)
    helpers = ZoneHelpers(coordination)
    near = NearReads(life, helpers, blocks)
    if bucket is not None and isinstance(gate, BucketGate):
        storage = BucketMode(life, bucket, gate, open_stores, coordination, owners, near)
    else:
        storage = SharedDiskMode(
            life, threads.sync, machine.watch, open_stores, coordination, owners
        )
    resources.callback(storage.close)

    claims = Claims(life, phase, coordination, _offers(options, bucket, storage))
    archive, archive_server = _archive(life, bucket, helpers, threads, claims)
    path = _write_path(life, storage, open_stores, archive, machine.host_cache, threads, tasks)
    checkpointer = Checkpointer(
        life,
        storage.synced_log.log,
        DurableFiles(
            life,
            open_stores.leases,
            path.progress,
            path.materialiser,
            storage.confirm,
            threads.beside_writes,
        ),
        open_stores,
        path.progress,
        storage.tell_closed,
        SettingAside(life, open_stores, path.releaser, storage.withdraw).run_pass,
        OpenLimits(options.idle_close_seconds, options.max_open_stores),
    )
    giving_back = GivingBack(coordination, phase, tasks, one_by_one=storage.hands_over)
    checkpointer.on_unwritten(giving_back.unwritten)
    tier = None
    if bucket is not None:
        tending: Tending = OwnTending(coordination)
        if storage.shares_files:
            tending = SharedTending(coordination)
        cold_stores = ColdStores(
            bucket, life, open_stores, path.inbox, threads.tier.cold_stores, near
        )
        snapshotter = Snapshotter(
            bucket, options.tier_policy, life, threads.tier, open_stores, checkpointer, phase
        )
        cooler = Cooler(
            snapshotter, life, coordination, threads.tier.snapshots, claims, tending
        )
        garbage = GarbageCollection(bucket, life, claims, threads.tier.snapshots)
        tier = Tier(server, bucket, snapshotter, cooler, cold_stores, garbage, blocks)
    stored = storage.stored_writer(tier, path.releaser)
    budget = None
    if bucket is not None and options.budget_per_day is not None:
        budget = BudgetKeeping(
            server, options.budget_per_day, options.prices, bucket.usage.total, storage.log_pace
        )
    lag = None
    if tier is not None and stored is not None:
        publisher, pool = tier.snapshotter.publisher, threads.tier.snapshots
        left = LeftBehind(life, publisher, SharedTending(coordination), owners, pool)
        lag = LagKeeping(life, phase, tier.snapshotter, open_stores, claims, left, stored, budget)
    quotas, loads, keys = QuotaBook(), StoreLoads(), KeyBook(options.master_keys)
    promises = Promises(
        options.durability, storage.log_level, stored.writes if stored is not None else None
    )
    pipeline = Pipeline(
        life,
        storage.synced_log,
        path.inbox,
        TurnBuilder(server, path.inbox, open_stores, promises, quotas, loads),
        path.progress,
        path.releaser,
        path.materialiser,
        stored,
    )

    load = Load(
        life,
        phase,
        open_stores,
        storage.synced_log.log,
        tier,
        coordination,
        asks_for_tokens=gatekeeper.asks_for_tokens,
        takes_early_grants=storage.hands_over,
    )
    heartbeats = Heartbeats(life, pipeline, coordination, load, storage.stall_seconds)
    open_stores.on_opened(partial(_opened, keys, quotas), quotas.gone)
    key_keeping = None
    if options.keys is not None:
        key_keeping = KeyKeeping(options.keys, keys, open_stores, threads.run_in_thread)
    quota_keeping = None
    if options.quotas is not None:
        quota_keeping = QuotaKeeping(
            options.quotas, quotas, open_stores, coordination, threads.run_in_thread
        )
    openings = Openings(
        open_stores,
        path.inbox,
        storage.opener(tier),
        storage.read_dead_logs,
        tier.cold_stores if tier is not None else None,
        tasks,
        life.statistics,
    )
    open_queue = OpenQueue(
        open_stores,
        coordination,
        checkpointer,
        phase,
        giving_back,
        openings,
        options.max_open_stores,
        OpenRoom(quotas, open_stores, checkpointer.close_unused, openings.refuse),
    )
    drainer = Drainer(
        life, open_stores, path.releaser, checkpointer, coordination, giving_back, phase
    )
    leaving = Leaving(life, phase, storage, open_stores, openings, drainer, heartbeats)
    places = WaitingPlaces(
        path.inbox,
        open_stores,
        path.archive_reads,
        path.prefetcher,
        path.progress,
        stored,
        path.releaser,
    )
    ending = Ending(life, phase, storage, places, checkpointer, coordination)
    resting = FileRest(life, open_stores, options.max_awake_files)
    closer = StoreCloser(
        life,
        open_stores=open_stores,
        owners=owners,
        pipeline=pipeline,
        checkpointer=checkpointer,
        coordination=coordination,
        opens=openings.opens,
    )
    ephemeral_beginnings = EphemeralBeginnings(open_stores, closer, tasks)
    pipeline.on_becoming_ephemeral(ephemeral_beginnings.begin)
    larger_pages = LargerPages(
        life, closer, coordination, tasks, shares_files=storage.shares_files
    )
    path.materialiser.on_outgrown(larger_pages.begin)
    path.materialiser.on_long_wal(checkpointer.shorten_wal)
    mover = Mover(
        phase,
        open_stores,
        drainer,
        giving_back,
        closer.alone,
        partial(_moved, loads, tier),
        hands_over=storage.hands_over,
    )
    administrator = _administrator(
        *(life, options, storage, tier, coordination, closer, open_stores, checkpointer),
        quotas,
        keys,
        key_keeping,
    )
    request = tier.request if tier is not None else partial(_without_bucket, server)
    tell_load = partial(_load, life, open_stores, loads)
    commands = Commands(
        *(life, coordination, phase, request, tell_load, mover.move), open_queue.open_ahead
    )
    reception = Reception(
        life, path.inbox, open_stores, heartbeats, commands, administrator, tasks, gatekeeper
    )
    archiver = None
    if archive is not None and tier is not None:
        archiver = Archiver(
            archive,
            manifests=tier.snapshotter.manifests,
            open_stores=open_stores,
            pipeline=pipeline,
            checkpointer=checkpointer,
            run_in_thread=threads.tier.archive,
            clock_ms=clock,
            look_seconds=options.tier_policy.archive_look_seconds,
        )
    return Parts(
        life,
        storage,
        tasks,
        open_stores,
        path.inbox,
        pipeline,
        checkpointer,
        coordination,
        claims,
        open_queue,
        heartbeats,
        leaving,
        mover,
        resting,
        ending,
        administrator,
        reception,
        gatekeeper,
        path.archive_reads,
        path.prefetcher,
        tier,
        archive_server,
        archiver,
        quota_keeping,
        TotalsTelling(open_stores, coordination),
        key_keeping,
        trail,
        budget,
        lag,
    )


def _gate(origins: Origins, server: str, incarnation: str) -> FenceGate:
    """Return the gate of a new incarnation. On a shared disk this creates its fence."""
    disk, layout, bucket = origins.disk, origins.layout, origins.bucket
    if origins.options.bucket_only:
        assert bucket is not None
        return BucketGate(bucket, server, incarnation)
    disk.make_directory(layout.incarnation(server, incarnation))
    path = layout.fence(server, incarnation)
    create_fence(disk, path)
    return FenceGate(disk, path, server, incarnation)


def _opened(keys: KeyBook, quotas: QuotaBook, store: Store) -> None:
    """Note that a store is open, before the first group gets to it."""
    keys.opened(store)
    quotas.opened(store)


def _offers(
    options: ServerOptions, bucket: Bucket | None, storage: StorageMode
) -> list[str]:
    """Return the cold work that this server can do. What is only done where all servers see the
    same files cannot be claimed elsewhere."""
    offers: list[str] = []
    if Role.TIER in options.roles:
        offers.append(REAP)
        if bucket is not None:
            offers.append(COLLECT)
            if storage.shares_files:
                offers += [CATCH_UP, *SWEEPS]
    if Role.ARCHIVE in options.roles and bucket is not None and bucket.url:
        offers += archive_works(options.zone)
    return offers


def _threads(machine: Machine, resources: contextlib.ExitStack) -> _Threads:
    given = machine.run_in_thread
    pools = TierPools(given)
    resources.callback(pools.stop)
    if given is not None:
        return _Threads(given, given, given, given, pools)
    sync, large = SyncThread(), TierThreads("large", _LARGE_THREADS)
    prefetch = TierThreads("prefetch", PARALLEL_FETCHES)
    for each in (sync, large, prefetch):
        resources.callback(each.stop)
    return _Threads(asyncio.to_thread, sync, large, prefetch, pools, sync.beside_writes)


def _archive(
    life: Incarnation,
    bucket: Bucket | None,
    helpers: ZoneHelpers,
    threads: _Threads,
    claims: Claims,
) -> tuple[ArchiveAccess | None, ArchiveServer | None]:
    """Return what reads the archive for this server's stores, and for other servers."""
    if bucket is None or not bucket.url:
        return None, None
    access = ArchiveAccess(Archive(bucket.url), life, helpers, threads.tier.archive)
    if Role.ARCHIVE not in life.roles:
        return access, None
    make = partial(Archive, bucket.url)
    return access, ArchiveServer(make, life, threads.tier.asked_archive, claims)


def _write_path(
    life: Incarnation,
    storage: StorageMode,
    open_stores: OpenStores,
    archive: ArchiveAccess | None,
    cache: HostCache | None,
    threads: _Threads,
    tasks: SpawnedTasks,
) -> _WritePath:
    inbox, progress = Inbox(life.server), LogProgress()
    open_stores.leases.attach(inbox)
    materialiser = Materialiser(open_stores.leases, progress, life.run_in_thread, tasks)
    archive_reads = ArchiveReads(archive, inbox, life)
    prefetcher = Prefetcher(life, cache, inbox, threads.prefetch)
    releaser = Releaser(
        life,
        OutputGate(life.gate, storage.confirm_open),
        inbox,
        progress,
        DurableReads(life, inbox, progress, materialiser, archive_reads, prefetcher),
        materialiser,
    )
    return _WritePath(inbox, progress, materialiser, archive_reads, prefetcher, releaser)


def _administrator(
    life: Incarnation,
    options: ServerOptions,
    storage: StorageMode,
    tier: Tier | None,
    coordination: Coordination,
    closer: StoreCloser,
    open_stores: OpenStores,
    checkpointer: Checkpointer,
    quotas: QuotaBook,
    keys: KeyBook,
    key_keeping: KeyKeeping | None,
) -> Administrator:
    read_keys = key_keeping.begin if key_keeping is not None else None
    manifests = tier.snapshotter.manifests if tier is not None else None
    deletions = DeletionJobs(
        life, closer, coordination, manifests, storage.tombstones(tier), keys.has_keys
    )
    erasure = ErasureJobs(
        life,
        open_stores,
        storage.tombstones(tier),
        LogTurnover(checkpointer.turn_over, storage.turn_over),
        manifests,
        shares_files=storage.shares_files,
    )
    if tier is None:
        placing = DraftPlacing(life, storage.placement(None))
        replacement = StoreReplacement(life, closer, coordination, placing, None)
        erasing = ErasingJobs(
            PurgeJobs(deletions, replacement),
            ReencryptJobs(closer, replacement, None, read_keys),
            erasure,
        )
        return Administrator(
            life.server, deletions, BucketJobs(None, None), erasing, life.audit
        )
    past = PointInTimeRestore(
        tier.snapshotter.manifests,
        disk=life.disk,
        layout=life.layout,
        incarnation=life.id,
        clock_ms=life.clock_ms,
        keep=options.tier_policy.keep,
    )
    placing = DraftPlacing(life, storage.placement(past.publish))
    replacement = StoreReplacement(life, closer, coordination, placing, manifests)
    url = tier.bucket.url
    erasing = ErasingJobs(
        PurgeJobs(deletions, replacement),
        # Each reads the newest version of a table, and keeps no rows afterwards.
        ReencryptJobs(closer, replacement, lambda: Archive(url).bodies, read_keys),
        erasure,
    )
    versions = VersionJobs(life, closer, coordination, past, placing, tier.snapshotter.snapshot)
    sharing = Sharing(life, tier.snapshotter.manifests, options.tier_policy.keep)
    forks = ForkJobs(life, closer, coordination, versions, past, placing, sharing, quotas.take_room)
    jobs = BucketJobs(versions, forks)
    return Administrator(life.server, deletions, jobs, erasing, life.audit)


def _load(life: Incarnation, open_stores: OpenStores, loads: StoreLoads, limit: int) -> ServerLoad:
    """Return what this incarnation was asked for lately, with its busiest open stores."""
    now = asyncio.get_running_loop().time()
    hot = tuple(
        each._replace(epoch=opened.epoch)
        for each in loads.hottest(limit, now)
        if (opened := open_stores.find(each.store)) is not None
    )
    return ServerLoad(life.server, life.id, *loads.rates(now), open_stores.open_count, hot)


def _moved(loads: StoreLoads, tier: Tier | None, store: StoreId) -> None:
    """Note that a store has another owner."""
    loads.gone(store)
    if tier is not None:
        # If its next owner does not use it, nobody else snapshots its last changes. If it does, its
        # file is not free, and that owner has compared it with the bucket.
        tier.snapshotter.add(store)


def _without_bucket(server: str, stores: Sequence[StoreId] | None) -> int:
    """Refuse to snapshot: there is no bucket."""
    raise InvalidArgumentError(argument="command", reason=f"server {server!r} has no bucket")


def _nothing(_: object) -> None:
    return None
