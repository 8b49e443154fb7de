"""Keeps the quotas of an active coordinator current, by a look at their registry now and then."""

from __future__ import annotations

import asyncio
import logging

from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.life import Life
from holdfast.protocol.errors import StorageError
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.access.quotas import NO_QUOTAS, QUOTA_LOOK_SECONDS

logger = logging.getLogger("holdfast.coordinator")


class QuotaWatch:
    """Reads the registry into the limits that requests are judged by."""

    def __init__(self, life: Life, limits: TenantLimits) -> None:
        self._life = life
        self._limits = limits
        self._known = NO_QUOTAS
        self._unreadable = Trouble(logger, "coordinator.quotas_unreadable")

    async def look(self) -> None:
        """Read what has changed. If that is not possible, the last that was known holds."""
        registry = self._life.storage.quotas
        if registry is None:
            return
        try:
            found = await self._life.background_tasks.blocking(registry.read, self._known)
        except StorageError as error:
            self._unreadable.note("reason=%s", error)
            return
        self._unreadable.over()
        if found is not self._known:
            self._known = found
            self._limits.quotas = found.tenants
            logger.info("coordinator.quotas_changed tenants=%d", len(found.tenants))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(QUOTA_LOOK_SECONDS)
            await self.look()
