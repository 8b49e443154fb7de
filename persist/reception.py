"""Receives what arrives over the bus, and dispatches it: frames of operations, commands, jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.access.gatekeeper import Gatekeeper
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.administration import Administrator
from holdfast.persist.lifecycle.heartbeats import Heartbeats
from holdfast.persist.peers.commands import Commands
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.incoming import take_apart
from holdfast.persist.zone_traffic import ZoneTraffic
from holdfast.protocol.bus.bus import BusMessage, BusSubscription
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidNameError,
    ProtocolError,
    internal_error,
)
from holdfast.protocol.frames import encode_control_error
from holdfast.protocol.limits import MAX_WAITING_REFUSALS
from holdfast.protocol.serving.audit_trail import note_refusal
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import granted

logger = logging.getLogger("holdfast.persist")


class Reception:
    """The subscriptions of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        inbox: Inbox,
        open_stores: OpenStores,
        heartbeats: Heartbeats,
        commands: Commands,
        administrator: Administrator,
        tasks: SpawnedTasks,
        gatekeeper: Gatekeeper,
    ) -> None:
        self._server = life.server
        self._bus = life.bus
        self._audit = life.audit
        self._subjects = life.subjects
        self._inbox = inbox
        self._open_stores = open_stores
        self._heartbeats = heartbeats
        self._commands = commands
        self._administrator = administrator
        self._tasks = tasks
        self._gatekeeper = gatekeeper
        self._mishaps = Mishaps(logger)
        self._traffic = ZoneTraffic(life.zone, life.statistics)
        self._control: BusSubscription | None = None
        self._requests: list[BusSubscription] = []

    async def hear_coordinator(self) -> None:
        """Obey the coordinator from now on."""
        subject = self._subjects.control(self._server)
        self._control = await self._bus.subscribe(subject, self._on_control)

    async def take_requests(self) -> None:
        """Accept requests of clients and operators from now on."""
        subjects, server = self._subjects, self._server
        callbacks: list[tuple[str, Callable[[BusMessage], None]]] = [
            *((each, self._on_frame) for each in granted(subjects.server_pattern(server))),
            (subjects.own_pattern(server), self._on_own_frame),
            (subjects.operator(server), self._on_operator),
            *((each, self._on_destroy) for each in granted(subjects.destroy_pattern(server))),
            *((each, self._on_fork) for each in granted(subjects.fork_pattern(server))),
        ]
        for subject, callback in callbacks:
            self._requests.append(await self._bus.subscribe(subject, callback))
        await self._bus.flush()

    async def take_no_more_requests(self) -> None:
        """Answer only the coordinator from now on. A client that finds nobody on the subject of
        frames makes the coordinator ask, which would fence a server that is silent there too."""
        for subscription in self._requests:
            await subscription.unsubscribe()

    async def close(self) -> None:
        """Stop listening to the coordinator as well."""
        if self._control is not None:
            await self._control.unsubscribe()

    def _on_frame(self, message: BusMessage) -> None:
        if not self._subjects.may_answer(message.subject, message.reply):
            # There is no valid reply subject, so nobody could learn the outcome.
            logger.debug("frame.without_reply subject=%s", message.subject)
            return
        self._gatekeeper.admit(message, self._take_frame, self._refuse_frame)

    def _on_own_frame(self, message: BusMessage) -> None:
        """Take a frame of another server, which needs no token: NATS lets only servers send it."""
        if self._subjects.may_answer(message.subject, message.reply):
            self._take_apart(message.subject.rpartition(".")[2], message, None)

    def _take_frame(self, message: BusMessage, access: FrameAccess | None) -> None:
        self._take_apart(self._subjects.tenant_of(message.subject), message, access)

    def _refuse_frame(self, message: BusMessage, error: HoldfastError) -> None:
        self._note_refusal(message, error)
        self._inbox.refuse(message.reply, -1, error)

    def _take_apart(self, tenant: str, message: BusMessage, access: FrameAccess | None) -> None:
        inbox = self._inbox
        self._traffic.request(message.reply, len(message.payload))
        try:
            incoming = take_apart(tenant, message.payload, message.reply, self._open_stores, access)
        except (ProtocolError, InvalidNameError) as error:
            inbox.refuse(message.reply, -1, error)
            return
        except Exception as error:  # noqa: BLE001 (answered to this frame)
            self._mishaps.note("frame.failed", message.subject, error)
            inbox.refuse(message.reply, -1, internal_error("a frame", error))
            return
        for index, wrong in incoming.refusals:
            inbox.refuse(message.reply, index, wrong)
            self._note_refusal(message, wrong)
        if incoming.arrivals:
            inbox.submit(incoming.arrivals)
        elif not incoming.refusals:
            inbox.answer_empty(message.reply)

    def _on_control(self, message: BusMessage) -> None:
        if self._heartbeats.stalled:
            # Do not even answer a probe.
            return
        self._reply(message, self._commands.command(message.payload))

    def _on_operator(self, message: BusMessage) -> None:
        asker = self._subjects.asker_of(message.reply)
        self._reply(message, self._administrator.command(message.payload, asker))

    def _on_destroy(self, message: BusMessage) -> None:
        if self._subjects.may_answer(message.subject, message.reply):
            self._gatekeeper.admit(message, self._destroy, self._refuse_job)

    def _destroy(self, message: BusMessage, access: FrameAccess | None) -> None:
        tenant = self._subjects.tenant_of(message.subject)
        self._reply(message, self._administrator.destroy(tenant, message.payload, access))

    def _on_fork(self, message: BusMessage) -> None:
        if self._subjects.may_answer(message.subject, message.reply):
            self._gatekeeper.admit(message, self._fork, self._refuse_job)

    def _fork(self, message: BusMessage, access: FrameAccess | None) -> None:
        tenant = self._subjects.tenant_of(message.subject)
        self._reply(message, self._administrator.fork(tenant, message.payload, access))

    def _refuse_job(self, message: BusMessage, error: HoldfastError) -> None:
        self._note_refusal(message, error)
        self._reply(message, encode_control_error(error))

    def _note_refusal(self, message: BusMessage, error: HoldfastError) -> None:
        subjects, subject = self._subjects, message.subject
        tenant, grant = subjects.tenant_of(subject), subjects.grant_of(subject)
        note_refusal(self._audit, tenant, grant, error)

    def _reply(self, message: BusMessage, payload: bytes) -> None:
        if (
            self._subjects.may_answer(message.subject, message.reply)
            and len(self._tasks) < MAX_WAITING_REFUSALS
        ):
            self._tasks.spawn(self._bus.publish(message.reply, payload))
