"""Bugs planted on purpose, each one line of the shipped code, to show that crashing at every step
finds them.

Each is a context manager, named after what is done wrong while it is entered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs
from holdfast.persist.jobs import deleting, erasure
from holdfast.persist.shared_disk.job_results import FileTombstones
from holdfast.persist.tier.cooling import Cooler
from holdfast.protocol.changes import CHANGE_DELETE_MESSAGES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.erasure.packs import ErasedObjects
from holdfast.shared_fs.snapshots import collecting, repacking
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX, encode_pack
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry, Tombstone
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.simulation.simulated_disk import HostDisk


@contextlib.contextmanager
def unlink_before_it_is_recorded() -> Iterator[None]:
    """A file leaves before the coordinator knows that its store is cold."""
    open_exact, unlink = Cooler._open_exact, Cooler._unlink

    def open_and_unlink(cooler: Cooler, candidate: Any) -> StoreFile | None:
        file = open_exact(cooler, candidate)
        if file is not None:
            unlink(cooler, [(candidate, file)])
        return file

    with (
        patch.object(Cooler, "_open_exact", open_and_unlink),
        patch.object(Cooler, "_unlink", lambda cooler, files: None),
    ):
        yield


@contextlib.contextmanager
def restore_to_the_old_revision() -> Iterator[None]:
    """A restored store goes on from the revision that it went back to."""

    def go_on(file: StoreFile, *_: Any, **__: Any) -> None: ...

    with patch.object(StoreFile, "go_on_from", go_on):
        yield


@contextlib.contextmanager
def place_it_bit_by_bit() -> Iterator[None]:
    """A restored file is copied to its place, not renamed."""
    place = HostDisk.place

    def copy(disk: HostDisk, source: Path, target: Path) -> None:
        if target.suffix != ".db":
            return place(disk, source, target)
        content = bytes(disk.open_file(source).content)
        disk.write_file(target, disk.create_file(target), 0, content)
        return disk.remove(source)

    with patch.object(HostDisk, "place", copy):
        yield


@contextlib.contextmanager
def remove_before_the_tombstone() -> Iterator[None]:
    """A deletion removes the snapshots, and then takes them out of the manifest."""
    bury = deleting.bury

    def remove_and_bury(
        manifests: Manifests, store: StoreId, tombstone: Tombstone
    ) -> list[SnapshotVersion]:
        entry = manifests.find(store)
        dropped = list(entry.versions) if entry is not None else []
        for version in dropped:
            manifests.bucket.delete(version.key)
        return bury(manifests, store, tombstone)

    with patch.object(deleting, "bury", remove_and_bury):
        yield


@contextlib.contextmanager
def delete_without_a_tombstone() -> Iterator[None]:
    """A deletion leaves nothing behind that voids the files which it has yet to remove."""
    with patch.object(FileTombstones, "put", lambda *_: None):
        yield


@contextlib.contextmanager
def name_before_it_is_put() -> Iterator[None]:
    """Repacking names the new pack, and then puts it."""
    update = Manifests.update
    late: list[Callable[[], object]] = []

    def put_later(bucket: Any, live: Sequence[Any], now_ms: int, nonce: str) -> Any:
        key = f"{PACK_PREFIX}{live[0].store.tenant}/{now_ms:013d}-{nonce}"
        body, versions = encode_pack(key, live)
        late.append(lambda: bucket.put_new(versions[0][1].key, body, {}))
        return versions

    def update_and_put(manifests: Manifests, *arguments: Any) -> Any:
        shard = update(manifests, *arguments)
        while late:
            late.pop()()
        return shard

    with (
        patch.object(repacking, "put_pack", put_later),
        patch.object(Manifests, "update", update_and_put),
    ):
        yield


@contextlib.contextmanager
def collect_whatever_is_marked() -> Iterator[None]:
    """The collector forgets to ask whether a manifest names what it removes."""
    with (
        patch.object(collecting._Named, "__contains__", lambda named, key: False),
        patch.object(StoreEntry, "names", lambda *_: False),
    ):
        yield


@contextlib.contextmanager
def leave_what_is_marked() -> Iterator[None]:
    """The collector marks, and never removes."""
    with patch.object(collecting.Collector, "_remove_objects", lambda *_, **__: None):
        yield


@contextlib.contextmanager
def leave_a_half_fenced_log() -> Iterator[None]:
    """Who finds a log that is marked and has no fence waits for whoever marked it, for ever."""
    refresh = BucketDeadLogs.refresh

    def refresh_and_forget(dead_logs: BucketDeadLogs) -> None:
        refresh(dead_logs)
        dead_logs.half_fenced = []

    with patch.object(BucketDeadLogs, "refresh", refresh_and_forget):
        yield


@contextlib.contextmanager
def leave_a_copy_and_say_nothing() -> Iterator[None]:
    """A purge leaves packs and snapshots where they are, and its search does not look there."""

    def elsewhere(bucket: Any, sought: Any, looked: Any = None) -> Iterator[Any]:
        return iter(())

    with (
        patch.object(erasure, "erase_objects", lambda *_: ErasedObjects()),
        patch.object(erasure, "remains_in_bucket", elsewhere),
    ):
        yield


@contextlib.contextmanager
def delete_without_a_scrub() -> Iterator[None]:
    """A purged message leaves its row, and nothing else."""

    def scrub(file: StoreFile, place: int | str) -> bool:
        meta = file.meta
        change = [CHANGE_DELETE_MESSAGES, [place]]
        file.apply([AppliedBatch(meta.revision, meta.time, [change])])
        return True

    with patch.object(StoreFile, "scrub", scrub):
        yield


#: Each bug, and an operation in which it does harm.
PLANTED: Final[dict[str, tuple[Callable[[], AbstractContextManager[None]], str]]] = {
    bug.__name__: (bug, operation)
    for bug, operation in (
        (unlink_before_it_is_recorded, "go_cold"),
        (restore_to_the_old_revision, "restore"),
        (place_it_bit_by_bit, "restore"),
        (remove_before_the_tombstone, "delete"),
        (delete_without_a_tombstone, "delete"),
        (name_before_it_is_put, "collect"),
        (collect_whatever_is_marked, "collect"),
        (leave_what_is_marked, "collect"),
        (leave_a_half_fenced_log, "reap_slots"),
        (leave_a_copy_and_say_nothing, "purge_value"),
        (delete_without_a_scrub, "purge_value"),
    )
}
