"""A cluster at one moment, from what its parts told: rows of servers, totals, rates. Pure.

`overview(now, earlier)` makes of two snapshots what people look at. Rates and latencies are those
between the two. The console, `holdfast top` and `holdfast report` show this; none of them counts
anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.cluster_rows import (
    STAGES,
    ClusterTotals,
    Cost,
    Latency,
    Overview,
    PartRow,
    ServerRow,
)
from holdfast.protocol.monitoring.description import Description, PartKind
from holdfast.protocol.monitoring.prices import DAY_SECONDS
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.snapshot_pair import (
    ClusterSnapshot,
    SnapshotPair,
    joined,
    sum_of_known,
)


def overview(
    now: ClusterSnapshot,
    earlier: ClusterSnapshot | None = None,
    long_ago: ClusterSnapshot | None = None,
) -> Overview:
    """Return the cluster as `now` shows it, with the rates since `earlier`, and the cost since
    `long_ago`: requests to the bucket come in bursts. Without `long_ago` it is that since
    `earlier`."""
    pairs = SnapshotPair(now, earlier)
    servers = tuple(
        _server_row(pairs, info) for info in sorted(now.servers, key=lambda info: info.server)
    )
    others = [part for part in now.parts if part.kind != PartKind.PERSIST]
    rows = [_part_row(pairs, part) for part in sorted(others, key=lambda part: part[:2])]
    totals = _totals(now, pairs)
    cost = _cost(pairs if long_ago is None else SnapshotPair(now, long_ago))
    return Overview(now.time_ms, servers, tuple(rows), totals, cost, bool(now.parts))


def _server_row(pairs: SnapshotPair, info: ServerInfo) -> ServerRow:
    part = pairs.persist(info)
    if part is None or info.state == ServerState.DEAD:
        return ServerRow(info, info.operations_per_second)
    gauge = _gauge_of(part)
    return ServerRow(
        info=info,
        host=part.host,
        version=_version(part),
        started_at_ms=part.started_at_ms,
        operations_per_second=_or(
            pairs.rate(part, metrics.OPERATIONS), info.operations_per_second
        ),
        written_bytes_per_second=pairs.rate(part, metrics.LOG_WRITTEN),
        append_stages=_stages(lambda stage: Latency.of(
            pairs.observed(part, metrics.APPEND_STAGES, stage=stage)
        )),
        sync=Latency.of(pairs.observed(part, metrics.SYNCS)),
        log_pending_bytes=gauge(metrics.LOG_PENDING),
        waiting_bytes=gauge(metrics.WAITING),
        refused_per_second=pairs.rate(part, metrics.ERRORS),
        snapshot_lag_seconds=gauge(metrics.SNAPSHOT_LAG),
        consumers=gauge(metrics.CONSUMERS),
        consumers_lag=gauge(metrics.CONSUMERS_LAG),
        takeovers=gauge(metrics.TAKEOVERS),
        cpu_share=pairs.rate(part, metrics.PROCESS_CPU),
        memory_bytes=gauge(metrics.PROCESS_MEMORY),
    )


def _part_row(pairs: SnapshotPair, part: PartStatistics) -> PartRow:
    gauge = _gauge_of(part)
    requests: float | None = None
    if part.kind in (PartKind.COORDINATOR, PartKind.STANDBY):
        requests = pairs.rate(part, metrics.REQUESTS)
    elif part.kind == PartKind.GATEWAY_HTTP:
        observed, seconds = pairs.observed(part, metrics.HTTP_REQUESTS), pairs.seconds(part)
        requests = None if observed is None or not seconds else observed.observations / seconds
    elif part.kind == PartKind.GATEWAY_JETSTREAM:
        requests = sum_of_known([pairs.rate(part, metrics.API_REQUESTS),
                         pairs.rate(part, metrics.PUBLISHED)])
    elif part.kind == PartKind.AUTH:
        requests = pairs.rate(part, metrics.LOGINS)
    return PartRow(
        kind=part.kind,
        name=part.name,
        host=part.host,
        version=_version(part),
        tenant=part.tenant,
        started_at_ms=part.started_at_ms,
        heartbeat_age_seconds=part.heartbeat_age_seconds,
        cpu_share=pairs.rate(part, metrics.PROCESS_CPU),
        memory_bytes=gauge(metrics.PROCESS_MEMORY),
        requests_per_second=requests,
        connections=gauge(metrics.HTTP_CONNECTIONS),
    )


def _totals(now: ClusterSnapshot, pairs: SnapshotPair) -> ClusterTotals:
    infos = [info for info in now.servers if info.state != ServerState.DEAD]
    states: dict[str, int] = {}
    for info in now.servers:
        states[info.state] = states.get(info.state, 0) + 1
    stages = _stages(lambda stage: pairs.latency(metrics.APPEND_STAGES, stage=stage))
    rate = pairs.sum_of_rates(metrics.OPERATIONS)

    def summed(*of: Description) -> float | None:
        return sum_of_known(value for metric in of for value in _told(now.parts, metric))

    def highest(*of: Description) -> float | None:
        return max((value for metric in of for value in _told(now.parts, metric)), default=None)

    return ClusterTotals(
        servers_by_state=states,
        assigned_stores=sum(info.assigned_stores for info in infos),
        open_stores=sum(info.open_stores for info in infos),
        log_bytes=sum(info.log_bytes for info in infos),
        snapshot_backlog=sum(info.snapshot_backlog for info in infos),
        bucket_requests_per_hour=sum(info.bucket_requests for info in infos),
        operations_per_second=_or(rate, sum(info.operations_per_second for info in infos)),
        append_stages=stages,
        append_seconds=sum(each.mean for each in stages.values()) if stages else None,
        sync=pairs.latency(metrics.SYNCS),
        refused_per_second=pairs.sum_of_rates(metrics.ERRORS),
        refused_by_code=pairs.sum_of_rates_by_label(metrics.ERRORS),
        busy_by_cause=pairs.sum_of_rates_by_label(metrics.BUSY),
        followers=summed(metrics.FOLLOWERS),
        consumers=summed(metrics.CONSUMERS, metrics.SERVED_CONSUMERS),
        consumers_lag=summed(metrics.CONSUMERS_LAG, metrics.SERVED_CONSUMERS_LAG),
        consumers_lag_max=highest(metrics.CONSUMERS_LAG_MAX, metrics.SERVED_CONSUMERS_LAG_MAX),
        snapshot_lag_seconds=highest(metrics.SNAPSHOT_LAG),
        archived_messages=summed(metrics.ARCHIVED),
        archive_reads_by_source=pairs.sum_of_rates_by_label(metrics.ARCHIVE_READS),
        snapshots_per_second=pairs.sum_of_rates(metrics.SNAPSHOTS),
        takeovers=summed(metrics.TAKEOVERS),
        takeover_pause=Latency.of(
            joined(part.histogram(metrics.TAKEOVER_PAUSES.name) for part in now.parts)
        ),
        fences=summed(metrics.FENCES),
        bucket_failures=summed(metrics.BUCKET_FAILURES),
        term=highest(metrics.TERM),
    )


def _cost(pairs: SnapshotPair) -> Cost | None:
    dollars = sum_of_known(_gauge_of(part)(metrics.BUCKET_DOLLARS) for part in pairs.parts)
    rate = pairs.sum_of_rates(metrics.BUCKET_DOLLARS)
    if dollars is None or rate is None:
        return None
    by_kind = pairs.sum_of_rates_by_label(metrics.BUCKET_DOLLARS)
    return Cost(
        over_seconds=pairs.passed,
        dollars_per_day=rate * DAY_SECONDS,
        dollars_per_day_by_kind={kind: each * DAY_SECONDS for kind, each in by_kind.items()},
        requests_per_second_by_kind=pairs.sum_of_rates_by_label(metrics.BUCKET_REQUESTS),
        dollars=dollars,
        budget_dollars_per_day=sum_of_known(_told(pairs.parts, metrics.BUDGET)),
        budget_left_ratio=min(_told(pairs.parts, metrics.BUDGET_LEFT), default=None),
        flush_interval_seconds=max(_told(pairs.parts, metrics.FLUSH_INTERVAL), default=None),
    )


def _gauge_of(part: PartStatistics) -> Callable[[Description], float | None]:
    """Return a function that reads a number of a part: None if the part does not tell it."""

    def read(metric: Description) -> float | None:
        if any(part.having(metric.name)):
            return part.value(metric.name)
        return None

    return read


def _told(parts: Iterable[PartStatistics], metric: Description) -> list[float]:
    return [value for part in parts if (value := _gauge_of(part)(metric)) is not None]


def _version(part: PartStatistics) -> str:
    for sample in part.having(metrics.BUILD_INFO.name):
        return dict(sample.labels).get("version", "")
    return ""


def _stages(latency_of: Callable[[str], Latency | None]) -> dict[str, Latency]:
    found = {stage: latency_of(stage) for stage in STAGES}
    return {stage: each for stage, each in found.items() if each is not None}


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
