"""What the parts of a cluster told last about themselves: statistics for operators. Pure.

Nothing is decided by it. Servers and standbys tell in heartbeats, gateways by requests in the name
of a tenant, so a tenant can invent gateways; they count as its own, and other tenants do not see
them. Reports are bounded and checked before they are kept; parts that fell silent are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.protocol.limits import (
    MAX_PARTS,
    MAX_PARTS_OF_TENANT,
    PAGE_BYTES,
    REPORT_FORGOTTEN_SECONDS,
)
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.telling import decode_report

#: What a row counts of a page beside its report.
_ROW_BYTES: Final = 512
_COORDINATORS: Final[frozenset[str]] = frozenset([PartKind.COORDINATOR, PartKind.STANDBY])


class PartKey(NamedTuple):
    """A part: only one of each key is remembered. `tenant` is empty for the cluster's own."""

    kind: str
    name: str
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class ToldReport:
    """What a part told, and when, in monotonic seconds."""

    report: bytes
    told_at: float
    incarnation: str = ""


class PartBook:
    """The last report of each part."""

    def __init__(self) -> None:
        self._parts: dict[PartKey, ToldReport] = {}

    def hear(self, key: PartKey, report: object, now: float, incarnation: str = "") -> None:
        """Keep what a part tells. Raises HoldfastError if it is no report. Parts beyond the limit
        are ignored."""
        decode_report(report)
        assert type(report) is bytes
        if key.kind in _COORDINATORS:
            # One that became active, or heard of another one, is no second part.
            for kind in _COORDINATORS - {key.kind}:
                self._parts.pop(key._replace(kind=kind), None)
        if key not in self._parts and not self._has_room(key, now):
            return
        self._parts[key] = ToldReport(report, now, incarnation)

    def page(
        self, after: PartKey | None, now: float, tenant: str | None = None
    ) -> tuple[list[list[object]], PartKey | None]:
        """Return rows of parts behind `after`, as many as fit in an answer, and where to go on, if
        there are more. Gateways of other tenants than `tenant` are left out, unless it is None."""
        self._forget(now)
        rows: list[list[object]] = []
        size_bytes = 0
        last: PartKey | None = None
        for key in sorted(self._parts):
            is_foreign = tenant is not None and key.tenant not in ("", tenant)
            if is_foreign or (after is not None and key <= after):
                continue
            told = self._parts[key]
            size_bytes += len(told.report) + _ROW_BYTES
            if size_bytes > PAGE_BYTES and last is not None:
                return rows, last
            age_seconds = max(0.0, now - told.told_at)
            rows.append(
                [key.kind, key.name, key.tenant, told.incarnation, age_seconds, told.report]
            )
            last = key
        return rows, None

    def _has_room(self, key: PartKey, now: float) -> bool:
        self._forget(now)
        if len(self._parts) >= MAX_PARTS:
            return False
        of_tenant = sum(each.tenant == key.tenant for each in self._parts) if key.tenant else 0
        return of_tenant < MAX_PARTS_OF_TENANT

    def _forget(self, now: float) -> None:
        silent_since = now - REPORT_FORGOTTEN_SECONDS
        gone = [key for key, told in self._parts.items() if told.told_at < silent_since]
        for key in gone:
            del self._parts[key]
