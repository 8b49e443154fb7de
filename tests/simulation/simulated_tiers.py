"""The tiers of a simulated cluster: policies so short that stores go cold and come back all the
time.

Puts what the shipped code takes from the machine (threads, files' times, randomness) in terms of
the simulation, for the time of a run; and, after it, takes the shared files away and has the
cluster rebuilt from its bucket.
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch

from holdfast.coordinator.state.lost_state import write_state
from holdfast.persist.bucket_log import log_uploader as slot_putter
from holdfast.persist.bucket_log import stored_writer
from holdfast.persist.bucket_only import bucket_mode as bucket_ground
from holdfast.persist.bucket_only import bucket_reaper
from holdfast.persist.recovery.rebuilding import epochs_of, fold_logs
from holdfast.persist.shared_disk import cold_images
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier import claims, cooling, garbage
from holdfast.persist.tier.cooling import Cooler, Resting
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.limits import MAX_COLD_READ_BYTES, MIB
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.cluster_id import give_new_cluster_id, write_cluster_id
from holdfast.shared_fs.bucket_log import bucket_log
from holdfast.shared_fs.bucket_log.bucket_log import fence_every_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.inspection.inspection import _sort_out
from holdfast.shared_fs.snapshots import snapshot
from holdfast.shared_fs.snapshots.collecting import Collector
from holdfast.shared_fs.snapshots.garbage import forget_epoch
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from tests.simulation.simulated_bucket import LATE_SECONDS
from tests.simulation.simulated_files import Directory, Inode, SimulatedFileSystem
from tests.simulation.simulated_threads import SimulatedEvent

#: Longer than anybody reads without a pin, in the worst weather.
_MIN_AGE_SECONDS: Final = 8.0


def short_policy(chance: random.Random) -> TierPolicy:
    """Return a policy by which everything happens many times within seconds."""
    return TierPolicy(
        snapshot_seconds=chance.choice((0.2, 1.0, 3.0)),
        change_ratio=chance.choice((0.1, 0.5)),
        min_change_bytes=chance.choice((500, 4000, MIB)),
        cold_after_seconds=chance.choice((0.3, 1.0, 2.0)),
        keep=KeepPolicy(count=chance.choice((1, 2, 8)), days=7.0),
        max_lag_seconds=chance.choice((1.0, 3.0)),
    )


@contextlib.contextmanager
def in_the_simulation(
    chance: random.Random,
    files: SimulatedFileSystem,
    *,
    clock: Callable[[], float],
    run_in_thread: Callable[[], RunInThread],
) -> Iterator[None]:
    """Let what uses the bucket run in the simulation; `run_in_thread` is that of the process that
    asks for it."""

    class Thread:
        def __init__(self) -> None:
            self._run_in_thread = run_in_thread()

        def __call__(self, function: Callable[[], Any]) -> Any:
            return self._run_in_thread(function)

        def stop(self) -> None:
            """It ends with its process."""

    def collector(
        bucket: Bucket, *, give_up: Callable[[], bool], epoch: int, **_: Any
    ) -> Collector:
        return Collector(
            bucket,
            # What reads without a pin rests on the minimum age, here of seconds and not of a day.
            clock_ms=lambda: int(clock() * 1000),
            min_age_seconds=_MIN_AGE_SECONDS,
            give_up=give_up,
            epoch=epoch,
        )

    def token_hex(count: int) -> str:
        return f"{chance.getrandbits(8 * count):0{2 * count}x}"

    places: list[tuple[Any, str, Any]] = [
        (secrets, "token_hex", token_hex),
        (stored_writer, "BucketThread", Thread),
        (bucket_ground, "BucketThread", Thread),
        (slot_putter, "threading", types.SimpleNamespace(Event=SimulatedEvent)),
        (slot_putter, "time", types.SimpleNamespace(monotonic=clock)),
        (bucket_log, "ThreadPoolExecutor", OneByOne),
        (cooling, "resting_files", functools.partial(resting_files, files)),
        (Cooler, "_free_ratio", lambda cooler: 1.0),
        (garbage, "Collector", collector),
        # Limits, so small that a short run reaches them.
        (cooling, "_FORGOTTEN_SECONDS", chance.choice((2.0, 5.0))),
        (cooling, "_ABANDONED_SECONDS", 5.0),
        (cooling, "_GROUP_STORES", chance.choice((1, 64))),
        (garbage, "COLLECT_SECONDS", chance.choice((1.0, 4.0))),
        (claims, "CLAIM_SECONDS", chance.choice((0.5, 3.0))),
        (bucket_reaper, "_PASS_SECONDS", chance.choice((2.0, 60.0))),
        (stored_writer, "_RETIRE_SECONDS", chance.choice((0.3, 3.0))),
        (stored_writer, "_LATE_PUT_SECONDS", LATE_SECONDS),
        (stored_writer, "MAX_LOG_OBJECTS", chance.choice((3, 20, 1000))),
        (cold_images, "MAX_COLD_READ_BYTES", chance.choice((0, MAX_COLD_READ_BYTES))),
        (snapshot, "TINY_SNAPSHOT_BYTES", chance.choice((0, 1500, 65536))),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in places:
            stack.enter_context(patch.object(owner, name, value))
        yield


def rebuild(bucket: Bucket, root: Path, disk: Disk, clock_ms: Callable[[], int]) -> list[str]:
    """Make a new cluster at `root` out of the bucket, as `holdfast rebuild` does; return what is
    wrong with it."""
    layout = open_layout(root, disk)
    manifests = open_manifests(bucket)
    cluster = give_new_cluster_id(bucket)
    fence_every_log(bucket)
    forget_epoch(bucket)
    drafts = root.with_name("drafts")
    disk.make_directory(drafts)
    folded = fold_logs(
        manifests,
        drafts,
        clock_ms=clock_ms,
        keep=KeepPolicy(count=1 << 20, days=1e5),
        disk=disk,
    )
    write_state(layout, disk, epochs_of(manifests, folded.epochs))
    write_cluster_id(disk, layout, cluster)
    problems = [f"{store.name} after a rebuild: {why}" for store, why in folded.problems.items()]
    return problems + [f"a rebuild finds the log {log} damaged" for log in folded.damaged]


class OneByOne:
    """Stands where a pool of threads would: one after the other, in the caller's."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[[Any], Any], values: Any) -> Iterator[Any]:
        return map(function, values)


