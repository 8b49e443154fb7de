"""The reaper of logs in the bucket: removes the slots of dead incarnations that no store needs.

A slot is needed until each store in it has a snapshot beyond it. For stores that have none, the
reaper asks their owners, which bring them up to date and snapshot them. The server that has claimed
this work reaps for all. Two at once would do no harm: what another server has removed is simply no
longer there. Fences stay (`bucket_log.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs, fence_the_dead, needed_by
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.owners import Owners
from holdfast.persist.recovery.takeover import DeadLog
from holdfast.persist.tier.claims import Claims
from holdfast.protocol.errors import FencedError, HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.work.cold_work import REAP
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
        claims: Claims,
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
        self._claims = claims
        self._is_dead = is_dead
        self._dead_logs = dead_logs
        self._mishaps = Mishaps(logger)
        self._failing = Trouble(logger, "log.reap_failed")
        self._waiting = Trouble(logger, "log.reap_waits")

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            await asyncio.sleep(_PASS_SECONDS)
            try:
                with self._claims.doing(REAP) as mine:
                    for claim in mine.values():
                        await self.run_pass(claim.check)
            except FencedError:
                raise
            except HoldfastError as error:
                # The logs stay until a later pass.
                self._failing.note("server=%s reason=%s", self._server, error)
            except Exception as error:  # noqa: BLE001 (a bug in one pass ends no server)
                self._mishaps.note("log.reap_failed", self._server, error)
            else:
                self._failing.over()

    async def run_pass(self, check: Callable[[], None] = lambda: None) -> None:
        """Remove the slots that no store needs, and request snapshots of the other stores. `check`
        is called before each step, and raises if it may not be made. Raises HoldfastError."""
        needing: list[StoreId] = await self._run_in_thread(partial(self._remove, check))
        if needing:
            await self._have_snapshots(needing)

    async def _have_snapshots(self, stores: list[StoreId]) -> None:
        """Request snapshots of stores. One that cannot be opened, or an owner that does not answer,
        holds up no other: else the logs of all would grow behind one damaged store."""

        def refused(store: StoreId, error: HoldfastError) -> None:
            self._waiting.note("store=%s reason=%s", store, error, of=store)

        failure = None
        for owner, mine in (await self._owners.take_over_each(stores, refused)).items():
            for store in mine:
                self._waiting.over(store)
            try:
                await self._owners.request_snapshots({owner: mine})
            except HoldfastError as error:
                failure = error
        if failure is not None:
            raise failure

    def _remove(self, check: Callable[[], None]) -> list[StoreId]:
        manifests = open_manifests(self._bucket)

        def needed(log: DeadLog) -> list[StoreId]:
            stores = needed_by(manifests, log)
            check()
            return stores

        check()
        fence_the_dead(self._bucket, self._incarnation, self._is_dead)
        dead_logs = self._dead_logs or BucketDeadLogs(self._bucket, self._incarnation)
        dead_logs.refresh()
        for server, incarnation in dead_logs.half_fenced:
            # The server that began to fence it may be dead too. The next pass reads the logs that
            # are finished now.
            if self._is_dead(server, incarnation):
                fence_log(self._bucket, server, incarnation)
        return dead_logs.remove_needless(needed)
