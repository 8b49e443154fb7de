"""The loop of an active coordinator: one transaction for all requests
that arrived since the last turn.

A turn first tells the membership what it must know, then executes the batch (`batch.py`), and only
then sends the replies, so no reply precedes the durable state that it reports. If the disk fails,
requests fail and the service continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.inbox import Asked, RequestInbox
from holdfast.coordinator.answering.proofs import Proofs
from holdfast.coordinator.answering.record_queue import RecordQueue
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.requests import (
    Drain,
    Prove,
    Register,
    ReleaseAll,
    Seal,
    SuspectRequest,
)
from holdfast.coordinator.answering.seals import Seals
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.decisions.events import DrainChanged, Released
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.life import Life
from holdfast.coordinator.membership_driver import MembershipDriver
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.access.audit_event import AuditAction, AuditOutcome
from holdfast.protocol.errors import HoldfastError


class RequestLoop:
    """Takes requests and records, executes them and answers."""

    def __init__(
        self,
        life: Life,
        state: StateFile,
        inbox: RequestInbox,
        records: RecordQueue,
        driver: MembershipDriver,
        replies: Replies,
        limits: TenantLimits,
    ) -> None:
        self._life = life
        self._state = state
        self._inbox = inbox
        self._records = records
        self._driver = driver
        self._replies = replies
        self._limits = limits
        self._proofs = Proofs(life, state, replies)
        self._seals = Seals(life, state, replies)

    def take_over(self, ended: Collection[tuple[str, str]]) -> None:
        """Start from the incarnations that earlier coordinators recorded as ended."""
        self._seals.take_over(ended)

    async def run(self) -> None:
        """Answer requests until the coordinator stops."""
        while not self._life.wakeup.stopping:
            await self._life.wakeup.wait()
            # Yield once, so that all requests of one read of the socket are taken together.
            await asyncio.sleep(0)
            await self._turn()
            while self._inbox:
                await self._turn()

    async def _turn(self) -> None:
        asked = self._tell_membership(self._inbox.take())
        records = self._records.due(self._life.now())
        if asked or records:
            batch = RequestBatch(
                records=records,
                requests=[request for request, _ in asked],
                members=self._driver.members(),
                now_ms=self._life.clock_ms(),
                limits=self._limits,
            )
            with self._life.storage_use.call():
                outcome = await self._life.background_tasks.blocking(execute, self._state, batch)
            self._records.settle(records, outcome.failure, self._life.now())
            if outcome.failure is not None:
                self._driver.recording_failed(records, outcome.failure)
            for mishap in outcome.mishaps:
                self._life.mishaps.note("coordinator.request_failed", "a request", mishap)
            for (request, reply_to), reply in zip(asked, outcome.replies, strict=True):
                if isinstance(request, Register) and not isinstance(reply, HoldfastError):
                    registration = self._driver.register(
                        request.server, request.incarnation, reply_to
                    )
                    self._life.background_tasks.start("register", registration)
                    continue
                if isinstance(request, Drain):
                    self._record_drain(request, reply_to, reply)
                    if not isinstance(reply, HoldfastError):
                        self._driver.step(DrainChanged(request.server, request.draining))
                self._replies.add(reply_to, reply)
        self._driver.settle_waiting()
        await self._replies.send()

    def _record_drain(self, request: Drain, reply_to: str, reply: Reply) -> None:
        refused = isinstance(reply, HoldfastError)
        self._life.audit.record(
            AuditAction.SERVER_DRAINED if request.draining else AuditAction.SERVER_UNDRAINED,
            AuditOutcome.FAILED if refused else AuditOutcome.DONE,
            token=self._life.subjects.asker_of(reply_to),
            user=request.by,
            reason=str(reply) if refused else "",
            details={"server": request.server},
        )

    def _tell_membership(self, asked: list[Asked]) -> list[Asked]:
        """Tell the membership what it must know first; return the requests for the state file."""
        for_state: list[Asked] = []
        for each in asked:
            request = each.request
            if isinstance(request, SuspectRequest):
                self._driver.suspect(request.server, request.incarnation, each.reply_to)
                continue
            if isinstance(request, Prove):
                self._proofs.ask(request, each.reply_to)
                continue
            if isinstance(request, Seal):
                self._seals.ask(each.reply_to)
                continue
            if isinstance(request, ReleaseAll):
                self._driver.step(Released(request.server, request.incarnation))
            for_state.append(each)
        return for_state
