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
    Forget,
    ListStatistics,
    MoveStore,
    Open,
    Prove,
    RebalanceRequest,
    Register,
    ReleaseAll,
    ReleaseRequest,
    Seal,
    SuspectRequest,
    TellStatistics,
)
from holdfast.coordinator.answering.seals import Seals
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.decisions.claims import ClaimBook
from holdfast.coordinator.decisions.events import DrainChanged, Released, ServerForgotten
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.decisions.told_grants import ToldGrants
from holdfast.coordinator.life import Life
from holdfast.coordinator.membership_driver import MembershipDriver
from holdfast.coordinator.peers.rebalancer import Rebalancer
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.access.audit_event import AuditAction, AuditOutcome, shown_store
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.monitoring import metrics


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
        rebalancer: Rebalancer,
    ) -> None:
        self._life = life
        self._state = state
        self._inbox = inbox
        self._records = records
        self._driver = driver
        self._replies = replies
        self._limits = limits
        self._rebalancer = rebalancer
        self._batches = life.statistics.histogram(metrics.BATCHES)
        self._grants = life.statistics.counter(metrics.GRANTS)
        self._proofs = Proofs(life, state, replies)
        self._seals = Seals(life, state, replies)
        self._claims = ClaimBook()

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
                claims=self._claims,
            )
            began_at = self._life.now()
            with self._life.storage_use.call():
                outcome = await self._life.background_tasks.blocking(execute, self._state, batch)
            self._batches.observe(self._life.now() - began_at)
            self._records.settle(records, outcome.failure, self._life.now())
            if outcome.failure is not None:
                self._driver.recording_failed(records, outcome.failure)
            for mishap in outcome.mishaps:
                self._life.mishaps.note("coordinator.request_failed", "a request", mishap)
            for told in outcome.told_grants:
                self._tell_grants(told)
            for (request, reply_to), reply in zip(asked, outcome.replies, strict=True):
                if isinstance(request, Register) and not isinstance(reply, HoldfastError):
                    registration = self._driver.register(
                        request.server,
                        request.incarnation,
                        reply_to,
                        request.roles,
                        request.zone,
                    )
                    self._life.background_tasks.start("register", registration)
                    continue
                if isinstance(request, Open) and not isinstance(reply, HoldfastError):
                    self._grants.value += sum(grant[0] is not None for grant in reply["grants"])
                if isinstance(request, Drain):
                    drained = AuditAction.SERVER_DRAINED
                    action = drained if request.draining else AuditAction.SERVER_UNDRAINED
                    self._record(action, request, reply_to, reply)
                    if not isinstance(reply, HoldfastError):
                        self._driver.step(DrainChanged(request.server, request.draining))
                elif isinstance(request, Forget):
                    self._record(AuditAction.SERVER_FORGOTTEN, request, reply_to, reply)
                    if not isinstance(reply, HoldfastError):
                        self._driver.step(ServerForgotten(request.server))
                elif isinstance(request, MoveStore):
                    self._record(AuditAction.STORE_MOVED, request, reply_to, reply)
                    if not isinstance(reply, HoldfastError) and reply["moving"]:
                        store, server = request.store, request.server
                        self._rebalancer.move(store, reply["owner"], server, reply_to)
                        continue
                elif isinstance(request, ReleaseRequest) and request.to:
                    self._rebalancer.released([released.store for released in request.stores])
                self._replies.add(reply_to, reply)
        self._driver.settle_waiting()
        await self._replies.send()

    def _tell_grants(self, told: ToldGrants) -> None:
        """Grant an owner the stores that clients were told of, before their first frames arrive."""
        self._replies.tell(
            self._life.subjects.control(told.server),
            command="granted",
            term=self._state.term,
            incarnation=told.incarnation,
            given_up=told.given_up,
            ended=self._state.servers.ended_count,
            stores=[[*store, epoch, revision] for store, epoch, revision in told.stores],
        )

    def _record(
        self,
        action: AuditAction,
        request: Drain | Forget | MoveStore | RebalanceRequest,
        reply_to: str,
        reply: Reply,
    ) -> None:
        """Tell the audit log what an operator asked for, and whether it was done."""
        refused = isinstance(reply, HoldfastError)
        store = request.store if isinstance(request, MoveStore) else None
        server = "" if isinstance(request, RebalanceRequest) else request.server
        self._life.audit.record(
            action,
            AuditOutcome.FAILED if refused else AuditOutcome.DONE,
            token=self._life.subjects.asker_of(reply_to),
            user=request.by,
            reason=str(reply) if refused else "",
            tenant="" if store is None else store.tenant,
            store="" if store is None else shown_store(store.kind, store.name),
            details={"server": server} if server else {},
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
            if isinstance(request, ListStatistics | TellStatistics):
                self._replies.add(each.reply_to, self._statistics(request))
                continue
            if isinstance(request, RebalanceRequest):
                if not request.dry_run:
                    self._record(AuditAction.CLUSTER_REBALANCED, request, each.reply_to, {})
                self._rebalancer.rebalance(request.dry_run, each.reply_to)
                continue
            if isinstance(request, ReleaseAll):
                self._driver.step(Released(request.server, request.incarnation))
            for_state.append(each)
        return for_state

    def _statistics(self, request: ListStatistics | TellStatistics) -> Reply:
        """Answer what needs no state file. Errors are answers, too."""
        life = self._life
        if isinstance(request, ListStatistics):
            life.tell_itself()
            rows, following = life.part_book.page(request.after, life.now(), request.tenant)
            return {"term": self._state.term, "parts": rows, "next": following}
        try:
            life.part_book.hear(request.part, request.report, life.now())
        except HoldfastError as error:
            return error
        return {"term": self._state.term}
