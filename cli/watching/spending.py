"""What the bucket costs: by kind of request, by part, and for what is stored in it. Pure.

Two rates are told, since requests come in bursts: that between two looks, and the mean since each
part started. Dollars are those that the parts counted, at their prices, or those of another table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.prices import (
    REQUEST_KINDS,
    S3_PRICES,
    Prices,
    per_day,
    per_month,
)
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot

#: What moving bytes costs, beside the kinds of requests.
TRANSFER: Final = "transfer"
KINDS: Final = (*REQUEST_KINDS, TRANSFER)


@dataclass(slots=True)
class KindCost:
    """One kind of request. `now` is between the looks, `mean` since the parts started."""

    kind: str
    requests: float = 0.0
    dollars: float = 0.0
    requests_per_second: float | None = None
    dollars_per_month_now: float | None = None
    dollars_per_month_mean: float = 0.0


@dataclass(slots=True)
class PartCost:
    """One part. The budget and what belongs to it are those of a persist server that has one."""

    kind: str
    name: str
    dollars: float
    dollars_per_day_now: float | None
    dollars_per_day_mean: float
    budget_dollars_per_day: float | None = None
    budget_left_ratio: float | None = None
    flush_interval_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """What is in the bucket, by the first part of the keys: objects and bytes."""

    objects: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, listed: Iterable[tuple[str, int]]) -> Stored:
        """Return the sums of a list of keys and sizes."""
        objects: dict[str, int] = {}
        size_bytes: dict[str, int] = {}
        for key, size in listed:
            prefix = key.partition("/")[0]
            objects[prefix] = objects.get(prefix, 0) + 1
            size_bytes[prefix] = size_bytes.get(prefix, 0) + size
        return cls(objects, size_bytes)

    @property
    def total_bytes(self) -> int:
        """The bytes of all objects."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Spending:
    """What a cluster's bucket costs."""

    currency: str
    #: The time between the looks; 0 for one look.
    over_seconds: float
    kinds: tuple[KindCost, ...]
    parts: tuple[PartCost, ...]
    #: None: nobody listed the bucket.
    stored: Stored | None
    storage_per_month: float | None

    @property
    def per_month_now(self) -> float | None:
        """All that is known of a month, at the rate of now."""
        known = [each.dollars_per_month_now for each in self.kinds]
        if any(each is None for each in known):
            return None
        return sum(each for each in known if each is not None) + (self.storage_per_month or 0.0)

    @property
    def per_month_mean(self) -> float:
        """The same at the mean rate."""
        requests = sum(each.dollars_per_month_mean for each in self.kinds)
        return requests + (self.storage_per_month or 0.0)


def spending(
    now: ClusterSnapshot,
    earlier: ClusterSnapshot | None,
    prices: Prices | None,
    stored: Stored | None,
) -> Spending:
    """Return what the bucket costs. Without `prices` at those of the parts, and what is stored at
    those of S3."""
    before = {_life(part): part for part in (earlier.parts if earlier is not None else ())}
    over_seconds = 0.0 if earlier is None else now.at - earlier.at
    kinds = {kind: KindCost(kind) for kind in KINDS}
    parts: list[PartCost] = []
    for part in now.parts:
        if not part.by_label(metrics.BUCKET_REQUESTS.name, "kind"):
            continue
        was = before.get(_life(part))
        passed = 0.0
        if was is not None:
            passed = over_seconds + was.heartbeat_age_seconds - part.heartbeat_age_seconds
        _add(kinds, part, was, passed, _age_seconds(now, part), prices)
        parts.append(_part_cost(part, was, passed, _age_seconds(now, part), prices))
    table = prices or S3_PRICES
    return Spending(
        table.currency,
        over_seconds,
        tuple(kinds.values()),
        tuple(sorted(parts, key=lambda each: -each.dollars_per_day_mean)),
        stored,
        None if stored is None else table.storage_per_month(stored.total_bytes),
    )


