"""The places in a server where requests wait, and the moment when all of them are empty.

    for its turn        inbox         arrived, and in no tick
    for its store       open stores   the coordinator is asked for it, or its file is being opened
    for the archive     archive reads
    for the disk        prefetcher    a read whose part of a file is not in memory
    for a sync          pipeline      the tick is written, and not durable
    for the bucket      stored writer a write of level `stored`
    for the gate        releaser      durable, and about to leave; a read waits for its slice

Every request leaves through the releaser, and the log may have a tick that nobody waits for. So
the places can only become empty at the end of a round of the releaser or of a sync: that is
when this looks.
"""

from __future__ import annotations

import asyncio

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.prefetch.prefetching import Prefetcher
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.releasing import Releaser


class WaitingPlaces:
    """The places of one incarnation. Groups that wait for a leased file are not counted: the holder
    of the lease decides about them."""

    def __init__(
        self,
        inbox: Inbox,
        open_stores: OpenStores,
        archive_reads: ArchiveReads,
        prefetcher: Prefetcher,
        progress: LogProgress,
        stored: StoredWriter | None,
        releaser: Releaser,
    ) -> None:
        self._inbox = inbox
        self._open_stores = open_stores
        self._archive_reads = archive_reads
        self._prefetcher = prefetcher
        self._progress = progress
        self._stored = stored
        self._releaser = releaser

    @property
    def occupied(self) -> list[str]:
        """The names of the places where something waits now."""
        waits = {
            "a turn": not self._inbox.is_answered,
            "a store": self._open_stores.waiting_count > 0,
            "the archive": self._archive_reads.waiting_count > 0,
            "the disk": self._prefetcher.waiting_count > 0,
            "a sync": not self._progress.is_synced,
            "the bucket": self._stored is not None and not self._stored.idle,
            "the gate": not self._releaser.idle,
        }
        return [what for what, is_waited_for in waits.items() if is_waited_for]

    async def emptied(self) -> None:
        """Return once nothing waits anywhere."""
        while self.occupied:
            # Take both events before their tasks begin, so that neither can be missed.
            ends = self._releaser.next_rest, self._progress.next_sync
            looks = [asyncio.ensure_future(end.wait()) for end in ends]
            try:
                await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for look in looks:
                    look.cancel()
