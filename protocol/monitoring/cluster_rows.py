"""What people look at of a cluster: a row for each part, totals, cost; and the same for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.protocol.control import ServerInfo
from holdfast.protocol.monitoring.samples import HistogramValue

#: The stages of an append, in order.
STAGES: Final = ("queue", "sync", "gate", "release")


class Latency(NamedTuple):
    """Quantiles of what was observed between two snapshots, in seconds."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, observed: HistogramValue | None) -> Latency | None:
        """Return the latency, or None if nothing was observed."""
        if observed is None:
            return None
        p50, p99 = observed.quantile(0.5), observed.quantile(0.99)
        if p50 is None or p99 is None:
            return None
        return cls(observed.mean, p50, p99)


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A persist server. What comes from its statistics is None if it told none."""

    info: ServerInfo
    operations_per_second: float
    host: str = ""
    version: str = ""
    started_at_ms: int | None = None
    written_bytes_per_second: float | None = None
    #: By stage; stages without appends are left out.
    append_stages: Mapping[str, Latency] = field(default_factory=dict)
    sync: Latency | None = None
    log_pending_bytes: float | None = None
    waiting_bytes: float | None = None
    refused_per_second: float | None = None
    snapshot_lag_seconds: float | None = None
    consumers: float | None = None
    consumers_lag: float | None = None
    #: Since it started.
    takeovers: float | None = None
    #: Share of one processor.
    cpu_share: float | None = None
    memory_bytes: float | None = None

    @property
    def append_seconds(self) -> float | None:
        """The mean time of an append: the sum of its stages; None without appends."""
        stages = self.append_stages.values()
        return sum(each.mean for each in stages) if self.append_stages else None


@dataclass(frozen=True, slots=True)
class PartRow:
    """A coordinator, a standby, a gateway or an auth service."""

    kind: str
    name: str
    host: str
    version: str
    tenant: str
    started_at_ms: int
    heartbeat_age_seconds: float
    cpu_share: float | None
    memory_bytes: float | None
    requests_per_second: float | None
    connections: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the bucket's requests cost, at the rate between two snapshots."""

    #: The time between them.
    over_seconds: float
    dollars_per_day: float
    #: By kind of request.
    dollars_per_day_by_kind: Mapping[str, float]
    requests_per_second_by_kind: Mapping[str, float]
    #: Since the parts started.
    dollars: float
    #: The sum of the budgets that servers have, and the least of what is left of one; None without.
    budget_dollars_per_day: float | None
    budget_left_ratio: float | None
    #: The longest time between puts of a log for level `stored`.
    flush_interval_seconds: float | None


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """Sums over the cluster; None if no part told."""

    servers_by_state: Mapping[str, int]
    assigned_stores: int
    open_stores: int
    log_bytes: int
    snapshot_backlog: int
    bucket_requests_per_hour: int
    operations_per_second: float
    append_stages: Mapping[str, Latency]
    append_seconds: float | None
    sync: Latency | None
    refused_per_second: float | None
    refused_by_code: Mapping[str, float]
    busy_by_cause: Mapping[str, float]
    followers: float | None
    #: Of persist servers and of JetStream gateways.
    consumers: float | None
    consumers_lag: float | None
    consumers_lag_max: float | None
    snapshot_lag_seconds: float | None
    snapshots_per_second: float | None
    #: Messages moved to the archive since the parts started; None if no server has one.
    archived_messages: float | None
    #: Archived messages that are read back a second: `own`, `server` or `fallback`.
    archive_reads_by_source: Mapping[str, float]
    #: Since the parts started.
    takeovers: float | None
    takeover_pause: Latency | None
    fences: float | None
    bucket_failures: float | None
    term: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """A cluster at one moment."""

    time_ms: int
    servers: tuple[ServerRow, ...]
    parts: tuple[PartRow, ...]
    totals: ClusterTotals
    #: None without statistics, and without requests to a bucket.
    cost: Cost | None
    #: Whether any part told statistics.
    has_statistics: bool


def to_json(found: Overview) -> dict[str, Any]:
    """Return an overview for JSON. The row of a server has the fields of its ServerInfo too."""
    return {
        "time": found.time_ms,
        "servers": [_server_json(row) for row in found.servers],
        "parts": [_fields(row) for row in found.parts],
        "totals": _fields(found.totals),
        "cost": None if found.cost is None else _fields(found.cost),
        "has_statistics": found.has_statistics,
    }


def _server_json(row: ServerRow) -> dict[str, Any]:
    fields = _fields(row)
    del fields["info"]
    return {**row.info._asdict(), **fields, "append_seconds": row.append_seconds}


def _fields(row: Any) -> dict[str, Any]:
    return {name: _plain(getattr(row, name)) for name in row.__slots__}


def _plain(value: Any) -> Any:
    if isinstance(value, Latency):
        return value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value
