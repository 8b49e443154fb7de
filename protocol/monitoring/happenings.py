"""What happened in a cluster between two snapshots: servers that came, died or moved on, takeovers,
coordinators that changed. Pure.

Only what the snapshots show is told. What happened and was undone in between leaves no trace here;
the log of each part has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import Description, PartKind
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot


class Gravity(StrEnum):
    """How bad something is."""

    NOTE = "note"
    WARNING = "warning"
    CRITICAL = "critical"


class Happening(NamedTuple):
    """Something that happened."""

    time_ms: int
    #: A stable word, such as `server.dead`.
    kind: str
    severity: Gravity
    #: The part that it happened to.
    subject: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = self._asdict()
        return {"time": fields.pop("time_ms"), **fields}


_STATES: Final = {
    ServerState.LIVE: (Gravity.NOTE, "is live"),
    ServerState.DRAINING: (Gravity.NOTE, "is draining: it hands over its stores"),
    ServerState.SUSPECT: (Gravity.WARNING, "does not answer, and is being probed"),
    ServerState.DEAD: (
        Gravity.CRITICAL, "is dead and fenced: its stores get new owners when they are used"
    ),
}


def happenings(now: ClusterSnapshot, earlier: ClusterSnapshot) -> list[Happening]:
    """Return what happened between two snapshots."""
    return [*_of_servers(now, earlier), *_of_parts(now, earlier)]


def _of_servers(now: ClusterSnapshot, earlier: ClusterSnapshot) -> Iterator[Happening]:
    before = {info.server: info for info in earlier.servers}
    for info in sorted(now.servers, key=lambda info: info.server):
        was = before.pop(info.server, None)
        yield from _of_server(now.time_ms, info, was)
    for name in before:
        yield Happening(
            now.time_ms, "server.forgotten", Gravity.NOTE, name,
            "is no longer in the list of servers",
        )


def _of_server(time_ms: int, info: ServerInfo, was: ServerInfo | None) -> Iterator[Happening]:
    def happened(kind: str, severity: Gravity, text: str) -> Happening:
        return Happening(time_ms, f"server.{kind}", severity, info.server, text)

    if was is None:
        yield happened("joined", Gravity.NOTE, "joined the cluster")
    elif was.incarnation != info.incarnation:
        yield happened("restarted", Gravity.NOTE, f"began a new life, {info.incarnation}")
    if (was is None and info.state == ServerState.LIVE) or (was and was.state == info.state):
        return
    try:
        severity, text = _STATES[ServerState(info.state)]
    except (ValueError, KeyError):
        severity, text = Gravity.NOTE, f"is {info.state}"
    yield happened(info.state, severity, text)


def _of_parts(now: ClusterSnapshot, earlier: ClusterSnapshot) -> Iterator[Happening]:
    before = {(part.kind, part.name, part.started_at_ms): part for part in earlier.parts}
    for part in now.parts:
        was = before.get((part.kind, part.name, part.started_at_ms))
        for event in _of_counters(part, was, bool(earlier.parts)):
            yield event._replace(time_ms=now.time_ms)
    if earlier.parts and now.parts:
        yield from _of_coordinators(now, earlier)
        yield from _of_gateways(now, earlier)


def _of_counters(
    part: PartStatistics, was: PartStatistics | None, known: bool
) -> Iterator[Happening]:
    if was is None and not known:
        return

    def grown(metric: Description) -> int:
        return int(part.value(metric.name) - (was.value(metric.name) if was else 0))

    taken = grown(metrics.TAKEOVERS)
    if taken > 0:
        text = f"took over {taken:,} store{'s' * (taken > 1)} with changes from a dead server's log"
        pause = part.histogram(metrics.TAKEOVER_PAUSES.name)
        before = was.histogram(metrics.TAKEOVER_PAUSES.name) if was else None
        if pause is not None:
            pause = pause if before is None else pause.since(before)
            text += f", {pause.mean:.2f} s each" if pause.observations else ""
        yield Happening(0, "stores.taken_over", Gravity.WARNING, part.name, text)
    failures = grown(metrics.BUCKET_FAILURES)
    if failures > 0:
        text = f"{failures:,} request{'s' * (failures > 1)} to the bucket failed"
        yield Happening(0, "bucket.failed", Gravity.WARNING, part.name, text)


def _of_coordinators(now: ClusterSnapshot, earlier: ClusterSnapshot) -> Iterator[Happening]:
    active = _active(now)
    was = _active(earlier)
    if active is not None and (was is None or active[:2] != was[:2]):
        yield Happening(
            now.time_ms, "coordinator.active", Gravity.WARNING, active[0],
            f"is the active coordinator, in term {active[2]:.0f}",
        )


def _active(snapshot: ClusterSnapshot) -> tuple[str, int, float] | None:
    for part in snapshot.parts:
        if part.kind == PartKind.COORDINATOR:
            return part.name, part.started_at_ms, part.value(metrics.TERM.name)
    return None


def _of_gateways(now: ClusterSnapshot, earlier: ClusterSnapshot) -> Iterator[Happening]:
    kinds = (PartKind.GATEWAY_HTTP, PartKind.GATEWAY_JETSTREAM, PartKind.AUTH, PartKind.STANDBY)
    words = {kind.value: kind.value.replace("_", " ") for kind in kinds}

    def named(snapshot: ClusterSnapshot) -> dict[tuple[str, str], str]:
        return {(p.kind, p.name): words[p.kind] for p in snapshot.parts if p.kind in words}

    here, before = named(now), named(earlier)
    became_active = {part.name for part in now.parts if part.kind == PartKind.COORDINATOR}
    for kind, name in sorted(here.keys() - before.keys()):
        yield Happening(
            now.time_ms, "part.started", Gravity.NOTE, name, f"started: {words[kind]}"
        )
    for kind, name in sorted(before.keys() - here.keys()):
        if name not in became_active:
            yield Happening(
                now.time_ms, "part.silent", Gravity.WARNING, name, f"is silent: {words[kind]}"
            )
