"""Lets a draft take effect as the state of its store: the last step of a restore, a purge and a
fork. A fork that shares a snapshot has no draft.

The numbers of the draft continue beyond all that anybody has seen, and its epoch is new, so
followers begin anew and log records of earlier epochs are void (invariants 2 and 4 of the design).
The store is closed meanwhile (`closing.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.storage_mode import Placement
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile


class Continuation(NamedTuple):
    """The numbers from which a draft continues: nobody has seen any at or above them."""

    epoch: int
    revision: int
    last_seq: int
    outcomes: list[WriterOutcome]
    #: The number of the data key with which all values of the draft were encrypted anew; 0 if they
    #: were not.
    key: int = 0


class DraftPlacing:
    """Places the drafts of one incarnation."""

    def __init__(self, life: Incarnation, placement: Placement) -> None:
        self._life = life
        self._placement = placement

    async def put(self, store: StoreId, draft: Path, onward: Continuation) -> int:
        """Replace a closed store's file by a draft, and return its new revision. Raises
        StorageError, UnavailableError."""
        revision: int = await self._life.run_in_thread(lambda: self._finish(store, draft, onward))
        await self._placement.announce(store, onward.epoch, revision)
        return revision

    async def share(self, store: StoreId, version: SnapshotVersion) -> None:
        """Let the published version of a store that has no file take effect. Raises
        UnavailableError."""
        await self._placement.announce_cold(store, version)

    def _finish(self, store: StoreId, draft: Path, onward: Continuation) -> int:
        life = self._life
        file = StoreFile.open(draft, store, disk=life.disk)
        try:
            file.apply([], onward.outcomes)
            file.go_on_from(
                max(onward.revision, file.meta.revision + 1),
                time=life.clock_ms(),
                last_seq=onward.last_seq,
            )
            file.take(onward.epoch, life.server, life.id)
            if onward.key:
                file.note_rewritten(onward.key, onward.epoch)
            revision = file.meta.revision
        finally:
            file.close()
        life.gate.check()
        self._placement.place(store, draft, onward.epoch)
        return revision
