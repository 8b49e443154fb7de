"""The shell of `membership.py`: passes events in and carries out the effects.

Orders to servers run in the background, and each ends in an event. Records go into the next batch.
Requests that wait for a decision are answered once it is made. This module decides nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from holdfast.coordinator.answering.record_queue import RecordQueue
from holdfast.coordinator.answering.records import Record
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.waiting_replies import WaitingReplies
from holdfast.coordinator.decisions.events import (
    AskToRegister,
    Connected,
    Effect,
    Event,
    HeartbeatArrived,
    OwnMessageArrived,
    Probe,
    RecordDead,
    RecordLive,
    Registered,
    Started,
    Suspected,
    TellToDrain,
    TestStorage,
    WriteFence,
)
from holdfast.coordinator.decisions.member import MemberView, ServerStanding
from holdfast.coordinator.decisions.membership import Membership
from holdfast.coordinator.decisions.standby_heartbeats import StandbyHeartbeats
from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.orders import Orders
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import FencedError, StorageError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.work.roles import ALL_ROLES, Roles
from holdfast.protocol.work.zones import NOWHERE

logger = logging.getLogger("holdfast.coordinator")


class KnownServers(NamedTuple):
    """The servers that an earlier coordinator recorded; in `ended` the first to end comes first."""

    present: Collection[tuple[str, str]]
    ended: Collection[tuple[str, str]]
    drains: Collection[str]
    #: Dead servers that are no longer listed.
    forgotten: Collection[str] = ()


class MembershipDriver:
    """The membership of one term, and the execution of its effects."""

    def __init__(
        self,
        life: Life,
        orders: Orders,
        records: RecordQueue,
        waiting: WaitingReplies,
        replies: Replies,
    ) -> None:
        self._life = life
        self._orders = orders
        self._records = records
        self._waiting = waiting
        self._replies = replies
        self._membership = Membership()
        self._fences = life.statistics.counter(metrics.FENCES)
        self._ended = life.statistics.counters(metrics.SERVERS_ENDED)

    def take_over(self, known: KnownServers, heard: StandbyHeartbeats) -> None:
        """Start from what is recorded and what was heard."""
        now = self._life.now()
        self._membership.restore(
            known.present, known.ended, heard, now, known.drains, known.forgotten
        )
        self.step(Started())

    def members(self) -> list[MemberView]:
        """Return the newest incarnation of each server, as seen now."""
        return self._membership.members(self._life.now())

    # Requests that wait for a decision.

    async def register(
        self,
        server: str,
        incarnation: str,
        reply_to: str,
        roles: Roles = ALL_ROLES,
        zone: str = NOWHERE,
    ) -> None:
        """Admit an incarnation, unless its fence says that it has ended."""
        if self._membership.standing(server, incarnation) is ServerStanding.UNKNOWN:
            try:
                fence_is_open = await self._orders.fence_is_open(server, incarnation)
            except StorageError as error:
                self._replies.add(reply_to, error)
                return
            if not fence_is_open:
                logger.info(
                    "coordinator.fenced_refused server=%s incarnation=%s", server, incarnation
                )
                self._replies.add(reply_to, FencedError(server=server, incarnation=incarnation))
                return
        self._waiting.register(server, incarnation, reply_to)
        self.step(Registered(server, incarnation, roles, zone))

    def suspect(self, server: str, incarnation: str, reply_to: str) -> None:
        """Find out whether an incarnation is alive, for a client that got no responders."""
        self._waiting.suspect(server, incarnation, reply_to)
        self.step(Suspected(server, incarnation))

    def settle_waiting(self) -> None:
        """Answer the requests whose decisions are made."""
        self._waiting.settle(self._membership, self._records.unrecorded())

    def recording_failed(self, records: Iterable[Record], error: StorageError) -> None:
        """Fail the registrations whose records are not durable; their senders may ask again."""
        for record in records:
            if isinstance(record, RecordLive):
                self._waiting.recording_failed(record.server, record.incarnation, error)

    # What is heard: see `heartbeat_feed.HeartbeatListener`.

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        self._orders.heard(heartbeat.server)
        self._hear(HeartbeatArrived(heartbeat))

    def own_message(self, number: int, sent_at: float) -> None:
        # Handled while stopping, too: otherwise a coordinator that works off
        # its queue would count as deaf.
        self.step(OwnMessageArrived(number, sent_at))

    def missing_own_messages(self, number: int) -> int:
        return self._membership.missing_own_messages(number)

    def connected(self, now: float, last_number: int) -> None:
        self._hear(Connected(last_number))

    def _hear(self, event: Event) -> None:
        if not self._life.wakeup.stopping:
            self.step(event)

    # Events in, effects out.

    def step(self, event: Event) -> None:
        """Pass `event` to the membership and start the effects."""
        for effect in self._membership.handle(event, self._life.now()):
            self._begin(effect)
        if self._records or self._waiting:
            self._life.wakeup.set()

    def _begin(self, effect: Effect) -> None:
        tasks = self._life.background_tasks
        match effect:
            case Probe():
                tasks.start("probe", self._probe(effect))
            case TestStorage():
                tasks.start("test storage", self._test_storage())
            case WriteFence():
                tasks.start("fence", self._write_fence(effect))
            case AskToRegister(server):
                name = f"ask {server}"
                if not tasks.running(name):
                    tasks.start(name, self._orders.ask_to_register(server))
            case TellToDrain(server, incarnation, draining):
                name = f"tell {server} {draining}"
                if not tasks.running(name):
                    logger.info(
                        "coordinator.drain server=%s incarnation=%s draining=%s",
                        server,
                        incarnation,
                        draining,
                    )
                    tasks.start(name, self._orders.tell_to_drain(effect))
            case RecordLive(server, incarnation):
                logger.info("coordinator.server_live server=%s incarnation=%s", server, incarnation)
                self._record(AuditAction.SERVER_REGISTERED, server, incarnation)
                self._records.add(effect)
            case RecordDead(server, incarnation, reason, released):
                logger.log(
                    logging.INFO if released else logging.WARNING,
                    "coordinator.server_dead server=%s incarnation=%s reason=%s",
                    server,
                    incarnation,
                    reason,
                )
                self._ended.add("released" if released else "fenced")
                self._record(AuditAction.SERVER_ENDED, server, incarnation, reason, released)
                self._orders.forget(server)
                self._records.add(effect)

    def _record(
        self,
        action: AuditAction,
        server: str,
        incarnation: str,
        reason: str = "",
        released: bool = True,
    ) -> None:
        """Tell the audit log of a server, once there is one."""
        details = {"server": server, "incarnation": incarnation}
        if not released:
            details["fenced"] = "yes"
        self._life.audit.record(action, patient=True, reason=reason, details=details)

    async def _probe(self, order: Probe) -> None:
        self.step(await self._orders.probe(order))

    async def _test_storage(self) -> None:
        self.step(await self._orders.test_storage())

    async def _write_fence(self, order: WriteFence) -> None:
        written = await self._orders.write_fence(order)
        if not isinstance(written, tuple):
            self._fences.value += 1
            self.step(written)
            return
        failed, error = written
        self.step(failed)
        self._waiting.fence_failed(order.server, order.incarnation, error)
