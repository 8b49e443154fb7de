"""The time before a coordinator is the active one: it tries to take the lock, again and again.

A standby also takes over past the lock, when the active coordinator cannot work (`succession.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final, NamedTuple

from holdfast.coordinator.decisions.standby_heartbeats import StandbyHeartbeats
from holdfast.coordinator.decisions.succession import Succession, SuccessionStep
from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.heartbeat_feed import HeartbeatFeed
from holdfast.coordinator.state.questions import NO_ANSWER, StandbyQuestions
from holdfast.protocol.errors import AlreadyRunningError, StorageError
from holdfast.protocol.limits import SYNC_STALL_SECONDS
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.authority.term import TermFile, TermTakenError
from holdfast.shared_fs.disk.disk import LockFile

logger = logging.getLogger("holdfast.coordinator")

#: How often a standby tries to take the lock.
STANDBY_POLL_SECONDS: Final = 0.25
#: A standby that could not look at the lock for longer than this could not take over either: its
#: file system hangs, or it hears nothing.
_LATE_SECONDS: Final = SYNC_STALL_SECONDS


class Tenure(NamedTuple):
    """How a coordinator became the active one."""

    lock: LockFile
    #: Another coordinator had the lock meanwhile.
    had_waited: bool
    #: The term that has begun past the lock of another; None if the lock was free.
    succeeded: TermFile | None = None


class StandingBy:
    """The wait of one coordinator. Call `tenure` once."""

    def __init__(
        self, life: Life, feed: HeartbeatFeed, heard: StandbyHeartbeats, questions: StandbyQuestions
    ) -> None:
        self._life = life
        self._feed = feed
        self._heard = heard
        self._questions = questions
        self._succession = Succession(life.now())
        #: The last answer before the question that is out, and the term that it asks about.
        self._answer_before = NO_ANSWER
        self._asked_term = 0
        self._doubt = Trouble(logger, "coordinator.asking", logging.INFO)
        self._failing = Trouble(logger, "coordinator.succession_failed")
        #: When another coordinator was last found to have the lock.
        self._waited_at = -math.inf

    def why_unready(self) -> str:
        """Return why this coordinator could not take over now; nothing if it could."""
        late_seconds = self._life.now() - self._waited_at
        if self._waited_at == -math.inf:
            return "it starts"
        if late_seconds > _LATE_SECONDS:
            return f"it stands by, and could not look at the lock for {late_seconds:.0f} s"
        return ""

    async def tenure(self, standby: bool) -> Tenure | None:
        """Return once this coordinator is the active one; None if it was stopped first. Raises
        AlreadyRunningError unless it is a `standby`, ConnectionFailedError, StorageFailedError."""
        life = self._life
        waited = False
        self._feed.stand_by(self._succession)
        while not life.wakeup.stopping:
            try:
                return Tenure(await life.background_tasks.blocking(life.storage.lock), waited)
            except AlreadyRunningError as error:
                if not standby:
                    raise
                if not waited:
                    logger.info("coordinator.standing_by lock=%s", error.fields["path"])
            waited = True
            self._waited_at = life.now()
            await self._feed.prove_hearing()
            succeeded = await self._watch_the_active_one()
            if succeeded is not None:
                return succeeded
            try:
                async with asyncio.timeout(STANDBY_POLL_SECONDS):
                    await life.wakeup.stopped()
            except TimeoutError:
                continue
        return None

    async def _watch_the_active_one(self) -> Tenure | None:
        """Do what the present doubt asks for; return this coordinator's tenure if it took over."""
        life, succession = self._life, self._succession
        blocking = life.background_tasks.blocking
        if not life.bus.connected:
            return None
        try:
            if succession.is_asking:
                answer = await blocking(self._questions.last_answer)
                if answer != self._answer_before:
                    self._doubt.over()
                    succession.answered(life.now(), hears_servers=answer.hears_servers)
            match succession.next_step(life.now(), self._heard.proof.until):
                case SuccessionStep.ASK:
                    terms = TermFile(life.storage.disk, life.storage.term_path, life.id)
                    self._asked_term = await blocking(terms.highest)
                    self._answer_before = await blocking(self._questions.ask)
                    self._failing.over()
                    self._doubt.note("term=%d", self._asked_term)
                    succession.asked(life.now())
                case SuccessionStep.TAKE_OVER:
                    return await self._take_over()
        except StorageError as error:
            self._failing.note("reason=%s", error)
            succession.start_over(life.now())
        return None

    async def _take_over(self) -> Tenure | None:
        life = self._life
        blocking, storage = life.background_tasks.blocking, life.storage
        terms = TermFile(storage.disk, storage.term_path, life.id)
        silent_seconds = self._succession.silent_seconds(self._heard.proof.until)
        try:
            term = await blocking(terms.succeed, self._asked_term)
        except TermTakenError as error:
            logger.info("coordinator.succeeded_by_another reason=%s", error)
            self._succession.start_over(life.now())
            return None
        logger.warning(
            "coordinator.succeeding term=%d deposed=%d silent_seconds=%.1f",
            term,
            self._asked_term,
            silent_seconds,
        )
        return Tenure(await blocking(storage.lock_again, terms), had_waited=True, succeeded=terms)
