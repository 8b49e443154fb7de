"""What is wrong in a cluster, or will be, by what its parts tell. Pure.

Each finding has a stable code, a subject and advice, like those of `holdfast doctor`. The doctor
reads files and logs and sees damage; here is only what a client of the cluster can know.
docs/console.md lists the codes, and a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from holdfast.protocol.control import ServerState, missing_roles
from holdfast.protocol.monitoring.cluster_rows import Overview, ServerRow
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.happenings import Gravity

#: A sync of a healthy disk takes far less; clients wait for it with every append.
SLOW_SYNC_SECONDS: Final = 0.25
#: Snapshots of changed stores are usually published within minutes.
LATE_SNAPSHOT_SECONDS: Final = 15 * 60.0
#: Of one processor; above it, requests queue in the server.
BUSY_CPU_SHARE: Final = 0.9
#: Refusals a second that no application causes by asking for something that is not there.
_NOTABLE_REFUSALS: Final = 0.2
_OF_THE_CLUSTER: Final = frozenset(
    ["busy", "internal_error", "no_server", "storage_failed", "store_damaged", "timeout"]
)


class ClusterFinding(NamedTuple):
    """One thing that an operator should know."""

    code: str
    severity: Gravity
    subject: str
    text: str
    advice: str

    def to_json(self) -> dict[str, str]:
        """Return it for JSON."""
        return dict(self._asdict())


class _Check(NamedTuple):
    code: str
    severity: Gravity
    about: str
    advice: str
    #: Yields pairs of subject and text.
    find: Callable[[Overview], Iterator[tuple[str, str]]]


def findings(found: Overview) -> list[ClusterFinding]:
    """Return all findings, the worst first."""
    all_of_them = [
        ClusterFinding(check.code, check.severity, subject, text, check.advice)
        for check in CHECKS
        for subject, text in check.find(found)
    ]
    order = [Gravity.CRITICAL, Gravity.WARNING, Gravity.NOTE]
    return sorted(all_of_them, key=lambda each: (order.index(each.severity), each.code))


def _no_server(found: Overview) -> Iterator[tuple[str, str]]:
    if not found.totals.servers_by_state.get(ServerState.LIVE):
        yield "cluster", "no persist server is live: nothing can be read or written"


def _missing_roles(found: Overview) -> Iterator[tuple[str, str]]:
    for role in missing_roles(row.info for row in found.servers):
        yield "cluster", f"no live server has the role {role}: nobody does its work"


def _archive_fallbacks(found: Overview) -> Iterator[tuple[str, str]]:
    rate = found.totals.archive_reads_by_source.get("fallback", 0.0)
    if rate:
        text = (
            f"owners without the role archive read {rate:,.1f} archived messages a second "
            "themselves: no server with that role in their zone helps them"
        )
        yield "cluster", text


def _in_state(state: ServerState, text: str) -> Callable[[Overview], Iterator[tuple[str, str]]]:
    def find(found: Overview) -> Iterator[tuple[str, str]]:
        for row in found.servers:
            if row.info.state == state:
                yield row.info.server, text

    return find


def _mixed_access(found: Overview) -> Iterator[tuple[str, str]]:
    asking = {row.info.asks_for_tokens for row in _alive(found)}
    if len(asking) > 1:
        for row in _alive(found):
            if not row.info.asks_for_tokens:
                yield row.info.server, "serves everybody, while other servers ask for tokens"


def _open_access(found: Overview) -> Iterator[tuple[str, str]]:
    rows = _alive(found)
    if rows and not any(row.info.asks_for_tokens for row in rows):
        yield "cluster", "no server asks for tokens: whoever reaches its NATS may use it"


def _no_standby(found: Overview) -> Iterator[tuple[str, str]]:
    kinds = {part.kind for part in found.parts}
    if PartKind.COORDINATOR in kinds and PartKind.STANDBY not in kinds:
        yield "cluster", "there is one coordinator and no standby"


def _one_server(found: Overview) -> Iterator[tuple[str, str]]:
    if found.totals.servers_by_state.get(ServerState.LIVE) == 1:
        yield "cluster", "there is one live server: nobody takes over from it"


def _versions(found: Overview) -> Iterator[tuple[str, str]]:
    versions = {row.version for row in found.servers} | {part.version for part in found.parts}
    versions.discard("")
    if len(versions) > 1:
        yield "cluster", f"its parts have different versions: {', '.join(sorted(versions))}"


def _slow_syncs(found: Overview) -> Iterator[tuple[str, str]]:
    for row in found.servers:
        if row.sync is not None and row.sync.p99 > SLOW_SYNC_SECONDS:
            yield row.info.server, f"one sync in a hundred takes {row.sync.p99:.2f} s or longer"


def _late_snapshots(found: Overview) -> Iterator[tuple[str, str]]:
    for row in found.servers:
        lag = row.snapshot_lag_seconds
        if lag is not None and lag > LATE_SNAPSHOT_SECONDS:
            yield row.info.server, f"a changed store has waited {lag / 60:.0f} min for its snapshot"


def _busy_processors(found: Overview) -> Iterator[tuple[str, str]]:
    for row in found.servers:
        if row.cpu_share is not None and row.cpu_share > BUSY_CPU_SHARE:
            yield row.info.server, f"it uses {row.cpu_share:.0%} of a processor"


def _refusals(found: Overview) -> Iterator[tuple[str, str]]:
    for code, rate in sorted(found.totals.refused_by_code.items()):
        if code in _OF_THE_CLUSTER and rate > _NOTABLE_REFUSALS:
            yield "cluster", f"callers get {rate:,.1f} refusals a second with {code}"


def _alive(found: Overview) -> list[ServerRow]:
    return [row for row in found.servers if row.info.state != ServerState.DEAD]


CHECKS: Final = (
    _Check(
        "HF-101", Gravity.CRITICAL, "a persist server is live",
        "start one: holdfast persist",
        _no_server,
    ),
    _Check(
        "HF-102", Gravity.WARNING, "no server is dead",
        "start it again; if it is gone for good: holdfast servers --forget NAME",
        _in_state(
            ServerState.DEAD, "is dead and fenced; its stores get new owners when they are used"
        ),
    ),
    _Check(
        "HF-103", Gravity.WARNING, "every server answers",
        "look at its log and its host; the coordinator fences it if it stays silent",
        _in_state(ServerState.SUSPECT, "does not answer, and is being probed"),
    ),
    _Check(
        "HF-104", Gravity.CRITICAL, "all servers ask for tokens, or none does",
        "give every server the same access folder, and restart those that are open",
        _mixed_access,
    ),
    _Check(
        "HF-105", Gravity.WARNING, "the log is synced quickly",
        "look at the disk: appends wait for every sync",
        _slow_syncs,
    ),
    _Check(
        "HF-106", Gravity.WARNING, "snapshots are published in time",
        "look at the bucket and the server's log: cold copies and backups fall behind",
        _late_snapshots,
    ),
    _Check(
        "HF-107", Gravity.WARNING, "the cluster refuses nobody for want of room or health",
        "look at the load of the servers, their disks and their logs",
        _refusals,
    ),
    _Check(
        "HF-108", Gravity.WARNING, "no server uses all of a processor",
        "add a server, or a faster processor",
        _busy_processors,
    ),
    _Check(
        "HF-109", Gravity.NOTE, "there is a standby coordinator",
        "run a second coordinator on another host",
        _no_standby,
    ),
    _Check(
        "HF-110", Gravity.NOTE, "there is more than one live server",
        "add one: holdfast persist",
        _one_server,
    ),
    _Check(
        "HF-111", Gravity.NOTE, "servers ask for tokens",
        "docs/access.md says how; on one machine an open cluster is fine",
        _open_access,
    ),
    _Check(
        "HF-112", Gravity.NOTE, "all parts have one version",
        "finish the upgrade",
        _versions,
    ),
    _Check(
        "HF-113", Gravity.CRITICAL, "each role has a live server",
        "start a server with that role: holdfast persist --roles",
        _missing_roles,
    ),
    _Check(
        "HF-114", Gravity.NOTE, "servers with the role archive read archived messages",
        "start one in that zone, holdfast persist --roles archive, or give the owners the role",
        _archive_fallbacks,
    ),
)


def checks_json() -> list[dict[str, Any]]:
    """Return what is checked, for the console."""
    return [{"code": check.code, "about": check.about} for check in CHECKS]
