"""The life of a coordinator: it stands by, becomes the active one, and ends.

    stand by   `standing_by.py`: wait for the lock, or until the active coordinator cannot work, and
               listen to the heartbeats (`standby_heartbeats.py`) meanwhile
    start      refuse to start beside another cluster, open the state file
    serve      `active_term.py`
    end        stopped, or deposed by a later term, or deaf: close the state file, release the lock

The lock is held from before the state file is opened until after it is closed, so that a standby
waits. What keeps two coordinators from contradicting each other is the term (`term.py`). Whether a
server is alive is decided in `membership.py`, and who owns a store in `assignment.py`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.coordinator.active_term import ActiveTerm
from holdfast.coordinator.answer_questions import answer_questions
from holdfast.coordinator.background_tasks import BackgroundTasks, RunBlocking
from holdfast.coordinator.decisions.rebalancing import Balance
from holdfast.coordinator.decisions.standby_heartbeats import StandbyHeartbeats
from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.heartbeat_feed import HeartbeatFeed
from holdfast.coordinator.peers.other_clusters import OtherClusters
from holdfast.coordinator.standing_by import StandingBy
from holdfast.coordinator.state.questions import StandbyQuestions
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.storage import Storage
from holdfast.coordinator.storage_use import StorageUse
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.authority.term import TermFile

logger = logging.getLogger("holdfast.coordinator")


#: How long a coordinator that begins to serve waits for the bucket.
_CLAIM_SECONDS: Final = 2.0


def _tell_late_claim(claim: asyncio.Task[None]) -> None:
    if not claim.cancelled() and (error := claim.exception()) is not None:
        logger.warning("coordinator.bucket_not_claimed reason=%s", error)


def _monotonic() -> float:
    return asyncio.get_running_loop().time()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What operators decide."""

    #: Move a damaged state file aside, and find the stores by their files.
    replace_damaged_state: bool = False
    balance: Balance = field(default_factory=Balance)


class Coordinator:
    """One coordinator. Call `run` once."""

    def __init__(
        self,
        bus: Bus,
        storage: Storage,
        *,
        subjects: Subjects = Subjects(),  # noqa: B008
        standby: bool = False,
        options: CoordinatorOptions = CoordinatorOptions(),
        clock_ms: Callable[[], int] = _wall_clock_ms,
        run_blocking: RunBlocking = asyncio.to_thread,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`new_id` makes the id that distinguishes this coordinator's messages to itself from
        others'."""
        own_id = new_id()
        self._life = Life(
            id=own_id,
            bus=bus,
            subjects=subjects,
            storage=storage,
            clock_ms=clock_ms,
            background_tasks=BackgroundTasks(run_blocking),
            wakeup=Wakeup(),
            mishaps=Mishaps(logger),
            storage_use=StorageUse(_monotonic),
            statistics=Statistics(PartKind.STANDBY, own_id, clock_ms()),
        )
        self._standby = standby
        self._options = options
        #: While another coordinator is the active one.
        self._standing_by: StandingBy | None = None

    @property
    def statistics(self) -> Statistics:
        """What this coordinator counts."""
        return self._life.statistics

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serve until `stop`. Set `ready` once requests are answered.

        Raises AlreadyRunningError (a standby waits instead), OtherClusterError, DeposedError,
        StoreDamagedError, NewerFormatError, StorageFailedError, ConnectionFailedError.
        """
        life = self._life
        heard = StandbyHeartbeats(life.now())
        feed = HeartbeatFeed(life, heard)
        life.bus.on_reconnect(feed.on_connected)
        heartbeats = await life.bus.subscribe(life.subjects.heartbeat(), feed.on_message)
        try:
            blocking, storage = life.background_tasks.blocking, life.storage
            had_past = await blocking(storage.has_past)
            await blocking(storage.make_folder)
            questions = StandbyQuestions(storage.disk, storage.layout.coordinator, life.id)
            self._standing_by = StandingBy(life, feed, heard, questions)
            tenure = await self._standing_by.tenure(self._standby)
            self._standing_by = None
            if tenure is None:
                return
            answering = asyncio.create_task(answer_questions(life, feed, questions))
            try:
                others = OtherClusters(life, await blocking(storage.cluster_id))
                feed.ignore(others)
                await others.refuse()
                await self._claim_bucket(others.cluster)
                # A coordinator that held the lock meanwhile may have left a past
                # that `has_past` did not see.
                terms = tenure.succeeded or TermFile(storage.disk, storage.term_path, life.id)
                state = await blocking(self._open_state, had_past or tenure.had_waited, terms)
                try:
                    term = ActiveTerm(life, others.cluster, feed, state, self._options.balance)
                    await term.serve(heard, ready)
                finally:
                    await blocking(state.close)
            finally:
                answering.cancel()
                await asyncio.wait([answering])
                tenure.lock.release()
        finally:
            await heartbeats.unsubscribe()
        if not answering.cancelled():
            answering.result()
        logger.info("coordinator.stopped term=%s", state.term)

    def why_unready(self) -> str:
        """Return why this coordinator neither serves nor could take over, before it has begun to
        serve. A standby that could take over is ready: whoever starts coordinators one after the
        other waits for it."""
        return "it starts" if self._standing_by is None else self._standing_by.why_unready()

    def stop(self) -> None:
        """Ask `run` to finish the current requests, close the state file and return."""
        self._life.wakeup.stop()

    async def _claim_bucket(self, cluster: str) -> None:
        """Keep other clusters out of the bucket. One that does not answer soon holds up no
        takeover: each server looks itself before it writes. Raises OtherClustersBucketError,
        StoreDamagedError, BucketError."""
        life = self._life
        claim = asyncio.create_task(
            life.background_tasks.blocking(life.storage.claim_bucket, cluster)
        )
        await asyncio.wait([claim], timeout=_CLAIM_SECONDS)
        if claim.done():
            claim.result()
        else:
            logger.warning("coordinator.bucket_not_claimed reason=it does not answer")
            claim.add_done_callback(_tell_late_claim)

    def _open_state(self, had_past: bool, terms: TermFile) -> StateFile:
        return self._life.storage.open_state(
            had_past=had_past,
            replace_damaged=self._options.replace_damaged_state,
            now_ms=self._life.clock_ms(),
            terms=terms,
        )
