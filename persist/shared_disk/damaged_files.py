"""Files that are damaged, or older than what is known of their store.

A file that a crash left unfinished, before it was ever durable, is removed: the logs hold all of
it. Any other file moves to quarantine, and the error says what is missing. The store is never
opened as an older or empty one instead, because the logs alone do not tell how far a durable file
went. A cold store comes back as its snapshot.
"""

from __future__ import annotations

import logging
from pathlib import Path

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.shared_disk.evidence import Evidence
from holdfast.persist.shared_disk.new_files import wal_of
from holdfast.persist.tier.cold_stores import StoreIsColdError
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.quarantine import quarantine
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")


class DamagedFiles:
    """Handles the damaged files that one incarnation finds."""

    def __init__(self, life: Incarnation, evidence: Evidence) -> None:
        self._life = life
        self._evidence = evidence
        #: How many files were removed or set aside.
        self.moved_count = 0

    def take_away(self, store: StoreId, path: Path, grant: Grant, error: StoreDamagedError) -> None:
        """Remove or quarantine a file that cannot be opened. Raises StoreDamagedError unless the
        logs hold all of the store, StoreIsColdError if its snapshot takes its place."""
        if grant.cold is not None and grant.state == StoreState.DURABLE:
            self._set_aside(store, path, error)
            raise StoreIsColdError(store=str(store)) from error
        if self._evidence.logs_hold_all(store, grant):
            self._remove_unfinished(path, error)
            return
        self._set_aside(store, path, error)
        self._evidence.require_beginning(store, grant.state, cause=error)

    def refuse_older_than_snapshot(self, file: StoreFile, grant: Grant) -> None:
        """Quarantine an open file that is older than the store was when it went cold. Raises
        StoreIsColdError then."""
        revision = file.meta.revision
        if revision >= (grant.cold or 0):
            return
        file.close()
        name = str(file.store)
        reason = f"it has revision {revision}, but went cold at {grant.cold}"
        self._set_aside(file.store, file.path, StoreDamagedError(store=name, reason=reason))
        raise StoreIsColdError(store=name)

    def _remove_unfinished(self, path: Path, error: StoreDamagedError) -> None:
        """Remove a file that a crash left before it was ever durable."""
        life = self._life
        life.gate.check()
        self.moved_count += 1
        life.disk.remove(path)
        life.disk.remove(wal_of(path))
        life.disk.sync_directory(path.parent)
        logger.warning("store.unfinished path=%s reason=%s", path.name, error)

    def _set_aside(self, store: StoreId, path: Path, error: StoreDamagedError) -> None:
        life = self._life
        # List these before the gate is checked: so no file of a next owner is among them.
        generations = life.layout.generations(life.disk, store)
        others = [life.layout.store(store, generation) for generation in generations]
        life.gate.check()
        self.moved_count += 1
        folder = quarantine(
            life.disk,
            life.layout,
            store,
            path,
            reason=str(error),
            time=life.clock_ms(),
            server=life.server,
            others=[other for other in others if other != path],
        )
        logger.error("store.quarantined store=%s folder=%s reason=%s", store, folder.name, error)
