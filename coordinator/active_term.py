"""One term of the active coordinator: from opening the state file to the last reply.

The parts are built in the order in which they depend on each other. A term starts from the state
file and from the heartbeats that were heard while standing by. No heartbeat is lost in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Final, NamedTuple

from holdfast.coordinator.answering.doorkeeper import Doorkeeper
from holdfast.coordinator.answering.inbox import RequestInbox
from holdfast.coordinator.answering.record_queue import RecordQueue
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.waiting_replies import WaitingReplies
from holdfast.coordinator.decisions.events import TimePassed
from holdfast.coordinator.decisions.rebalancing import Balance, Rebalancing
from holdfast.coordinator.decisions.roster import MAX_ENDED_REMEMBERED
from holdfast.coordinator.decisions.standby_heartbeats import StandbyHeartbeats
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.life import Life
from holdfast.coordinator.membership_driver import KnownServers, MembershipDriver
from holdfast.coordinator.peers.audit_outbox_watch import AuditOutboxWatch
from holdfast.coordinator.peers.audit_recorder import AuditRecorder
from holdfast.coordinator.peers.heartbeat_feed import MAX_MISSING_OWN_MESSAGES, HeartbeatFeed
from holdfast.coordinator.peers.orders import Orders
from holdfast.coordinator.peers.rebalancer import Rebalancer
from holdfast.coordinator.quota_watch import QuotaWatch
from holdfast.coordinator.request_loop import RequestLoop
from holdfast.coordinator.role_watch import RoleWatch
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.survey import Survey
from holdfast.protocol.access.audit_event import AUDIT_STORE, AuditAction
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import DeposedError, StorageError
from holdfast.protocol.limits import BUS_DEAD_LOOKS, BUS_LOOK_SECONDS
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.audit_trail import AuditTrail
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.subjects import granted

logger = logging.getLogger("holdfast.coordinator")

#: How often silent servers are looked for.
TICK_SECONDS: Final = 0.1
# Of a nats-server that stands still the bus finds out first, also where timers are late: a
# coordinator that ended for that would be missing once it goes on.
assert MAX_MISSING_OWN_MESSAGES * TICK_SECONDS > 1.2 * (BUS_DEAD_LOOKS + 1) * BUS_LOOK_SECONDS
#: How often the coordinator looks for a later term, also when nobody asks for anything.
TERM_WATCH_SECONDS: Final = 0.5


class ActiveTerm:
    """The work of the active coordinator. Call `serve` once."""

    def __init__(
        self,
        life: Life,
        cluster: str,
        feed: HeartbeatFeed,
        state: StateFile,
        balance: Balance = Balance(),  # noqa: B008
    ) -> None:
        self._recorder: AuditRecorder | None = None
        self._trail: AuditTrail | None = None
        if life.storage.outbox is not None:
            self._recorder = AuditRecorder(life)
            self._trail = AuditTrail("coordinator", self._recorder.record, life.clock_ms)
            self._recorder.on_recorded(self._trail.flow)
            life = replace(life, audit=self._trail)
        self._life = life
        self._feed = feed
        self._state = state
        self._records = RecordQueue(life.wakeup)
        replies = Replies(life.bus, cluster, life.mishaps, life.wakeup, life.statistics)
        waiting = self._waiting = WaitingReplies(replies, state.term, life.clock_ms)
        self._inbox = RequestInbox(
            life.subjects, cluster, waiting, replies, life.mishaps, life.wakeup, life.audit
        )
        self._doorkeeper = Doorkeeper(life, self._inbox, replies, self._recorder)
        orders = Orders(life, state, cluster)
        self._driver = MembershipDriver(life, orders, self._records, waiting, replies)
        limits = TenantLimits()
        self._quota_watch = QuotaWatch(life, limits)
        self._role_watch = RoleWatch(self._driver.members)
        self._rebalancer = Rebalancer(
            life,
            orders,
            Rebalancing(balance),
            self._driver.members,
            replies.add,
            state.term,
        )
        self._loop = RequestLoop(
            life,
            state,
            self._inbox,
            self._records,
            self._driver,
            replies,
            limits,
            self._rebalancer,
        )

    async def serve(self, heard: StandbyHeartbeats, ready: asyncio.Event | None) -> None:
        """Answer requests until the coordinator stops. Set `ready` once requests are answered.

        Raises OtherClusterError, DeposedError, StorageError, ConnectionFailedError.
        """
        life, tasks = self._life, self._life.background_tasks
        recorded = await tasks.blocking(_read, self._state)
        self._loop.take_over(recorded.servers.ended)
        await self._quota_watch.look()
        try:
            async with tasks:
                requests = [
                    await life.bus.subscribe(pattern, self._doorkeeper.on_message)
                    for pattern in granted(life.subjects.coordinator_pattern())
                ]
                if self._recorder is not None:
                    subject = life.subjects.audit()
                    for pattern in (subject, f"{subject}.*"):
                        requests.append(
                            await life.bus.subscribe(pattern, self._doorkeeper.on_audit)
                        )
                await life.bus.flush()
                # No await between these two lines, so every heartbeat reaches
                # exactly one of the listeners.
                self._driver.take_over(recorded.servers, heard)
                self._feed.hand_over(self._driver)
                life.statistics.kind = PartKind.COORDINATOR
                self._measure()
                self._start_background(recorded)
                logger.info(
                    "coordinator.started term=%s asks_for_tokens=%s",
                    self._state.term,
                    str(self._doorkeeper.asks_for_tokens).lower(),
                )
                started = {"term": self._state.term}
                life.audit.record(AuditAction.COORDINATOR_STARTED, patient=True, details=started)
                if ready is not None:
                    ready.set()
                try:
                    await self._loop.run()
                finally:
                    life.wakeup.stop()
                    for subscription in requests:
                        await subscription.unsubscribe()
                    tasks.cancel()
        except ExceptionGroup as group_error:
            errors = group_error.exceptions
            # Several tasks look at the term, and may find the newer one at the same time.
            if len(errors) == 1 or all(isinstance(error, DeposedError) for error in errors):
                raise errors[0] from None
            raise

    def _start_background(self, recorded: _Recorded) -> None:
        life, tasks = self._life, self._life.background_tasks
        bucket = life.storage.bucket
        tasks.start("tick", self._tick())
        tasks.start("grants", self._doorkeeper.run())
        tasks.start("watch the term", self._watch_term())
        tasks.start("rebalance", self._rebalancer.run())
        tasks.start("watch the roles", self._role_watch.run())
        if recorded.files_pending or (recorded.manifests_pending and bucket):
            survey = Survey(life.storage, tasks, self._records)
            tasks.start("survey", survey.run(recorded.files_pending))
        if life.storage.quotas is not None:
            tasks.start("quotas", self._quota_watch.run())
        outbox = life.storage.outbox
        if self._recorder is not None and self._trail is not None and outbox is not None:
            if recorded.has_audit_log:
                self._trail.flow()
            tasks.start("audit trail", self._trail.run())
            watch = AuditOutboxWatch(life, outbox, self._recorder)
            tasks.start("audit outbox", watch.run())

    def _measure(self) -> None:
        """Let the statistics read what this coordinator knows."""
        statistics, driver = self._life.statistics, self._driver
        statistics.read(metrics.TERM, lambda: self._state.term)
        statistics.read(metrics.QUEUED, lambda: len(self._inbox) + len(self._waiting))
        statistics.read_each(
            metrics.SERVERS, lambda: Counter(str(member.state) for member in driver.members())
        )
        statistics.read_each(metrics.ROLES, self._role_watch.counts)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self._feed.prove_hearing()
            self._driver.step(TimePassed(hearing=self._life.bus.connected))

    async def _watch_term(self) -> None:
        """End this coordinator soon after it was deposed: a later one may have taken over while it
        was stopped. A mount that hangs shows here too."""
        life = self._life
        unreadable = Trouble(logger, "coordinator.term_unknown")
        while True:
            await asyncio.sleep(TERM_WATCH_SECONDS)
            try:
                with life.storage_use.call():
                    await life.background_tasks.blocking(self._state.check_term)
            except StorageError as error:
                unreadable.note("reason=%s", error)
            else:
                unreadable.over()


class _Recorded(NamedTuple):
    """What a new coordinator finds in the state file."""

    servers: KnownServers
    #: Which parts of the survey are not done yet.
    files_pending: bool
    manifests_pending: bool
    has_audit_log: bool


def _read(state: StateFile) -> _Recorded:
    with state.transaction():
        audit_log = state.stores.get(AUDIT_STORE)
        return _Recorded(
            KnownServers(
                present=state.servers.present(),
                ended=state.servers.ended(MAX_ENDED_REMEMBERED),
                drains=state.servers.drains(),
                forgotten=state.servers.forgotten(),
            ),
            files_pending=state.cluster.surveying(),
            manifests_pending=not state.cluster.knows_all_stores(),
            has_audit_log=audit_log is not None and audit_log.state != StoreState.UNKNOWN,
        )
