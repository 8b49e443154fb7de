"""What tenants may use of the cluster, and how a tenant's rates are shared out among its servers.

Pure. Each server reports once a second how much its clients asked for, and gets its share of the
tenant's rate: a tenth of it is split evenly, so that a server whose clients have just begun can
tell them something else than no, and the rest in proportion. The shares of a moment add up to one;
while load moves from server to server, a tenant may have a second's worth more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.protocol.access.quota import Quota
from holdfast.protocol.errors import LimitExceededError

#: A server that has reported nothing for this long gets no share.
_FORGET_MS: Final = 3000
_EVEN_RATIO: Final = 0.1


class Held(NamedTuple):
    """What servers hold of a tenant."""

    open_stores: int = 0
    uploads: int = 0


class Demand(NamedTuple):
    """What the clients of a tenant asked of one server, a second."""

    operations: float
    size_bytes: float
    at_ms: int
    #: What the server holds of the tenant now.
    held: Held = Held()


class TenantLimits:
    """The quotas as the registry has them, and the reports of the servers."""

    def __init__(self, quotas: Mapping[str, Quota] | None = None) -> None:
        self.quotas: Mapping[str, Quota] = quotas or {}
        #: By tenant and server.
        self._asked: dict[str, dict[str, Demand]] = {}

    def store_refusal(self, tenant: str, store_count: int) -> LimitExceededError | None:
        """Return why a tenant with that many stores may not create another one, or None."""
        limit = self.max_stores(tenant)
        if limit is None or store_count < limit:
            return None
        return LimitExceededError(
            what="the tenant's max_stores", limit=limit, value=store_count + 1
        )

    def max_stores(self, tenant: str) -> int | None:
        """Return how many stores a tenant may have; None without a limit."""
        quota = self.quotas.get(tenant)
        return None if quota is None else quota.max_stores

    def asked(
        self,
        tenant: str,
        server: str,
        operations: float,
        size_bytes: float,
        now_ms: int,
        held: Held = Held(),  # noqa: B008 (immutable)
    ) -> tuple[float, float]:
        """Take a report, and return the server's shares of the rate and of the byte rate."""
        if tenant not in self.quotas:
            self._asked.pop(tenant, None)
            return 1.0, 1.0
        reports = self._asked.setdefault(tenant, {})
        reports[server] = Demand(operations, size_bytes, now_ms, held)
        # The clock of a host may be set back, and then nobody is silent.
        for each in [each for each, said in reports.items() if now_ms - said.at_ms > _FORGET_MS]:
            del reports[each]
        return (
            _share(operations, [said.operations for said in reports.values()]),
            _share(size_bytes, [said.size_bytes for said in reports.values()]),
        )

    def held(self, tenant: str, now_ms: int, but: str = "") -> Held:
        """Return what the servers hold of a tenant, without the server `but`."""
        said = [
            each.held for server, each in self.reports(tenant, now_ms).items() if server != but
        ]
        return Held(sum(each.open_stores for each in said), sum(each.uploads for each in said))

    def reports(self, tenant: str, now_ms: int) -> dict[str, Demand]:
        """Return by server what was reported lately."""
        reports = self._asked.get(tenant, {})
        return {each: said for each, said in reports.items() if now_ms - said.at_ms <= _FORGET_MS}


def _share(mine: float, everyones: list[float]) -> float:
    total = sum(everyones)
    if total <= 0.0 or len(everyones) == 1:
        return 1.0 / len(everyones)
    return _EVEN_RATIO / len(everyones) + (1.0 - _EVEN_RATIO) * mine / total