def _add(
    kinds: Mapping[str, KindCost],
    part: PartStatistics,
    was: PartStatistics | None,
    passed: float,
    age_seconds: float,
    prices: Prices | None,
) -> None:
    """Add what a part asked for and spent to the kinds of requests."""
    requests = part.by_label(metrics.BUCKET_REQUESTS.name, "kind")
    dollars = _dollars(part, prices)
    for kind, cost in kinds.items():
        cost.requests += requests.get(kind, 0)
        cost.dollars += dollars.get(kind, 0)
        cost.dollars_per_month_mean += per_month(dollars.get(kind, 0), age_seconds)
    if was is None or passed <= 0:
        return
    requests_before = was.by_label(metrics.BUCKET_REQUESTS.name, "kind")
    dollars_before = _dollars(was, prices)
    for kind, cost in kinds.items():
        asked = requests.get(kind, 0) - requests_before.get(kind, 0)
        spent = dollars.get(kind, 0) - dollars_before.get(kind, 0)
        cost.requests_per_second = (cost.requests_per_second or 0.0) + asked / passed
        cost.dollars_per_month_now = (cost.dollars_per_month_now or 0.0) + per_month(spent, passed)


def _part_cost(
    part: PartStatistics,
    was: PartStatistics | None,
    passed: float,
    age_seconds: float,
    prices: Prices | None,
) -> PartCost:
    dollars = sum(_dollars(part, prices).values())
    lately = None
    if was is not None and passed > 0:
        lately = per_day(dollars - sum(_dollars(was, prices).values()), passed)
    found = PartCost(part.kind, part.name, dollars, lately, per_day(dollars, age_seconds))
    if any(True for _ in part.having(metrics.FLUSH_INTERVAL.name)):
        found.flush_interval_seconds = part.value(metrics.FLUSH_INTERVAL.name)
    if any(True for _ in part.having(metrics.BUDGET.name)):
        found.budget_dollars_per_day = part.value(metrics.BUDGET.name)
        found.budget_left_ratio = part.value(metrics.BUDGET_LEFT.name)
    return found


def _dollars(part: PartStatistics, prices: Prices | None) -> dict[str, float]:
    """Return what a part has spent, by kind."""
    if prices is None:
        return part.by_label(metrics.BUCKET_DOLLARS.name, "kind")
    moved = prices.transfer(
        sent_bytes=part.value(metrics.BUCKET_SENT.name),
        received_bytes=part.value(metrics.BUCKET_RECEIVED.name),
    )
    requests = part.by_label(metrics.BUCKET_REQUESTS.name, "kind")
    return prices.requests(requests) | {TRANSFER: moved}


def _life(part: PartStatistics) -> tuple[str, str, int]:
    return part.kind, part.name, part.started_at_ms


def _age_seconds(now: ClusterSnapshot, part: PartStatistics) -> float:
    """Return for how long a part has counted. The clocks of hosts may differ, so it is at least a
    second."""
    told_at_ms = now.time_ms - part.heartbeat_age_seconds * 1000
    return max(1.0, (told_at_ms - part.started_at_ms) / 1000)


def to_json(found: Spending) -> dict[str, Any]:
    """Return it for JSON."""
    stored = found.stored
    return {
        "currency": found.currency,
        "over_seconds": round(found.over_seconds, 3),
        "kinds": [_fields(each) for each in found.kinds],
        "parts": [_fields(each) for each in found.parts],
        "storage": None
        if stored is None
        else {
            "bytes": stored.total_bytes,
            "objects": sum(stored.objects.values()),
            "bytes_by_prefix": dict(stored.bytes),
            "dollars_per_month": found.storage_per_month,
        },
        "dollars_per_month_now": found.per_month_now,
        "dollars_per_month_mean": found.per_month_mean,
    }


def _fields(row: KindCost | PartCost) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}
