"""Reads that need the archive. They wait for it beside the write path, and then run again.

A read that meets archived messages is put aside, with a list of the values it lacks. Those are
fetched (`persist/archive_reading/`), and the read goes through the pipeline once more with them. So
it answers from the store as it is then, and neither the archive nor a server that reads it ever
answers for messages that were deleted or set meanwhile. Invariants:

- Waiting reads count as part of the pipeline's inbox, which bounds them. `PARALLEL_READS` of them
  are served at once.
- Readers who page on find what comes next fetched already (`archive_ahead.py`), and do not wait.
- If a value cannot be fetched, the read gets an error of its own kind, never an incomplete answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from holdfast.persist.archive_reading.archive_access import ArchiveAccess
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.prefetch.archive_ahead import ArchiveAhead
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.inbox import Inbox
from holdfast.protocol.errors import (
    ArchiveUnreadableError,
    HoldfastError,
    UnavailableError,
    internal_error,
)
from holdfast.protocol.limits import ARCHIVE_READ_SECONDS
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies

logger = logging.getLogger("holdfast.persist")

#: How many reads use the archive at once. Each holds some row groups in memory meanwhile.
PARALLEL_READS: Final = 4


class ArchiveReads:
    """The archive as the pipeline of one incarnation sees it."""

    def __init__(
        self, archive: ArchiveAccess | None, inbox: Inbox, life: Incarnation
    ) -> None:
        """`archive` is None if the server has no bucket."""
        self._archive = archive
        #: Pages that readers have not asked for yet.
        self._ahead = ArchiveAhead(archive, life) if archive is not None else None
        self._inbox = inbox
        self._queue: asyncio.Queue[tuple[Arrival, list[ArchivedMessage]]] = asyncio.Queue()
        #: How many reads are put aside.
        self.waiting_count = 0
        self._failing = Trouble(logger, "store.archive_read_failed")
        self._mishaps = Mishaps(logger)

    def want(self, arrival: Arrival, messages: list[ArchivedMessage]) -> None:
        """Fetch archived messages, then let the read run again."""
        if self._archive is None:
            reason = "it was started without a bucket"
            self._inbox.refuse_waiting(
                [arrival], ArchiveUnreadableError(store=str(arrival.store), reason=reason)
            )
            return
        self.waiting_count += 1
        self._queue.put_nowait((arrival, messages))

    def at_hand(self, store: Store, arrival: Arrival) -> Bodies | None:
        """Return the bodies that a read may use, None if there are none."""
        return arrival.archived if self._ahead is None else self._ahead.at_hand(
            store, arrival.archived
        )

    def has_read(self, store: Store, arrival: Arrival, results: list[Any]) -> None:
        """Note the results of a read of a stream that has archived messages."""
        if self._ahead is not None:
            operations, missed = arrival.group.operations, arrival.archived is not None
            self._ahead.has_read(store, operations, results, missed=missed)

    async def run(self) -> None:
        """Serve reads until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PARALLEL_READS):
                tasks.create_task(self._work())
            if self._archive is not None and self._ahead is not None:
                tasks.create_task(self._archive.kept_rows.run())
                tasks.create_task(self._ahead.run())

    async def _work(self) -> None:
        while True:
            arrival, messages = await self._queue.get()
            try:
                await self._bring(arrival, messages)
            finally:
                self.waiting_count -= 1

    async def _bring(self, arrival: Arrival, messages: list[ArchivedMessage]) -> None:
        ahead = self._ahead
        assert ahead is not None
        try:
            async with asyncio.timeout(ARCHIVE_READ_SECONDS):
                bodies = await ahead.bodies(arrival.store, messages)
        except TimeoutError:
            reason = f"the archive of {arrival.store} did not answer"
            self._inbox.refuse_waiting([arrival], UnavailableError(reason=reason))
        except HoldfastError as error:
            self._failing.note("store=%s reason=%s", arrival.store, error, of=arrival.store)
            self._inbox.refuse_waiting([arrival], error)
        except Exception as error:  # noqa: BLE001 (a bug over one read ends no server)
            self._mishaps.note("archive.read_failed", arrival.store, error)
            self._inbox.refuse_waiting([arrival], internal_error("a read of the archive", error))
        else:
            self._failing.over(arrival.store)
            # Keep what earlier tries fetched. Otherwise a page that moves on between two tries
            # would lack its beginning one time and its end the next.
            self._inbox.submit_again(
                [arrival._replace(archived={**(arrival.archived or {}), **bodies})]
            )
