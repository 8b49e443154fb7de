"""The threads of a server that wait for the bucket: a pool for each purpose."""

from __future__ import annotations

from typing import Final

from holdfast.persist.archive_reading.archive_server import PARALLEL_ASKS
from holdfast.persist.prefetch.archive_ahead import PARALLEL_AHEAD, PARALLEL_WARM
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.tier_threads import TierThreads
from holdfast.persist.tier.cold_stores import PARALLEL_FETCHES
from holdfast.persist.tier.publishing import PARALLEL_SHARDS
from holdfast.persist.write_path.archive_reads import PARALLEL_READS

_SNAPSHOT_THREADS: Final = 4
#: As many as may be fetched for one server.
_BLOCK_THREADS: Final = PARALLEL_FETCHES
#: So that what a read waits for never waits for what is read ahead.
_ARCHIVE_THREADS: Final = PARALLEL_READS + PARALLEL_AHEAD + PARALLEL_WARM
#: For two publishings at once: that of a pass, and that of snapshots that writes wait for.
_PUBLISH_THREADS: Final = 2 * PARALLEL_SHARDS


class TierPools:
    """The pools of one incarnation. Each starts with its first use."""

    def __init__(self, run_in_thread: RunInThread | None = None) -> None:
        """`run_in_thread`, if given, takes the place of all pools (in a simulation)."""
        self._made: list[TierThreads] = []
        self.snapshots = run_in_thread or self._pool("tier", _SNAPSHOT_THREADS)
        self.publishing = run_in_thread or self._pool("publish", _PUBLISH_THREADS)
        # Separate pools: foreground reads must not queue behind background work.
        self.cold_stores = run_in_thread or self._pool("cold", PARALLEL_FETCHES)
        self.blocks = run_in_thread or self._pool("blocks", _BLOCK_THREADS)
        self.archive = run_in_thread or self._pool("archive", _ARCHIVE_THREADS)
        self.asked_archive = run_in_thread or self._pool("asked", PARALLEL_ASKS)

    def stop(self) -> None:
        """End the threads once they have run what they were given."""
        for pool in self._made:
            pool.stop()

    def _pool(self, name: str, count: int) -> TierThreads:
        pool = TierThreads(name, count)
        self._made.append(pool)
        return pool