def resting_files(
    files: SimulatedFileSystem,
    layout: Layout,
    on_draft: Callable[[Path, str], None] = lambda path, incarnation: None,
    on_temporary: Callable[[Path, int], None] = lambda path, changed: None,
    *,
    with_open: bool = False,
) -> Iterator[Resting]:
    """As `cooling.resting_files`, of the simulated files."""
    stores = layout.root / "stores"
    for tenant in _names(files, stores):
        for hashed in _names(files, stores / tenant):
            folder = stores / tenant / hashed
            found = _sort_out(layout, tenant, folder, _names(files, folder), 1.0)
            for draft, incarnation in found.drafts:
                on_draft(draft, incarnation)
            for temporary in found.temporaries:
                inode = files.find(temporary)
                assert isinstance(inode, Inode)
                on_temporary(temporary, inode.changed_ms)
            for each in found.stores:
                inode = files.find(each.path)
                wal = files.find(each.path.with_name(each.path.name + "-wal"))
                if not isinstance(inode, Inode) or (wal is not None and not with_open):
                    continue
                changed = inode.changed_ms
                if isinstance(wal, Inode):
                    changed = max(changed, wal.changed_ms)
                yield Resting(each.store, changed, wal is None)


def _names(files: SimulatedFileSystem, path: Path) -> list[str]:
    node = files.find(path)
    return sorted(node.entries) if isinstance(node, Directory) else []
