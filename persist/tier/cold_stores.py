"""Cold stores on their way back from the bucket.

A cold store has no file. Its first use fetches its image and verifies it, in memory or, if it is
large, in a draft beside the place of its file. Opening (`opening.py`) then takes it from here, with
a fresh grant. Invariants:

- A bounded number of images is fetched at once, in the order of requests and in threads of their
  own. Hot stores open meanwhile, and a bucket that is away delays nobody else: requests for a cold
  store are refused after one failed call, and clients ask again.
- A fetched image has at least the revision at which the store went cold: nothing older, and nothing
  empty, ever takes its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.write_path.inbox import Inbox
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import HoldfastError, StoreDamagedError, UnavailableError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketUnavailableError,
    ObjectDamagedError,
    ObjectMissingError,
    PlaceUnavailableError,
)
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.repacking import fetch_moved
from holdfast.shared_fs.snapshots.snapshot import Fetched, Near
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion

logger = logging.getLogger("holdfast.persist")

#: How many images are fetched at once.
PARALLEL_FETCHES: Final = 8
#: How long requests leave the bucket alone after a failed call.
_AWAY_SECONDS: Final = 1.0
#: How long an image waits to be opened before it is dropped. Meanwhile the
#: coordinator is asked again.
_TAKE_SECONDS: Final = 30.0


class StoreIsColdError(HoldfastError):
    """The store must be fetched from the bucket first. Never leaves the server."""

    code = "store_is_cold"
    template = "{store} is in the bucket"


class Brought(NamedTuple):
    """The image from the bucket. None if the bucket has nothing, for a store that
    need not be there."""

    image: Fetched | None


class ColdStores:
    """Fetches cold stores for one incarnation."""

    def __init__(
        self,
        bucket: Bucket,
        life: Incarnation,
        open_stores: OpenStores,
        inbox: Inbox,
        run_in_thread: RunInThread,
        near: NearReads,
    ) -> None:
        self._bucket = bucket
        self._disk = life.disk
        self._layout = life.layout
        self._incarnation = life.id
        self._open_stores = open_stores
        self._inbox = inbox
        self._run_in_thread = run_in_thread
        self._near = near
        self._manifests: Manifests | None = None
        self._slots = asyncio.Semaphore(PARALLEL_FETCHES)
        self._brought: dict[StoreId, tuple[Brought, asyncio.Event]] = {}
        self._away_until = float("-inf")
        #: How many stores wait for the bucket.
        self.waiting_count = 0
        self._waiting = Trouble(logger, "store.cold_waits")
        self._failing = Trouble(logger, "store.cold_failed", logging.ERROR)

    def take(self, store: StoreId, grant: Grant) -> Brought | None:
        """Return what was fetched for a store, once, if it suits this grant."""
        found = self._brought.pop(store, None)
        if found is None:
            return None
        brought, taken = found
        taken.set()
        image = brought.image
        if image is None:
            # The bucket had nothing, which says little of a store that is durable by now.
            return brought if grant.state != StoreState.DURABLE else None
        if image.version.revision < (grant.cold or 0):
            image.drop(self._disk)
            return None
        return brought

    async def bring(self, wanted: WantedStore, grant: Grant) -> None:
        """Fetch a store and have it opened, or refuse the operations that wait for it."""
        loop = asyncio.get_running_loop()
        store = wanted.store
        self.waiting_count += 1
        try:
            async with self._slots:
                if loop.time() < self._away_until:
                    raise UnavailableError(reason=f"{store} is cold, and the bucket is away")
                brought = await self._fetched(store, grant)
                self._waiting.over()
                self._failing.over(store)
                taken = asyncio.Event()
                self._brought[store] = brought, taken
                self._open_stores.ask_again([wanted])
                # Keep the slot until then: images in memory that are not open yet
                # must be bounded too.
                try:
                    async with asyncio.timeout(_TAKE_SECONDS):
                        await taken.wait()
                finally:
                    self._drop(store, taken)
        except TimeoutError:
            # The coordinator refused or was silent, and that has been answered elsewhere.
            logger.info("store.not_taken store=%s", store)
        except PlaceUnavailableError as error:
            # The stores of other tenants are elsewhere.
            self._failing.note("store=%s reason=%s", store, error, of=store)
            self._refuse(store, UnavailableError(reason=f"{store} is cold: {error}"))
        except BucketUnavailableError as error:
            self._away_until = loop.time() + _AWAY_SECONDS
            self._waiting.note("store=%s reason=%s", store, error)
            self._refuse(store, UnavailableError(reason=f"{store} is cold: {error}"))
        except UnavailableError as error:
            self._refuse(store, error)
        except HoldfastError as error:
            self._failing.note("store=%s reason=%s", store, error, of=store)
            self._refuse(store, error)
        finally:
            self.waiting_count -= 1

    def _refuse(self, store: StoreId, error: HoldfastError) -> None:
        """Refuse the operations that wait for a store."""
        self.forget(store)
        self._inbox.refuse_waiting(self._open_stores.refused(store), error)

    def forget(self, store: StoreId) -> None:
        """Drop what was fetched for a store: nobody waits for it any more."""
        found = self._brought.get(store)
        if found is not None:
            found[1].set()

    def _drop(self, store: StoreId, taken: asyncio.Event) -> None:
        found = self._brought.get(store)
        if found is None or found[1] is not taken:
            return
        del self._brought[store]
        if found[0].image is not None:
            found[0].image.drop(self._disk)

    async def _fetched(self, store: StoreId, grant: Grant) -> Brought:
        """Fetch the newest good version. Raises StoreDamagedError, BucketError,
        StorageFailedError."""
        good: list[SnapshotVersion] = await self._run_in_thread(
            lambda: self._good_versions(store, grant)
        )
        if not good:
            return Brought(None)
        near = await self._near.read(good[0])
        try:
            brought: Brought = await self._run_in_thread(
                lambda: self._fetch(store, grant, good, near)
            )
            return brought
        finally:
            await self._near.used(good[0], near)

    def _good_versions(self, store: StoreId, grant: Grant) -> list[SnapshotVersion]:
        """Return the versions that the store may be opened from, the newest first; none if it need
        not be in the bucket. Blocking. Raises StoreDamagedError, BucketError."""
        if self._manifests is None:
            self._manifests = open_manifests(self._bucket)
        entry = self._manifests.find(store)
        least = grant.cold or 0
        good = [each for each in entry.versions if each.revision >= least] if entry else []
        if not good:
            if grant.state != StoreState.DURABLE:
                return []
            newest = entry.newest if entry is not None else None
            has = f"only revision {newest.revision}" if newest is not None else "nothing"
            if entry is not None and entry.deleted is not None:
                has = "a tombstone"
            reason = f"it went cold at revision {least}, but the bucket has {has}"
            raise StoreDamagedError(store=str(store), reason=reason)
        return good

    def _fetch(
        self,
        store: StoreId,
        grant: Grant,
        good: Sequence[SnapshotVersion],
        near: Near | None,
    ) -> Brought:
        """Fetch the newest of these versions that is whole. `near` is what a cache has of the
        first. Blocking. Raises as `_fetched`."""
        assert self._manifests is not None
        draft = self._draft(store, grant.epoch)
        problem: Exception | None = None
        for version in good:
            try:
                here = near if version is good[0] else None
                return Brought(fetch_moved(self._manifests, store, version, draft, here))
            except (ObjectDamagedError, ObjectMissingError, StoreDamagedError) as error:
                logger.error("store.snapshot_damaged key=%s reason=%s", version.key, error)
                problem = problem or error
        raise StoreDamagedError(store=str(store), reason=str(problem)) from problem

    def _draft(self, store: StoreId, epoch: int) -> Path:
        path = self._layout.store(store, epoch)
        self._disk.make_directory(path.parent)
        return path.with_name(f"{path.name}.{self._incarnation}")
