"""A tenant's own bucket that is away holds up the snapshots of that tenant alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.tier.cooling import ColdCandidate, Cooler
from holdfast.persist.tier.snapshotter import Snapshotter
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.persist.tier.tier_pools import TierPools
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_capabilities import S3_WAYS
from holdfast.shared_fs.bucket.bucket_errors import PlaceUnavailableError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.snapshots.cluster_bucket import PAUSE_SECONDS, ClusterBucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.placing import give_bucket
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_bucket import FaultyBackend
from tests.support.held_claims import held_claims
from tests.support.write_path_parts import a_life


async def at_once(function: Callable[[], Any], /) -> Any:
    return function()


class World:
    """Closed stores of two tenants, one of which has a bucket of its own."""

    def __init__(self, root: Path) -> None:
        self.own = FaultyBackend(MemoryBackend())
        self.now = 0.0
        self.surroundings = Surroundings(clock=lambda: self.now, sleep=lambda seconds: None)
        self.bucket = ClusterBucket(
            MemoryBackend(),
            surroundings=self.surroundings,
            ways=S3_WAYS,
            open_place=lambda url: Bucket(
                self.own, retry=Retry(max_tries=1), surroundings=self.surroundings
            ),
        )
        self.manifests = open_manifests(self.bucket)
        give_bucket(self.bucket, "acme", "s3://own", open_place=self.bucket.open_place)
        life = a_life(open_layout(root, Disk()), server="s1")
        self.layout = life.layout
        life.disk.make_directory(self.layout.incarnation("s1", life.id))
        create_fence(life.disk, self.layout.fence("s1", life.id))
        checkpointer: Any = SimpleNamespace(on_closed=lambda hear: None)
        self.snapshotter = Snapshotter(
            self.bucket,
            TierPolicy(),
            life,
            TierPools(at_once),
            OpenStores(),
            checkpointer,
            LifePhase("s1"),
        )
        nobody: Any = SimpleNamespace(sweeps=())
        self.cooler = Cooler(self.snapshotter, life, nobody, at_once, held_claims(life), nobody)

    def close(self, tenant: str, name: str) -> StoreId:
        """Make a store whose file is closed, and waits for its snapshot."""
        store = StoreId(tenant, StoreKind.STREAM, name)
        path = self.layout.store(store, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = StoreFile.create(path, store, time=1)
        file.apply([AppliedBatch(0, 1, [[CHANGE_SET_MESSAGE, 1, b"v"]])])
        file.checkpoint()
        file.close()
        self.snapshotter.add(store)
        return store

    def is_published(self, store: StoreId) -> bool:
        entry = self.manifests.find(store)
        return entry is not None and entry.newest is not None


async def test_a_tenant_s_bucket_that_is_away_holds_up_that_tenant_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    ours = [world.close("acme", name) for name in ("a", "b")]
    theirs = [world.close("zeta", name) for name in ("a", "b")]
    world.own.down = True
    await world.snapshotter.run_pass()
    assert [world.is_published(store) for store in theirs + ours] == [True, True, False, False]
    assert world.snapshotter.backlog == len(ours)
    assert "tier.tenant_bucket_away tenant=acme" in caplog.text
    # Somebody who waits for a snapshot hears why there is none.
    with pytest.raises(PlaceUnavailableError):
        await world.snapshotter.snapshot(ours)
    world.own.down = False
    world.now += PAUSE_SECONDS
    await world.snapshotter.run_pass()
    assert all(world.is_published(store) for store in ours)
    assert world.snapshotter.backlog == 0


async def test_a_store_whose_snapshot_cannot_be_read_now_stays_hot(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = world.close("acme", "a")
    await world.snapshotter.run_pass()
    entry = world.manifests.find(store)
    assert entry is not None
    assert entry.newest is not None
    world.own.down = True
    assert await world.cooler.cool([ColdCandidate(store, 1, entry.newest)]) == 0
    assert world.layout.store(store, 1).exists()
    assert world.is_published(store)
