"""How a coordinator starts without its state file, and why nothing is lost by that.

- Ownership is unknown, so nobody may continue as an owner: every incarnation found on disk is
  fenced before the new file appears. The servers' supervisors restart them.
- Epochs never go back, because the store files and logs contain them. A server that finds an epoch
  at or above the one it was granted reports it (`known_epoch`) and is granted a higher one.
- A survey of the files finds the stores again, in the background and in slices. Each store is
  recorded as durable and without an owner, so it is listed, and its file is missed if it
  disappears. The exception is a file whose bytes are still those of a new one: nothing was ever
  checkpointed into it, the logs still hold the whole store, and what a power cut leaves of the file
  means nothing. A store that is requested before the survey reaches it works all the same. An
  interrupted survey starts over with the next coordinator.
- Cold stores have no file. They are found in the bucket's manifests, after the
  files. Until a coordinator that knows the bucket has done that, servers look in the
  bucket before they create a new store.

The state is lost if the file is missing although there is a past, if the file is older than what
was last committed (`progress.py`), or if another coordinator has it open and it cannot be copied
(`state_copy.py`); an old file goes to quarantine. A damaged file is refused,
unless the operator has it replaced: then it goes to quarantine and counts as missing.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.coordinator.state.state_copy import copy_state
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.coordinator.state.state_format import is_missing
from holdfast.coordinator.state.state_names import (
    FIRST_NAME,
    current_state,
    remove_earlier_states,
    state_path,
)
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import InvalidNameError, StorageError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant
from holdfast.shared_fs.authority.found_files import state_of_file
from holdfast.shared_fs.authority.progress import OldStateError
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.fences import Fences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import HASH_FOLDER, Layout
from holdfast.shared_fs.snapshots.manifest import open_manifests

logger = logging.getLogger("holdfast.coordinator")

_STORE_FILE: Final = re.compile(r"(.+)\.(stream|kv)\.([0-9]{1,9})\.db")
#: The subfolder of the quarantine for state files. No tenant can have this name.
_QUARANTINE: Final = "_coordinator"
#: Stores recorded in one transaction.
_WRITTEN_STORES: Final = 8192


class SurveyedStore(NamedTuple):
    """A store that has a file.

    `generation` is the file's; no owner's epoch was below it. `state` is what the file tells.
    """

    store: StoreId
    generation: int
    state: StoreState


def has_past(layout: Layout, disk: Disk, fences: Fences) -> bool:
    """Tell whether a coordinator or a store was here before.

    Ask before taking the lock, which leaves its file behind.
    Servers that started before the coordinator do not count as a past.
    """
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
    terms: TermFile | None = None,
) -> StateFile:
    """Open the state file; start with an empty one if it is lost or out of date.

    If `terms` has begun the term already, another coordinator may have the file open, so it is
    copied. Otherwise the caller holds the lock. Raises as `open_state_file` does.
    """
    terms = terms or TermFile(disk, layout.coordinator / "term")
    found = path = current_state(layout.coordinator, disk)
    is_copied = True
    if terms.term:
        had_past, path = True, state_path(layout.coordinator, terms.term)
        is_copied = copy_state(found, path, disk, layout.coordinator_progress, terms.term)
    state = _open_or_replace(
        layout, disk, fences, path, terms, had_past, replace_damaged, now_ms
    )
    try:
        if not is_copied:
            _set_aside(layout, disk, now_ms, found, ("", "-wal", "-journal"))
        # The state has this term now, and no earlier file can have it.
        remove_earlier_states(state.path, disk)
    except StorageError as error:
        logger.warning("coordinator.earlier_state_left reason=%s", error)
    return state


def _open_or_replace(
    layout: Layout,
    disk: Disk,
    fences: Fences,
    path: Path,
    terms: TermFile,
    had_past: bool,
    replace_damaged: bool,
    now_ms: int,
) -> StateFile:
    progress = layout.coordinator_progress
    try:
        if is_missing(path, disk):
            if had_past:
                _fence_everyone(fences)
            state = open_state_file(
                path,
                disk,
                surveying=disk.exists(layout.root / "stores"),
                progress=progress,
                terms=terms,
            )
            with state.transaction():
                if not state.cluster.surveying():
                    # A new cluster may be given a bucket that has stores of an earlier one.
                    state.cluster.set_surveying(False)
            return state
        state = open_state_file(path, disk, progress=progress, terms=terms)
        if replace_damaged:
            state.check_content()
        return state
    except OldStateError as error:
        logger.error("coordinator.state_old reason=%s", error)
        # Fence before moving the files: a start that is interrupted here finds the file old again,
        # with or without its WAL.
        _fence_everyone(fences)
        _set_aside(layout, disk, now_ms, path, ("-wal", "-journal", ""))
    except StoreDamagedError as error:
        if not replace_damaged:
            raise
        logger.error("coordinator.state_damaged reason=%s", error)
        # Move the file before its WAL. If this is interrupted, the next start refuses a WAL alone,
        # but it might open a file alone as it was before the last changes.
        _set_aside(layout, disk, now_ms, path, ("", "-wal", "-journal"))
        _fence_everyone(fences)
    return open_state_file(path, disk, surveying=True, progress=progress, terms=terms)


def _set_aside(
    layout: Layout, disk: Disk, now_ms: int, path: Path, suffixes: Iterable[str]
) -> None:
    """Move the files of a replaced state to quarantine, in this order."""
    folder = layout.quarantine / _QUARANTINE / f"state.db.{now_ms}"
    logger.error("coordinator.state_replaced folder=%s", folder)
    disk.make_directory(folder)
    for suffix in suffixes:
        part = path.with_name(f"{path.name}{suffix}")
        if disk.exists(part):
            # Under its first name, which whoever looks for it knows.
            disk.rename(part, folder / f"{FIRST_NAME}{suffix}")


def stores_on_disk(layout: Layout, disk: Disk) -> Iterator[SurveyedStore]:
    """Yield each store that has a file, once for each generation.

    Foreign files are skipped, and so are files of deleted stores whose removal was interrupted.
    Blocking; lists one folder at a time. Raises StorageFailedError.
    """
    root = layout.root / "stores"
    for tenant in disk.folders(root):
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
                        state = state_of_file(disk, store, folder / name)
                        yield SurveyedStore(store, generation, state)
                else:
                    logger.warning("coordinator.survey_stranger path=%s", folder / name)


def stores_in(bucket: Bucket) -> Iterator[tuple[StoreId, int, int | None]]:
    """Yield each store of the bucket: (store, epoch, revision) of its newest snapshot.

    A deleted store comes with its last epoch and None. Blocking; reads one manifest at a time.
    Raises StorageError.
    """
    for store, entry in open_manifests(bucket).entries():
        if entry.newest is not None:
            yield store, entry.newest.epoch, entry.newest.revision
        elif entry.deleted is not None:
            yield store, entry.deleted.epoch, None


def _is_deleted(layout: Layout, disk: Disk, store: StoreId) -> bool:
    """Tell whether all files of a store belong to a deleted store. Raises StorageFailedError."""
    try:
        return not layout.generations(disk, store)
    except StoreDamagedError:
        # Do not decide here: opening the store fails and says why.
        return False


def _store_of(tenant: str, file_name: str) -> tuple[StoreId, int] | None:
    """Return the store of a file and the file's generation; None for a foreign name."""
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
    """Write the state file of a cluster whose data is all in the bucket.

    `stores` is what `stores_in` yields; each is recorded as cold and without an
    owner. No state file may exist yet.

    Raises AlreadyRunningError, StoreDamagedError, StorageFailedError.
    """
    disk.make_directory(layout.coordinator)
    lock = disk.lock(layout.coordinator / "lock", "a coordinator")
    try:
        state = open_state_file(
            state_path(layout.coordinator),
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
            # Last, so that an interrupted write leaves a state whose stores will be surveyed.
            with state.transaction():
                state.cluster.set_surveying(False)
                state.cluster.set_manifests_surveyed()
        finally:
            state.close()
    finally:
        lock.release()
