"""When the state file is lost: how a coordinator starts with an empty one and nothing is lost by
it.

- Who owned what is not known any more, so nobody may go on as an owner: every incarnation that is
  found on disk is fenced before the new file appears. Their supervisors start them again.
- Epochs never go back: they are in the store files and logs. A server that finds an epoch at or
  above the one that it was granted says so (`known_epoch`) and is granted a higher one.
- The stores are found again by a survey of their files, in the background and in slices. Each is
  recorded as durable and without an owner, so it is listed, and noticed if its file goes missing.
  But for a file that is to the byte as it was made: nothing was ever checkpointed into it, so the
  logs still hold all of the store, and what a power cut leaves of the file says nothing.
  A store that is asked for before its turn works all the same. A survey that is cut short begins
  anew with the next coordinator.
- Cold stores have no file: they are found in the bucket's manifests, after the files. Until that is
  done, by a coordinator that knows the bucket, servers look there before they begin a new store.

Lost is a file that is missing although there is a past, and one that is older than what was last
committed (`progress.py`): it goes to quarantine. One that is damaged is refused, unless the
operator has it replaced: then it goes to quarantine and counts as missing.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.coordinator.state.progress import OldStateError
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.coordinator.state.state_format import is_missing
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import InvalidNameError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.fences import Fences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import HASH_FOLDER, Layout
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.store_file.store_image import empty_store_image

logger = logging.getLogger("holdfast.coordinator")

_STORE_FILE: Final = re.compile(r"(.+)\.(stream|kv)\.([0-9]{1,9})\.db")
#: Where state files go, in the folder of the quarantined: no tenant is named so.
_QUARANTINE: Final = "_coordinator"
#: Stores recorded in one transaction.
_WRITTEN_STORES: Final = 8192


class SurveyedStore(NamedTuple):
    """A store that has a file: the file's generation, which no owner's epoch was below, and what
    the file says of its state."""

    store: StoreId
    generation: int
    state: StoreState


def has_past(layout: Layout, disk: Disk, fences: Fences) -> bool:
    """Tell if there was a coordinator or a store here before. To be asked before the lock is taken,
    which leaves its file behind: servers that started first are no past."""
    folder = layout.coordinator
    paths = (folder / "lock", folder / "term", layout.root / "stores")
    return any(disk.exists(path) for path in paths) or fences.tell_of_a_past()


def open_state(
    layout: Layout,
    disk: Disk,
    fences: Fences,
    *,
    had_past: bool,
    replace_damaged: bool,
    now_ms: int,
) -> StateFile:
    """Open the state file, or start with an empty one if it is lost, or older than it was.

    The caller holds the coordinator's lock. Raises as `open_state_file` does.
    """
    path = layout.coordinator / "state.db"
    progress = layout.coordinator_progress
    try:
        if is_missing(path, disk):
            if had_past:
                _fence_everyone(fences)
            state = open_state_file(
                path, disk, surveying=disk.exists(layout.root / "stores"), progress=progress
            )
            with state.transaction():
                if not state.cluster.surveying():
                    # A new cluster may find a bucket that has stores of the one before.
                    state.cluster.set_surveying(False)
            return state
        state = open_state_file(path, disk, progress=progress)
        if replace_damaged:
            state.check_content()
        return state
    except OldStateError as error:
        logger.error("coordinator.state_old reason=%s", error)
        # Before it is moved: a start that is cut short finds it old again, and so it is also
        # without its WAL.
        _fence_everyone(fences)
        _set_aside(layout, disk, now_ms, ("state.db-wal", "state.db-journal", "state.db"))
    except StoreDamagedError as error:
        if not replace_damaged:
            raise
        logger.error("coordinator.state_damaged reason=%s", error)
        # The file first: with its WAL alone the next start refuses, where with the file alone it
        # might open it as it was before the last changes.
        _set_aside(layout, disk, now_ms, ("state.db", "state.db-wal", "state.db-journal"))
        _fence_everyone(fences)
    return open_state_file(path, disk, surveying=True, progress=progress)


def _set_aside(layout: Layout, disk: Disk, now_ms: int, names: Iterable[str]) -> None:
    """Move the files of a state that is replaced to quarantine, in this order."""
    folder = layout.quarantine / _QUARANTINE / f"state.db.{now_ms}"
    logger.error("coordinator.state_replaced folder=%s", folder)
    disk.make_directory(folder)
    for name in names:
        if disk.exists(layout.coordinator / name):
            disk.rename(layout.coordinator / name, folder / name)


def stores_on_disk(layout: Layout, disk: Disk) -> Iterator[SurveyedStore]:
    """Yield each store that has a file, once for each generation. What is not ours is passed over,
    and so are files of deleted stores, whose removal was cut short.

    Blocking; lists one folder at a time. Raises StorageFailedError.
    """
    root = layout.root / "stores"
    for tenant in disk.names(root):
        try:
            check_tenant(tenant)
        except InvalidNameError:
            logger.warning("coordinator.survey_stranger path=%s", root / tenant)
            continue
        for folder_name in filter(HASH_FOLDER.fullmatch, disk.names(root / tenant)):
            folder = root / tenant / folder_name
            names = disk.names(folder)
            has_graves = any(name.endswith(".deleted") for name in names)
            for name in names:
                found = _store_of(tenant, name)
                if found is None:
                    continue
                store, generation = found
                if layout.store(store).parent == folder:
                    if not (has_graves and _is_deleted(layout, disk, store)):
                        state = _state_of(disk, store, folder / name)
                        yield SurveyedStore(store, generation, state)
                else:
                    logger.warning("coordinator.survey_stranger path=%s", folder / name)


def stores_in(bucket: Bucket) -> Iterator[tuple[StoreId, int, int | None]]:
    """Yield each store that has a snapshot in a bucket, with epoch and revision of the newest, and
    each that was deleted, with its last epoch and None.

    Blocking; reads one manifest at a time. Raises StorageError.
    """
    for store, entry in open_manifests(bucket).entries():
        if entry.newest is not None:
            yield store, entry.newest.epoch, entry.newest.revision
        elif entry.deleted is not None:
            yield store, entry.deleted.epoch, None


def _is_deleted(layout: Layout, disk: Disk, store: StoreId) -> bool:
    """Tell if all files of a store are of one that was deleted. Raises StorageFailedError."""
    try:
        return not layout.generations(disk, store)
    except StoreDamagedError:
        # Whoever opens it is refused, and hears why.
        return False


def _state_of(disk: Disk, store: StoreId, path: Path) -> StoreState:
    """Tell if a file may ever have been durable: of one that was not, everything is in its WAL and
    in the logs. The first checkpoint brings the meta row, and a row stays. Raises
    StorageFailedError."""
    made = empty_store_image(StoreKind(store.kind))
    try:
        if disk.size_bytes(path) == len(made) and disk.read_patiently(path) == made:
            return StoreState.CREATED
    except FileNotFoundError:
        # Its owner put another in its place, or it was removed: that it was there is known.
        pass
    return StoreState.DURABLE


def _store_of(tenant: str, file_name: str) -> tuple[StoreId, int] | None:
    """Return the store that a file is of, and its generation."""
    match = _STORE_FILE.fullmatch(file_name)
    if match is None:
        return None
    try:
        store = StoreId(tenant, StoreKind[match[2].upper()], check_store(match[1]))
    except InvalidNameError:
        return None
    return store, int(match[3])


def _fence_everyone(fences: Fences) -> None:
    incarnations = fences.incarnations()
    if incarnations:
        logger.warning(
            "coordinator.state_missing servers=%d", len({server for server, _ in incarnations})
        )
    for server, incarnation in incarnations:
        fences.fence(server, incarnation)


def write_state(
    layout: Layout, disk: Disk, stores: Iterable[tuple[StoreId, int, int | None]]
) -> None:
    """Make the state file of a cluster of which the bucket has everything: stores as `stores_in`
    yields them, cold, and nobody's. Nothing may be there yet.

    Raises AlreadyRunningError, StoreDamagedError, StorageFailedError.
    """
    disk.make_directory(layout.coordinator)
    lock = disk.lock(layout.coordinator / "lock", "a coordinator")
    try:
        state = open_state_file(
            layout.coordinator / "state.db",
            disk,
            surveying=True,
            progress=layout.coordinator_progress,
        )
        try:
            found = iter(stores)
            while some := tuple(itertools.islice(found, _WRITTEN_STORES)):
                with state.transaction():
                    for store, epoch, revision in some:
                        if revision is None:
                            state.stores.found_deleted(store, epoch)
                        else:
                            state.stores.found_cold(store, epoch, revision)
            # Last: a state that was cut short has its stores surveyed.
            with state.transaction():
                state.cluster.set_surveying(False)
                state.cluster.set_manifests_surveyed()
        finally:
            state.close()
    finally:
        lock.release()
