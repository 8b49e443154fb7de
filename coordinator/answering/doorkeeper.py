"""The doorkeeper: finds the grant of each request of a client before it is queued.

In an open cluster every request goes straight to the inbox, and so do requests of servers and
operators on the cluster's own subjects, which NATS guards. Those name no token: one that does comes
from an operator, whom NATS lets publish below every tenant, and is refused.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.coordinator.answering.inbox import RequestInbox
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.life import Life
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.tokens import EVERY_TENANT
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.serving.audit_trail import note_refusal
from holdfast.protocol.serving.grant_book import Claim
from holdfast.protocol.serving.grant_desk import GrantDesk
from holdfast.protocol.subjects import CLUSTER_TENANT


class HearsEvents(Protocol):
    """The recorder of the audit log."""

    def on_message(self, message: BusMessage, grant: TokenGrant | None = None) -> None: ...


class Doorkeeper:
    """Admits requests to the inbox of an active coordinator. `run` it in a task."""

    def __init__(
        self,
        life: Life,
        inbox: RequestInbox,
        replies: Replies,
        recorder: HearsEvents | None = None,
    ) -> None:
        """`recorder` is that of the audit log, if there is one."""
        self._life = life
        self._inbox = inbox
        self._replies = replies
        self._recorder = recorder
        self._desk: GrantDesk[BusMessage] | None = None
        if life.storage.tokens is not None:
            self._desk = GrantDesk(
                life.storage.tokens,
                life.background_tasks.blocking,
                lambda: life.clock_ms() / 1000,
                self._look,
                self._refuse,
            )

    @property
    def asks_for_tokens(self) -> bool:
        """False in an open cluster."""
        return self._desk is not None

    def on_message(self, message: BusMessage) -> None:
        """Queue a request that has arrived, or refuse it; perhaps once its token is read."""
        subjects, subject = self._life.subjects, message.subject
        of_cluster = subjects.tenant_of(subject) == CLUSTER_TENANT
        if self._desk is None or (of_cluster and not subjects.grant_of(subject)):
            self._inbox.on_message(message)
        elif subjects.may_answer(message.subject, message.reply):
            self._look(message)

    def on_audit(self, message: BusMessage) -> None:
        """Give the recorder what servers tell, and what operators tell in the name of a token."""
        subjects = self._life.subjects
        assert self._recorder is not None
        if self._desk is None or not subjects.grant_of(message.subject):
            self._recorder.on_message(message)
        elif subjects.may_answer(message.subject, message.reply):
            self._look(message)

    async def run(self) -> None:
        """Read tokens and revocations until cancelled."""
        if self._desk is not None:
            await self._desk.run()

    def _look(self, message: BusMessage) -> None:
        desk, subjects = self._desk, self._life.subjects
        assert desk is not None
        subject = message.subject
        tenant = subjects.tenant_of(subject)
        is_event = subjects.is_audit(subject)
        # Only operators tell the audit log something in their own name.
        claim = Claim(EVERY_TENANT if is_event else tenant, subjects.grant_of(subject), subject)
        found = desk.look(claim)
        if isinstance(found, TokenGrant):
            if self._recorder is not None and is_event:
                self._recorder.on_message(message, found)
            else:
                self._inbox.on_message(message, found)
        elif found is None:
            desk.wait(claim, message, len(message.payload))
        else:
            self._refuse(message, found)

    def _refuse(self, message: BusMessage, error: HoldfastError) -> None:
        subjects, subject = self._life.subjects, message.subject
        tenant, grant = subjects.tenant_of(subject), subjects.grant_of(subject)
        note_refusal(self._life.audit, tenant, grant, error)
        self._replies.refuse(message.reply, error)
