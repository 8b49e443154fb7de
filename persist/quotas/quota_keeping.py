"""Keeps the quotas of a server current: reads the registry, and reports to the coordinator.

If the registry cannot be read or the coordinator does not answer, the last that was known holds: a
quota stops nobody who is within it, and whoever is over it stays refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.quotas.quota_book import QuotaBook, UsageReport
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.errors import FencedError, HoldfastError, StorageError
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.access.quotas import NO_QUOTAS, QUOTA_LOOK_SECONDS, ReadsQuotas

logger = logging.getLogger("holdfast.persist")

#: How often a server reports while tenants with quotas use it, and how late it may learn that one
#: of them is over its bytes.
REPORT_SECONDS: Final = 1.0
#: How soon it reports a tenant that comes, to learn what that one has used.
_NEWS_SECONDS: Final = 0.05


class QuotaKeeping:
    """The conversation about quotas of one incarnation. `run` it in a task."""

    def __init__(
        self,
        registry: ReadsQuotas,
        book: QuotaBook,
        open_stores: OpenStores,
        coordination: Coordination,
        run_in_thread: RunInThread,
    ) -> None:
        self._registry = registry
        self._book = book
        self._open_stores = open_stores
        self._coordination = coordination
        self._run_in_thread = run_in_thread
        self._known = NO_QUOTAS
        self._unreadable = Trouble(logger, "quotas.unreadable")
        self._unreported = Trouble(logger, "quotas.unreported")

    async def look(self) -> None:
        """Read what has changed in the registry."""
        try:
            found = await self._run_in_thread(lambda: self._registry.read(self._known))
        except StorageError as error:
            self._unreadable.note("reason=%s", error)
            return
        self._unreadable.over()
        if found is not self._known:
            self._known = found
            self._book.change(found.tenants, self._open_stores.stores())
            logger.info("quotas.changed tenants=%d", len(found.tenants))

    async def run(self) -> None:
        """Look and report until cancelled. Raises FencedError."""
        clock = asyncio.get_running_loop().time
        look_at, report_at = clock() + QUOTA_LOOK_SECONDS, clock()
        while True:
            if clock() >= look_at:
                look_at = clock() + QUOTA_LOOK_SECONDS
                await self.look()
            if not self._book.is_idle and (clock() >= report_at or self._book.has_news):
                report_at = clock() + REPORT_SECONDS
                await self._report(clock)
            await asyncio.sleep(_NEWS_SECONDS if self._known.tenants else QUOTA_LOOK_SECONDS)

    async def _report(self, clock: Callable[[], float]) -> None:
        unheard: list[UsageReport] = []
        for report in self._book.reports(clock()):
            if unheard:
                unheard.append(report)
                continue
            try:
                used, elsewhere = await self._coordination.usage(
                    [(store.id, store.epoch, totals) for store, totals in report.stores],
                    report.rates,
                )
                self._book.answered(used, elsewhere)
            except FencedError:
                raise
            except HoldfastError as error:
                unheard.append(report)
                self._unreported.note("reason=%s", error)
            else:
                self._unreported.over()
        for report in unheard:
            self._book.unheard(report)
