"""The quotas that one server keeps: of which tenants, what to report of them, what the answers say.

Pure. Only tenants that have a quota and use this server take memory here, and only they pay more
than a look-up for each turn. A report tells

- the sizes of their stores that may have changed, as states, so a repeated or lost report does no
  harm: whatever a store's last report says is its size;
- how much they asked for, by which the coordinator shares out their rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from holdfast.persist.quotas.tenant_quota import TenantQuota
from holdfast.persist.store.store import Store
from holdfast.protocol.access.quota import Quota
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.names import StoreId

#: Stores, and tenants, in one report: a few milliseconds of the coordinator.
REPORT_ROWS: Final = 512
#: A tenant that had nothing to report this often is forgotten until it comes back.
_IDLE_ROUNDS: Final = 60


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What one request tells: stores with what they hold, and `(tenant, operations, bytes, open
    stores, uploads)`, operations and bytes a second."""

    stores: tuple[tuple[Store, StoreTotals], ...]
    rates: tuple[tuple[str, float, float, int, int], ...]


class QuotaBook:
    """The quotas of one server."""

    def __init__(self) -> None:
        self._quotas: Mapping[str, Quota] = {}
        self._kept: dict[str, TenantQuota] = {}
        #: When the last reports were made.
        self._reported_at = 0.0
        #: A tenant came that has told nothing yet.
        self.has_news = False

    def of(self, tenant: str) -> TenantQuota | None:
        """Return the quota of a tenant, or None if it has none."""
        if not self._quotas:
            return None
        kept = self._kept.get(tenant)
        if kept is None and (quota := self._quotas.get(tenant)) is not None:
            kept = self._kept[tenant] = TenantQuota(tenant, quota)
            self.has_news = True
        return kept

    @property
    def is_idle(self) -> bool:
        """True if no tenant with a quota uses this server."""
        return not self._kept

    def change(self, quotas: Mapping[str, Quota], open_stores: Iterable[Store]) -> None:
        """Apply the quotas that the registry has now."""
        before, self._quotas = self._quotas, quotas
        for tenant in list(self._kept):
            if tenant in quotas:
                self._kept[tenant].becomes(quotas[tenant])
            else:
                del self._kept[tenant]
        counted = {name for name, quota in quotas.items() if quota.max_bytes is not None}
        fresh = {name for name in counted if name not in before or before[name].max_bytes is None}
        fresh |= {
            name
            for name, quota in quotas.items()
            if name not in before
            or (quota.max_uploads is not None and before[name].max_uploads is None)
        }
        if fresh:
            for store in open_stores:
                if store.id.tenant in fresh:
                    self.opened(store)

    def opened(self, store: Store) -> None:
        """Note that a store is open."""
        quota = self.of(store.id.tenant)
        if quota is not None:
            quota.opened(store)

    def gone(self, store: StoreId) -> None:
        """Note that a store is closed, or will not be opened."""
        quota = self._kept.get(store.tenant)
        if quota is not None:
            quota.gone(store)

    def take_room(self, tenant: str, size_bytes: int) -> None:
        """Count a store that is made whole. Raises LimitExceededError if its tenant may not have so
        many bytes more."""
        quota = self.of(tenant)
        if quota is not None:
            quota.take_room(size_bytes)

    def touched(self, store: Store) -> None:
        """Note that the coordinator may not know the size of an open store: something in it may
        expire."""
        quota = self.of(store.id.tenant)
        if quota is not None:
            quota.wrote(store, 0)

    def reports(self, now: float) -> Iterator[UsageReport]:
        """Yield what to report now, at most REPORT_ROWS of each kind at a time."""
        seconds = max(now - self._reported_at, 0.001)
        self._reported_at, self.has_news = now, False
        stores: list[tuple[Store, StoreTotals]] = []
        rates: list[tuple[str, float, float, int, int]] = []
        for quota in list(self._kept.values()):
            touched = quota.take_touched()
            stores.extend((store, store.store_totals) for store in touched)
            for store in [quota.open[each] for each in quota.uploads]:
                # Abandoned ones are dropped by no group.
                quota.count_uploads(store)
            holds = quota.quota.limits_use and bool(quota.open)
            if touched or quota.operation_count or quota.is_full or holds:
                quota.idle_rounds = 0
                asked = (quota.operation_count / seconds, quota.size_bytes / seconds)
                rates.append((quota.tenant, *asked, len(quota.open), quota.upload_count))
            else:
                quota.idle_rounds += 1
                if quota.idle_rounds > _IDLE_ROUNDS and not (quota.touched or quota.open):
                    del self._kept[quota.tenant]
            quota.reported()
        stores_left, rates_left = iter(stores), iter(rates)
        # All stores come before the first tenant, whose answer then counts them.
        while some := tuple(islice(stores_left, REPORT_ROWS)):
            yield UsageReport(some, ())
        while some_rates := tuple(islice(rates_left, REPORT_ROWS)):
            yield UsageReport((), some_rates)

    def unheard(self, report: UsageReport) -> None:
        """Report these stores again: the coordinator did not answer."""
        for store, _ in report.stores:
            quota = self.of(store.id.tenant)
            if quota is not None:
                quota.wrote(store, 0)

    def answered(self, tenants: Any, elsewhere: Any) -> None:
        """Take the coordinator's answer: `{tenant: [bytes, operation share, byte share]}`, and what
        other servers hold, `{tenant: [open stores, uploads]}`. Raises MalformedFrameError."""
        try:
            for tenant, (used_bytes, share, byte_share) in tenants.items():
                kept = self._kept.get(tenant)
                if kept is not None:
                    kept.told(int(used_bytes), (float(share), float(byte_share)))
            for tenant, (open_stores, uploads, *_) in elsewhere.items():
                kept = self._kept.get(tenant)
                if kept is not None:
                    kept.elsewhere = (int(open_stores), int(uploads))
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedFrameError(reason=f"no answer to a report of use: {error!r}") from error
