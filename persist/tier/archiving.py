"""Archiving: messages that an export has written to its table leave the file of their store.

    manifest's mark ──▶ drafts of blocks ──▶ read back from the table ──▶ a change ──▶ pages given
    back

A store allows it by `archive_after_seconds`. Open stores are looked at now and then; an unused
store goes cold as a whole and needs no archiving. Invariants:

- A message leaves only after its block was read back from a committed version of the table: each
  message by revision, time, size and checksum, and all of them by the digest of values and headers.
- It leaves by a change in the log, in the store's order, and only appended messages ever leave. A
  message that was set again or deleted while its block was read back is not part of the block when
  the change is applied.
- Reading back may be the work of a server with the role `archive` (`persist/archive_reading/`), and
  changes nothing. Only the owner, who has the digest, decides and changes.
- If the table lacks something or differs, archiving of that store stops and logs an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.persist.archive_reading.archive_access import ArchiveAccess
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol.errors import FencedError, HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import ArchiveMark
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchiveDraft, digest_of

logger = logging.getLogger("holdfast.persist")

#: How many blocks are drafted at once: 16 MiB of messages are read, and a few MiB of what is known
#: about them are kept.
_DRAFTS_AT_ONCE: Final = 16
#: How often a store is skipped after a look that moved nothing: each look asks the bucket.
_LOOKS_PASSED_OVER: Final = 10


class Archiver:
    """Moves messages of one incarnation's open stores to the archive."""

    def __init__(
        self,
        archive: ArchiveAccess,
        *,
        manifests: Callable[[], Manifests],
        open_stores: OpenStores,
        pipeline: Pipeline,
        checkpointer: Checkpointer,
        run_in_thread: RunInThread,
        clock_ms: Callable[[], int],
        look_seconds: float,
    ) -> None:
        """`run_in_thread` is for work that waits for the bucket or the table. `look_seconds` is how
        often the stores are looked at."""
        self._archive = archive
        self._manifests = manifests
        self._open_stores = open_stores
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self._look_seconds = look_seconds
        self._passed_over: dict[StoreId, int] = {}
        #: Messages that this incarnation has archived.
        self.archived_count = 0
        self._mishaps = Mishaps(logger)

    async def run(self) -> None:
        """Look at the stores until cancelled. FencedError ends the incarnation."""
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.run_pass()

    async def run_pass(self) -> None:
        """Archive what may be archived, of every open store."""
        stores = [store for store in self._open_stores.stores() if self._may(store)]
        known = self._passed_over
        self._passed_over = {store.id: known[store.id] for store in stores if store.id in known}
        for store in stores:
            left = self._passed_over.get(store.id, 0)
            if left:
                self._passed_over[store.id] = left - 1
                continue
            try:
                moved = await self._archive_store(store)
            except FencedError:
                raise
            except HoldfastError as error:
                logger.warning("store.archive_failed store=%s reason=%s", store.id, error)
                moved = False
            except Exception as error:  # noqa: BLE001 (a bug over one store ends no server)
                self._mishaps.note("store.archive_failed", store.id, error)
                moved = False
            if not moved:
                self._passed_over[store.id] = _LOOKS_PASSED_OVER

    def _may(self, store: Store) -> bool:
        return (
            store.is_stream
            and store.standing is not Standing.UNWRITTEN
            and store.file is not None
            and not store.file.in_memory
            and store.state is OpenState.SERVING
            and store.config.archive_after_seconds is not None
        )

    async def _archive_store(self, store: Store) -> bool:
        """Return whether anything was moved. Raises StorageError, UnavailableError."""
        after_seconds = store.config.archive_after_seconds
        if store.file is None or after_seconds is None or store.state is not OpenState.SERVING:
            return False
        before = self._clock_ms() - int(after_seconds * 1000)
        oldest = store.file.oldest_time()
        if oldest is None or oldest > before:
            # The bucket was not asked, so the next look need not be skipped.
            return True
        entry = await self._run_in_thread(lambda: self._manifests().find(store.id))
        mark = entry.archive if entry is not None else None
        rewritten = store.file.encryption.state.rewritten
        if mark is None or (rewritten is not None and mark.epoch < rewritten.epoch):
            # What was exported before the values were encrypted anew is not what the file has.
            return False
        self._archive.look_again(mark.table)
        count = 0
        while moved := await self._move(store, mark, before):
            count += moved
        if count:
            logger.info("store.archived store=%s messages=%d", store.id, count)
            await self._checkpointer.with_durable(store, lambda file: file.shrink())
        return count > 0

    async def _move(self, store: Store, mark: ArchiveMark, before: int) -> int:
        """Move some blocks, and return how many messages they had."""
        drafts = await self._checkpointer.with_durable(
            store,
            lambda file: file.archivable(
                mark.table, revision=mark.revision, time=before, max_blocks=_DRAFTS_AT_ONCE
            ),
        )
        count = 0
        for draft in drafts or ():
            if not await self._is_archived(draft):
                logger.error("store.archive_differs store=%s end_seq=%d", store.id, draft.end_seq)
                break
            if not await self._pipeline.archive(store, draft.end_seq, mark.table):
                break
            count += len(draft.messages)
            self.archived_count += len(draft.messages)
        return count

    async def _is_archived(self, draft: ArchiveDraft) -> bool:
        bodies = await self._archive.bodies(draft.messages)

        def work() -> bool:
            rows = (
                (one.seq, one.revision, one.time, value, pack_headers(headers))
                for one in draft.messages
                for value, headers in (bodies[one.seq, one.revision],)
            )
            return digest_of(rows) == draft.digest

        return bool(await self._run_in_thread(work))
