"""The reaper of logs in the bucket: removes the slots of dead incarnations that no store needs.

A slot is needed until each store in it has a snapshot beyond it. For stores that have none, the
reaper asks their owners, which bring them up to date and snapshot them. Any server may reap for any
other: what another server has removed is simply no longer there. Fences stay (`bucket_log.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs, fence_the_dead, needed_by
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.owners import Owners
from holdfast.persist.store.open_stores import OpenStores
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.bucket_log import fence_log
from holdfast.shared_fs.snapshots.manifest import open_manifests

logger = logging.getLogger("holdfast.persist")

#: Each pass lists the bucket, and little of what it shows could be handled sooner.
_PASS_SECONDS: Final = 60.0


class BucketReaper:
    """The reaper of one running incarnation."""

    def __init__(
        self,
        bucket: Bucket,
        life: Incarnation,
        owners: Owners,
        open_stores: OpenStores,
        request_snapshots: Callable[[Sequence[StoreId]], object],
        is_dead: Callable[[str, str], bool],
        dead_logs: BucketDeadLogs | None = None,
    ) -> None:
        """`is_dead` tells if an incarnation has ended although its log has no fence. Without
        `dead_logs`, each pass reads them anew."""
        self._bucket = bucket
        self._server = life.server
        self._incarnation = life.id
        self._run_in_thread = life.run_in_thread
        self._owners = owners
        self._open_stores = open_stores
        self._request_snapshots = request_snapshots
        self._is_dead = is_dead
        self._dead_logs = dead_logs
        self._mishaps = Mishaps(logger)
        self._failing = Trouble(logger, "log.reap_failed")

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            await asyncio.sleep(_PASS_SECONDS)
            try:
                await self.run_pass()
            except HoldfastError as error:
                # The logs stay until a later pass.
                self._failing.note("server=%s reason=%s", self._server, error)
            except Exception as error:  # noqa: BLE001 (a bug in one pass ends no server)
                self._mishaps.note("log.reap_failed", self._server, error)
            else:
                self._failing.over()

    async def run_pass(self) -> None:
        """Remove the slots that no store needs, and request snapshots of the other stores.
        Raises HoldfastError."""
        needing: list[StoreId] = await self._run_in_thread(self._remove)
        if needing:
            await self._owners.take_over(needing)
            opened = [store for store in needing if self._open_stores.find(store) is not None]
            self._request_snapshots(opened)

    def _remove(self) -> list[StoreId]:
        fence_the_dead(self._bucket, self._incarnation, self._is_dead)
        dead_logs = self._dead_logs or BucketDeadLogs(self._bucket, self._incarnation)
        dead_logs.refresh()
        for server, incarnation in dead_logs.half_fenced:
            # The server that began to fence it may be dead too. The next pass reads the logs that
            # are finished now.
            if self._is_dead(server, incarnation):
                fence_log(self._bucket, server, incarnation)
        return dead_logs.remove_needless(partial(needed_by, open_manifests(self._bucket)))
