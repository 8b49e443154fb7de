"""The log reaper: removes the logs of dead incarnations.

A dead incarnation's log is needed until each store in it has been taken over: before its first
answer, the new owner applies what the file lacks and makes it durable. So the reaper resolves each
store that the log mentions and asks the owner for its head. When every owner has answered, the log,
the fence file and the folder are removed. The reaper works over the wire like any client, in small
batches, so that unused stores add nothing to the failover itself.

A store that was taken over stays so: whoever owns it later starts from a file that has the log's
changes. So the reaper asks for each store until it is answered once, and no more, whatever happens
to the requests for others. Otherwise a log of many stores would go only after a pass without any
lost message, and each pass would open all of its stores again.

Each dead log costs every later takeover and start a look at it. So those of few stores go within a
second or two: a server that is killed again and again leaves no pile of them.

The server that has claimed this work reaps for all dead servers. A lock beside the incarnations
keeps reapers of earlier versions out. One that is stopped for long, and then removes what it was
about to remove, does no harm: by then every store in it was taken over.
A damaged store keeps its log, which may be all that is left of it. A damaged log is kept, and so is
the folder of a missing one, as the evidence. Once an operator has accepted the loss, it is reaped
like any other, and its remains go to quarantine.

A life that ended before the coordinator heard of it is fenced by the next life of the same
server, which has the server's lock and is registered. That life also removes what an interrupted
removal left behind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.owners import Owners
from holdfast.persist.recovery.takeover import DeadLog, DeadLogs
from holdfast.persist.tier.claims import Claimed
from holdfast.protocol.errors import AlreadyRunningError, HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.commit_log import segments
from holdfast.shared_fs.disk.dead_incarnation import (
    let_go,
    log_is_missing,
    loss_is_accepted,
    quarantine_log,
)
from holdfast.shared_fs.disk.fence import fence, is_open

logger = logging.getLogger("holdfast.persist")

#: What a small pass takes over of one log.
_FEW_STORES: Final = 32


class LogReaper:
    """The reaper of one running incarnation."""

    def __init__(self, life: Incarnation, dead_logs: DeadLogs, owners: Owners) -> None:
        """`life` is the caller's own: it is registered and has the server's lock."""
        self._server = life.server
        self._incarnation = life.id
        self._owners = owners
        self._disk = life.disk
        self._layout = life.layout
        self._dead_logs = dead_logs
        self._clock_ms = life.clock_ms
        #: The incarnations whose logs were tried.
        self._tried: set[str] = set()
        #: By incarnation: the stores that its log mentions and that were taken over since.
        self._taken_over: dict[str, set[StoreId]] = {}
        self._waiting = Trouble(logger, "log.reap_waits")

    def end_unknown_lives(self) -> None:
        """Fence earlier lives of this server that were never registered and so never answered
        anything. Remove the remains of lives without a log. Raises StorageFailedError."""
        disk, layout, server = self._disk, self._layout, self._server
        for earlier in disk.folders(layout.server(server)):
            if earlier >= self._incarnation:
                # This also skips the files beside the incarnations: their names do not
                # start with a digit.
                continue
            path = layout.fence(server, earlier)
            if segments(disk, layout.log(server, earlier)):
                if is_open(disk, path):
                    fence(disk, path)
            elif not log_is_missing(disk, layout, server, earlier) or loss_is_accepted(
                disk, layout, server, earlier
            ):
                let_go(disk, layout, server, earlier)

    async def run_small_pass(self, claim: Claimed) -> None:
        """Try to reap the known dead logs of few stores that were not tried before, and that no
        other server has reaped since they were read."""
        few = [
            log
            for log in self._dead_logs.logs()
            if len(log.records) <= _FEW_STORES
            and log.incarnation not in self._tried
            and self._disk.exists(self._layout.incarnation(log.server, log.incarnation))
        ]
        await self._try(few, claim)

    async def run_pass(self, claim: Claimed) -> None:
        """Try to reap every known dead log. After an error, a later pass tries again."""
        logs = self._dead_logs.logs()
        known = {log.incarnation for log in logs}
        self._tried &= known
        for reaped in self._taken_over.keys() - known:
            del self._taken_over[reaped]
        await self._try(logs, claim)

    async def _try(self, logs: Sequence[DeadLog], claim: Claimed) -> None:
        for log in logs:
            self._tried.add(log.incarnation)
            if log.is_short:
                continue
            server, incarnation = log.server, log.incarnation
            try:
                lock = self._disk.lock(self._layout.server(server) / "reaper", "the log reaper")
            except AlreadyRunningError:
                continue
            try:
                await self._reap(log, claim)
            except HoldfastError as error:
                self._waiting.note(
                    "server=%s incarnation=%s reason=%s", server, incarnation, error, of=incarnation
                )
            else:
                self._waiting.over(incarnation)
            finally:
                lock.release()

    async def _reap(self, log: DeadLog, claim: Claimed) -> None:
        server, incarnation = log.server, log.incarnation
        taken_over = self._taken_over.setdefault(incarnation, set())
        waiting = [store for store in log.records if store not in taken_over]
        async for store, _ in self._owners.each_taken_over(waiting):
            taken_over.add(store)
        claim.check()
        if log.problem:
            quarantine_log(
                self._disk,
                self._layout,
                server,
                incarnation,
                reason=f"the log {log.problem}",
                time=self._clock_ms(),
            )
        let_go(self._disk, self._layout, server, incarnation)
        logger.info(
            "log.reaped server=%s incarnation=%s stores=%d", server, incarnation, len(log.records)
        )
