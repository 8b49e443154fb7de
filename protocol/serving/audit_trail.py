"""What a process tells the audit log: remembered in a ledger, delivered in the background.

Nothing here waits for the log: `record` and `note` return at once, and a log that cannot be written
costs its events at worst, never a request. `AuditLedger` says what is kept and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from holdfast.protocol.access.audit_event import (
    AuditAction,
    AuditEvent,
    AuditOutcome,
    new_event_id,
    shown,
)
from holdfast.protocol.access.audit_ledger import AuditLedger, kind_of
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import HoldfastError, NotAllowedError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.serving import trouble
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.subjects import Subjects

logger = logging.getLogger("holdfast.audit")

#: Between two attempts to deliver; doubled after each that fails.
_FIRST_RETRY_SECONDS: Final = 0.2
_LAST_RETRY_SECONDS: Final = 15.0

#: Returns once the audit log has these events, durably. Raises HoldfastError.
Deliver = Callable[[Sequence[AuditEvent]], Awaitable[None]]


class Audit(Protocol):
    """Where the parts of a process tell what happened. Fields are those of AuditEvent."""

    def record(
        self,
        action: AuditAction,
        outcome: AuditOutcome = AuditOutcome.DONE,
        *,
        patient: bool = False,
        **fields: Any,
    ) -> None:
        """Record one deed of an operator. A `patient` one waits until there is an audit log."""

    def note(self, action: AuditAction, outcome: AuditOutcome, **fields: Any) -> None:
        """Count something that others can repeat at will."""


class AuditTrail:
    """The events of one process. `run` it in a task."""

    def __init__(self, process: str, deliver: Deliver, wall_ms: Callable[[], int]) -> None:
        self._process = process
        self._deliver = deliver
        self._wall_ms = wall_ms
        self._ledger = AuditLedger(self._lost, lambda event: new_event_id(event.time))
        self._wake = asyncio.Event()
        #: Set whenever some were delivered.
        self._fewer = asyncio.Event()
        # A coordinator has events before the servers have started, each time that a cluster starts.
        self._undelivered = Trouble(
            logger, "audit.undelivered", patience_seconds=trouble.START_SECONDS
        )

    def record(
        self,
        action: AuditAction,
        outcome: AuditOutcome = AuditOutcome.DONE,
        *,
        patient: bool = False,
        **fields: Any,
    ) -> None:
        """See `Audit`."""
        self._ledger.add(self._event(action, outcome, fields), patient=patient)
        self._wake.set()

    def note(self, action: AuditAction, outcome: AuditOutcome, **fields: Any) -> None:
        """See `Audit`."""
        if self._ledger.count_again(kind_of(action, outcome, **fields), self._wall_ms()):
            return
        event = self._event(action, outcome, fields)
        if self._ledger.note(event, asyncio.get_running_loop().time()):
            self._wake.set()

    def flow(self) -> None:
        """Let patient events go: there is an audit log."""
        self._ledger.flow()
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        loop = asyncio.get_running_loop()
        retry_seconds = _FIRST_RETRY_SECONDS
        while True:
            self._wake.clear()
            events = self._ledger.take(loop.time())
            if not events:
                await self._until(self._ledger.next_due_at())
            elif await self._delivered(events):
                retry_seconds = _FIRST_RETRY_SECONDS
            else:
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, _LAST_RETRY_SECONDS)

    @property
    def undelivered_count(self) -> int:
        """How many deeds of operators the audit log lacks yet."""
        return len(self._ledger)

    async def catch_up(self, seconds: float) -> None:
        """Return once the log has every deed, or after so long. Call it while `run` goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._ledger:
                    self._fewer.clear()
                    await self._fewer.wait()

    async def finish(self, seconds: float) -> None:
        """Deliver what is left, for at most so long. Call it after `run` was cancelled."""
        self._ledger.close_spans()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while events := self._ledger.take(loop.time()):
                    if not await self._delivered(events):
                        break
        if self._ledger:
            logger.warning("audit.unsent count=%d", len(self._ledger))

    async def _delivered(self, events: Sequence[AuditEvent]) -> bool:
        try:
            await self._deliver(events)
        except HoldfastError as error:
            self._undelivered.note("events=%d reason=%s", len(self._ledger), error)
            return False
        self._undelivered.over()
        self._ledger.recorded(len(events))
        self._fewer.set()
        return True

    async def _until(self, due_at: float) -> None:
        """Wait until something is due or new. Without either this costs nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if due_at == math.inf else due_at):
                await self._wake.wait()

    def _event(
        self, action: AuditAction, outcome: AuditOutcome, fields: dict[str, Any]
    ) -> AuditEvent:
        return AuditEvent.seen(self._wall_ms(), self._process, action, outcome, fields)

    def _lost(self, count: int) -> AuditEvent:
        event = self._event(AuditAction.EVENTS_LOST, AuditOutcome.FAILED, {})
        return replace(event, count=count, reason="more events than the process could keep")


class NoAudit:
    """Remembers nothing: there is no audit log."""

    def record(
        self,
        action: AuditAction,
        outcome: AuditOutcome = AuditOutcome.DONE,
        *,
        patient: bool = False,
        **fields: Any,
    ) -> None:
        """See `Audit`."""

    def note(self, action: AuditAction, outcome: AuditOutcome, **fields: Any) -> None:
        """See `Audit`."""


NO_AUDIT: Final = NoAudit()


def note_refusal(audit: Audit, tenant: str, grant: str, error: HoldfastError) -> None:
    """Count a request that was refused because its sender may not make it; other errors are none
    of the audit log's business."""
    if isinstance(error, NotAllowedError):
        what = f"{error.action} {error.subject}"
        store = error.subject if error.subject.startswith(("stream ", "kv ")) else ""
        audit.note(
            AuditAction.REQUEST,
            AuditOutcome.REFUSED,
            token=grant,
            tenant=tenant,
            store=store,
            reason=error.reason,
            details={"asked": shown(what), "missing": shown(error.fields.get("missing", ""))},
        )


def tell_recorder(bus: Bus, subjects: Subjects) -> Deliver:
    """Return what delivers events to the recorder over the bus."""

    async def deliver(events: Sequence[AuditEvent]) -> None:
        payload = encode_control(events=[event.to_wire() for event in events])
        decode_control(await bus.request(subjects.audit(), payload, CONTROL_TIMEOUT_SECONDS))

    return deliver
