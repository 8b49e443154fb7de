"""Brings to the audit log what commands and the auth service have left in its outbox."""

from __future__ import annotations

import asyncio
import logging

from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.audit_recorder import AuditRecorder
from holdfast.protocol.errors import HoldfastError, StoreDamagedError
from holdfast.protocol.serving.trouble import START_SECONDS, Trouble
from holdfast.shared_fs.access.audit_outbox import AuditOutbox

logger = logging.getLogger("holdfast.coordinator")

#: Objects that one look takes.
_AT_A_TIME = 64


class AuditOutboxWatch:
    """Looks into the outbox of one cluster."""

    def __init__(self, life: Life, outbox: AuditOutbox, recorder: AuditRecorder) -> None:
        self._life = life
        self._outbox = outbox
        self._recorder = recorder
        self._trouble = Trouble(logger, "audit.outbox_waits", patience_seconds=START_SECONDS)

    async def look(self) -> None:
        """Record what waits. An object goes once the log has its events: if this coordinator dies
        in between, the next one tells them again, under the same ids."""
        blocking = self._life.background_tasks.blocking
        keys = self._outbox.waiting()
        for _ in range(_AT_A_TIME):
            key: str | None = None
            try:
                key = await blocking(next, keys, None)
                if key is None:
                    break
                events = await blocking(self._outbox.events, key)
                await self._recorder.record(events)
                await blocking(self._outbox.remove, key)
                self._trouble.over(key)
            except StoreDamagedError as error:
                # It stays for its operator to look at, and holds nothing else up.
                self._trouble.note("reason=%s", error, of=key)
            except HoldfastError as error:
                self._trouble.note("reason=%s", error)
                return
        self._trouble.over()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._outbox.look_seconds)
