"""Snapshots of clusters, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.protocol.control import ServerInfo
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot


def server(name: str = "s1", state: str = "live", **fields: Any) -> ServerInfo:
    """A server as the coordinator knows it."""
    known = {
        "incarnation": f"{name}-1",
        "heartbeat_age_seconds": 0.2,
        "assigned_stores": 3,
        "open_stores": 2,
        "operations_per_second": 5.0,
        "log_bytes": 100,
    }
    return ServerInfo(server=name, state=state, **{**known, **fields})


def counting(kind: PartKind = PartKind.PERSIST, name: str = "s1", started: int = 1) -> Statistics:
    """What a part counts."""
    return Statistics(kind, name, started, "host-1")


def told(
    statistics: Statistics, *, age_seconds: float = 0.0, incarnation: str | None = None
) -> PartStatistics:
    """What a part tells of itself."""
    name = statistics.name
    return PartStatistics(
        statistics.kind,
        name,
        statistics.host,
        statistics.started_at_ms,
        age_seconds,
        tuple(statistics.samples()),
        incarnation=f"{name}-1" if incarnation is None else incarnation,
    )


def snapshot(
    at: float, servers: Sequence[ServerInfo] = (), parts: Sequence[PartStatistics] = ()
) -> ClusterSnapshot:
    """What the coordinator answers at a time."""
    return ClusterSnapshot(int(at * 1000), at, servers, parts)
