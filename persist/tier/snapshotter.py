"""Snapshots of a server's stores, made in the background.

    closed, asked for, or much changed ──▶ image ──▶ compressed ──▶ put, tiny ones together ──▶
    published

Passes take what has gathered; `tier_policy.py` decides when. No client waits for any of this, and
while the bucket is away nothing changes for clients: a pass fails, logs that once, and is tried
again with growing pauses. If a tenant's own bucket is away, its stores alone wait. The backlog
keeps only the names of stores, and a bounded number of them. The sweep (`cooling.py`) later finds
the stores that were dropped beyond that bound, like those that another server left behind.
Invariants:

- A snapshot has only changes that are durable and acknowledged, or about to be (`imaging.py`).
- While the file of a closed store is open here, it is leased: opening the store
  waits (`leases.py`).
- A version is published after its object was put and checked, and only by compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.tier.imaging import Imager
from holdfast.persist.tier.publishing import Publisher
from holdfast.persist.tier.tier_policy import Extent, TierPolicy
from holdfast.persist.tier.tier_pools import TierPools
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.protocol.errors import FencedError, StorageError
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketError
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.pack import Packed, full_packs, packs_of, put_pack
from holdfast.shared_fs.snapshots.snapshot import Image, Snapshot, compress
from holdfast.shared_fs.snapshots.store_entry import Published, SnapshotVersion
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: How many names of stores may wait for a snapshot. The sweep finds the others.
MAX_BACKLOG: Final = 100_000
#: How many stores are snapshotted and published together. What waits of them in memory is tiny: a
#: pack, and half a kilobyte per store.
_CHUNK_STORES: Final = 512
_PUBLISHED_STORES: Final = 16_384
#: Images above this are compressed one at a time, because each takes several times its size.
_LARGE_IMAGE_BYTES: Final = 2 * MIB
_PARALLEL: Final = 4
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
#: The delay before trying again to snapshot requested stores that were busy.
_REQUEST_RETRY_SECONDS: Final = 1.0


#: The tenants whose own buckets failed, with the first error of each.
_Away = dict[str, BucketError]


@dataclass(slots=True)
class TierCounts:
    """Totals since the start."""

    snapshots: int = 0
    cooled: int = 0
    failed_passes: int = 0


class Snapshotter:
    """The snapshots of one incarnation."""

    def __init__(
        self,
        bucket: Bucket,
        policy: TierPolicy,
        life: Incarnation,
        pools: TierPools,
        open_stores: OpenStores,
        checkpointer: Checkpointer,
        phase: LifePhase,
    ) -> None:
        """`checkpointer` reports the files that it closes."""
        self.bucket = bucket
        self.policy = policy
        self.counts = TierCounts()
        self._server = life.server
        self.imager = Imager(life)
        self._clock_ms = life.clock_ms
        self._run_in_thread = pools.snapshots
        self._open_stores = open_stores
        self._checkpointer = checkpointer
        self._phase = phase
        self._hear_published: list[Callable[[StoreId, SnapshotVersion], None]] = []
        self._hear_nothing: list[Callable[[StoreId], None]] = []
        self._manifests: Manifests | None = None
        self.publisher = Publisher(
            self.manifests,
            keep=policy.keep,
            run_in_thread=pools.publishing,
            clock_ms=life.clock_ms,
        )
        #: Closed stores with changes, oldest first, and stores that were asked for.
        #: Closed stores that wait, and since when, in Unix milliseconds; the one that was closed
        #: last comes last.
        self._backlog: dict[StoreId, int] = {}
        self._requested: dict[StoreId, None] = {}
        self._wake = asyncio.Event()
        #: What the newest snapshots of open stores hold.
        self._snapshotted: dict[StoreId, Extent] = {}
        #: Stores that were opened again before their turn. They get it when they are closed.
        self._missed: dict[StoreId, bool] = {}
        self._failing = Trouble(logger, "store.snapshot_failed", logging.ERROR)
        self._places_away = Trouble(logger, "tier.tenant_bucket_away")
        self._large = asyncio.Lock()
        self._one_pass = asyncio.Lock()
        checkpointer.on_closed(self.closed)

    # Notifications
    def on_published(self, hear: Callable[[StoreId, SnapshotVersion], None]) -> None:
        """Call `hear` for each snapshot that counts, and when a newer one existed already."""
        self._hear_published.append(hear)

    def on_nothing(self, hear: Callable[[StoreId], None]) -> None:
        """Call `hear` for each closed store that has no file, or one that another server has."""
        self._hear_nothing.append(hear)

    @property
    def backlog(self) -> int:
        """How many stores wait for a snapshot."""
        return len(self._backlog) + len(self._requested)

    @property
    def backlog_seconds(self) -> float:
        """How long the first of the closed stores has waited."""
        first = next(iter(self._backlog.values()), None)
        return 0.0 if first is None else max(0, self._clock_ms() - first) / 1000

    def closed(self, store: Store, file: StoreFile) -> None:
        """Note that a store's file was closed because nobody uses it."""
        known = self._snapshotted.pop(store.id, None)
        changed = store.last_tick > 0 and (known is None or known.revision < file.meta.revision)
        missed = self._missed.pop(store.id, False)
        if (changed or missed) and not file.in_memory:
            self.add(store.id)

    def add(self, store: StoreId) -> None:
        """Snapshot a closed store in one of the next passes."""
        self._backlog.pop(store, None)
        self._backlog[store] = self._clock_ms()
        if len(self._backlog) > MAX_BACKLOG:
            del self._backlog[next(iter(self._backlog))]

    def request(self, stores: Sequence[StoreId] | None) -> int:
        """Snapshot stores soon, or all open ones if `stores` is None. Return how many."""
        wanted = [each.id for each in self._open_stores.stores()] if stores is None else stores
        self._requested.update(dict.fromkeys(wanted))
        for store in wanted:
            self._backlog.pop(store, None)
        self._wake.set()
        return len(wanted)

    async def snapshot(self, stores: Sequence[StoreId]) -> None:
        """Snapshot stores now. Those that were published are reported to `on_published`.
        Raises BucketError."""
        away = await self._snapshot([list(stores)])
        for error in away.values():
            raise error

    def leased(self, store: StoreId) -> AbstractContextManager[bool]:
        """Keep a closed store from being opened meanwhile. Yields False if that is impossible."""
        if self._phase.opens_nothing:
            return nullcontext(False)
        return self._open_stores.leases.of_closed(store)

    # Passes
    async def run(self) -> None:
        """Make passes until cancelled. FencedError ends the incarnation."""
        pause = 0.0
        while True:
            try:
                async with asyncio.timeout(pause or self._pass_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self.run_pass()
            except FencedError:
                raise
            except StorageError as error:
                self.counts.failed_passes += 1
                if not pause:
                    logger.warning(
                        "tier.bucket_away server=%s backlog=%d reason=%s",
                        self._server,
                        self.backlog,
                        error,
                    )
                pause = min(max(_FIRST_PAUSE_SECONDS, 2 * pause), _LONGEST_PAUSE_SECONDS)
            else:
                if pause:
                    logger.info("tier.bucket_back server=%s backlog=%d", self._server, self.backlog)
                pause = 0.0

    def _pass_seconds(self) -> float:
        seconds = self.policy.snapshot_seconds
        return min(seconds, _REQUEST_RETRY_SECONDS) if self._requested else seconds

    async def run_pass(self) -> None:
        """Snapshot what waits. If it raises BucketError, what could not be put goes on waiting."""
        async with self._one_pass:
            await self._look_at_open()
            taken: dict[StoreId, None] = {}
            try:
                away = await self._snapshot(self._chunks(taken))
            except BaseException:
                for each in taken:
                    if self._open_stores.in_use(each):
                        self._requested[each] = None
                    else:
                        self.add(each)
                raise
            for each in [each for each in taken if each.tenant in away]:
                # A store in use is asked for again when it changes, or when it is closed.
                if self._open_stores.in_use(each):
                    self._missed[each] = True
                else:
                    self.add(each)

    def _chunks(self, taken: dict[StoreId, None]) -> Iterator[list[StoreId]]:
        """Yield what waits now, each store once, and add it to `taken`."""
        left = self.backlog
        while left > 0 and (chosen := self._choose()):
            left -= len(chosen)
            taken.update(dict.fromkeys(chosen))
            yield chosen

    def _choose(self) -> list[StoreId]:
        chosen: list[StoreId] = []
        for waiting in (self._requested, self._backlog):
            while waiting and len(chosen) < _CHUNK_STORES:
                store = next(iter(waiting))
                del waiting[store]
                if waiting is self._backlog and self._open_stores.in_use(store):
                    self._missed[store] = True
                else:
                    chosen.append(store)
        return chosen

    async def _look_at_open(self) -> None:
        """Request snapshots of the open stores that have changed much."""
        least = self.policy.min_change_bytes
        unknown = []
        for store in self._open_stores.stores():
            file = store.file
            if file is None or store.state is not OpenState.SERVING or file.in_memory:
                continue
            if store.anchor is not None:
                # What changes much of an ephemeral store is not in its file.
                continue
            now = Extent(store.revision, store.count, store.bytes)
            known = self._snapshotted.get(store.id)
            if known is None:
                if self.policy.has_changed_enough(now, Extent(0, 0, 0)) and now.bytes >= least:
                    unknown.append(store)
            elif self.policy.has_changed_enough(now, known):
                self._requested[store.id] = None
        for store in unknown:
            newest = await self._newest(store.id)
            if self._open_stores.find(store.id) is not store:
                continue
            self._snapshotted[store.id] = (
                Extent(newest.revision, newest.count, newest.bytes)
                if newest is not None
                else Extent(0, 0, 0)
            )
            now = Extent(store.revision, store.count, store.bytes)
            if self.policy.has_changed_enough(now, self._snapshotted[store.id]):
                self._requested[store.id] = None

    async def _newest(self, store: StoreId) -> SnapshotVersion | None:
        def find() -> SnapshotVersion | None:
            entry = self.manifests().find(store)
            return entry.newest if entry is not None else None

        newest: SnapshotVersion | None = await self._run_in_thread(find)
        return newest

    def manifests(self) -> Manifests:
        """Return the manifests. The first call blocks. Raises BucketError."""
        if self._manifests is None:
            self._manifests = open_manifests(self.bucket)
        return self._manifests

    # One chunk
    async def _snapshot(self, chunks: Iterable[list[StoreId]]) -> _Away:
        """Snapshot stores, chunk by chunk, and publish all of them together: publishing ten
        thousand takes no more requests than a thousand.

        Return the tenants whose own buckets failed: some of their stores were not published.
        Raises BucketError, FencedError."""
        away: _Away = {}
        tiny: list[Snapshot] = []
        versions: Packed = []
        for chunk in chunks:
            for made in await self._made_of(chunk, away):
                if isinstance(made, Snapshot):
                    tiny.append(made)
                else:
                    versions.append(made)
            if len(versions) + len(tiny) >= _PUBLISHED_STORES:
                await self._publish(versions + await self._put(packs_of(tiny), away))
                tiny, versions = [], []
                continue
            full, tiny = full_packs(tiny)
            versions += await self._put(full, away)
        await self._publish(versions + await self._put(packs_of(tiny), away))
        return away

    async def _put(self, packs: list[list[Snapshot]], away: _Away) -> Packed:
        """Put packs, a few at once. When it returns or raises, all puts have ended."""
        slots = asyncio.Semaphore(_PARALLEL)

        async def one(group: list[Snapshot]) -> Packed:
            async with slots:
                try:
                    put: Packed = await self._run_in_thread(partial(self._put_tiny, group))
                except BucketError as error:
                    tenant = group[0].store.tenant
                    if not self.bucket.has_own_bucket(tenant):
                        raise
                    self._note_away(tenant, error, away)
                    return []
                return put

        versions: Packed = []
        done = await asyncio.gather(*map(one, packs), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
            versions += outcome
        return versions

    def _note_away(self, tenant: str, error: BucketError, away: _Away) -> None:
        """Note that a tenant's own bucket failed: its stores wait for a later pass."""
        away.setdefault(tenant, error)
        self._places_away.note("tenant=%s reason=%s", tenant, error, of=tenant)

    async def _made_of(
        self, stores: list[StoreId], away: _Away
    ) -> list[Snapshot | tuple[StoreId, SnapshotVersion]]:
        slots = asyncio.Semaphore(_PARALLEL)
        found: list[Snapshot | tuple[StoreId, SnapshotVersion]] = []
        failures: list[StorageError] = []

        async def one(store: StoreId) -> None:
            async with slots:
                if failures or store.tenant in away:
                    return
                try:
                    made = await self._made(store)
                except FencedError:
                    raise
                except BucketError as error:
                    if self.bucket.has_own_bucket(store.tenant):
                        self._note_away(store.tenant, error, away)
                    else:
                        failures.append(error)
                except StorageError as error:
                    self._failing.note("store=%s reason=%s", store, error, of=store)
                else:
                    self._failing.over(store)
                    if isinstance(made, Snapshot):
                        found.append(made)
                    elif made is not None:
                        found.append((store, made))

        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                tasks.create_task(one(store))
        if failures:
            raise failures[0]
        return found

    async def _made(self, store: StoreId) -> Snapshot | SnapshotVersion | None:
        """Return a tiny snapshot that is still to be put, or the version of one that
        is in the bucket."""
        image = await self._image(store)
        if image is None:
            return None
        large = not isinstance(image.content, bytes) or len(image.content) > _LARGE_IMAGE_BYTES
        if not large:
            return await self._compressed(image)
        async with self._large:
            return await self._compressed(image)

    async def _compressed(self, image: Image) -> Snapshot | SnapshotVersion:
        def work() -> Snapshot | SnapshotVersion:
            made = compress(image, self._clock_ms())
            return made if made.is_tiny else snapshots.put(self.bucket, made, _nonce())

        made: Snapshot | SnapshotVersion = await self._run_in_thread(work)
        return made

    async def _image(self, store: StoreId) -> Image | None:
        opened = self._open_stores.find(store)
        if opened is not None:
            image = await self._checkpointer.with_durable(opened, self.imager.take)
            if image is None and (opened.file is None or not opened.file.in_memory):
                # It is busy, or not in a file yet. Try again soon.
                self._requested[store] = None
            return image
        with self.leased(store) as mine:
            if not mine:
                if self._open_stores.in_use(store):
                    self._missed[store] = True
                return None
            closed: Image | None = await self._run_in_thread(lambda: self.imager.of_closed(store))
        if closed is None:
            for hear in self._hear_nothing:
                hear(store)
        return closed

    def _put_tiny(self, group: list[Snapshot]) -> Packed:
        if len(group) == 1:
            return [(group[0].store, snapshots.put(self.bucket, group[0], _nonce()))]
        return put_pack(self.bucket, group, self._clock_ms(), _nonce())

    async def _publish(self, versions: Packed) -> None:
        if not versions:
            return
        outcomes = await self.publisher.publish(versions)
        for tenant in {store.tenant for store, _ in versions}:
            self._places_away.over(tenant)
        logger.info("tier.published server=%s stores=%d", self._server, len(versions))
        for store, version in versions:
            if outcomes[store] is Published.DELETED:
                logger.warning("store.snapshot_of_deleted store=%s key=%s", store, version.key)
                continue
            if outcomes[store] is Published.COLLECTED:
                # It took longer than the collector waits, or a clock is far behind.
                logger.warning("store.snapshot_collected store=%s key=%s", store, version.key)
                self._missed[store] = True
                continue
            self.counts.snapshots += outcomes[store] is Published.NEWEST
            opened = self._open_stores.find(store)
            if opened is not None:
                self._snapshotted[store] = Extent(version.revision, version.count, version.bytes)
            for hear in self._hear_published:
                hear(store, version)


def _nonce() -> str:
    return secrets.token_hex(8)
