"""Jobs that make data go from a store for good: a whole store, or one message or entry of it.

    store      delete it (`deleting.py`)
    value      copy the file ──▶ scrub the copy ──▶ place it, under a new epoch (`replacing.py`)

Both end with an epoch. Whatever owners of that epoch or earlier ones wrote of the store is void,
and may be removed wherever it is: `erasure.py` does that, on every server. So an erasure has no
state of its own. One that was interrupted, at any step, is continued by asking again.
"""

from __future__ import annotations

import logging

from holdfast.persist.jobs.deleting import DeletionJobs
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.replacing import StoreReplacement
from holdfast.protocol.errors import NotFoundError
from holdfast.protocol.names import StoreId

logger = logging.getLogger("holdfast.persist")


class PurgeJobs:
    """The purges of one incarnation."""

    def __init__(self, deletions: DeletionJobs, replacement: StoreReplacement) -> None:
        self._deletions = deletions
        self._replacement = replacement

    async def store(self, store: StoreId) -> Report:
        """Delete a store, unless that was done before. Raises NotFoundError if there never was
        one."""
        try:
            report = await self._deletions.delete(store)
        except NotFoundError:
            buried = await self._deletions.buried(store)
            if not buried:
                raise
            report = {"epoch": buried}
        return {"found": 0, "snapshots": 0, "files": 0, "table": "", **report}

    async def value(self, store: StoreId, place: int | str) -> Report:
        """Purge the message of a seq, or the entry of a key, and what deletes have left in the
        file. Raises NotFoundError without the store; a value that is gone is purged all the same,
        because earlier states have it."""
        was_there, report = await self._replacement.replaced(store, lambda file: file.scrub(place))
        logger.info("store.purged store=%s epoch=%d", store, report["epoch"])
        return {**report, "found": int(was_there)}
