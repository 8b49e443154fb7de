"""What happened between two snapshots, and what is wrong in one."""

from __future__ import annotations

from holdfast.protocol.control import ServerState
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.findings import CHECKS, findings
from holdfast.protocol.monitoring.happenings import Gravity, happenings
from holdfast.protocol.monitoring.overview import overview
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot
from tests.support.documents import read, table
from tests.unit.protocol.monitoring.clusters import counting, server, snapshot, told


def kinds(now: ClusterSnapshot, earlier: ClusterSnapshot) -> list[tuple[str, str]]:
    """Kind and subject of what happened."""
    return [(each.kind, each.subject) for each in happenings(now, earlier)]


def codes(now: ClusterSnapshot, earlier: ClusterSnapshot | None = None) -> list[tuple[str, str]]:
    """Code and subject of the findings."""
    return [(each.code, each.subject) for each in findings(overview(now, earlier))]


def test_nothing_happens_while_nothing_changes() -> None:
    same = [server(), server("s2")]
    assert kinds(snapshot(102, same), snapshot(100, same)) == []


def test_servers_come_die_return_and_go() -> None:
    before = snapshot(100, [server("s1"), server("s2"), server("s3", ServerState.SUSPECT)])
    after = snapshot(102, [
        server("s1", ServerState.DEAD), server("s3"), server("s4"), server("s5", ServerState.DEAD),
    ])
    assert kinds(after, before) == [
        ("server.dead", "s1"), ("server.live", "s3"), ("server.joined", "s4"),
        ("server.joined", "s5"), ("server.dead", "s5"), ("server.forgotten", "s2"),
    ]
    dead = happenings(after, before)[0]
    assert dead.severity is Gravity.CRITICAL and dead.time_ms == 102_000
    again = snapshot(104, [server("s1", incarnation="s1-2")])
    assert kinds(again, snapshot(102, [server("s1", ServerState.DEAD)])) == [
        ("server.restarted", "s1"), ("server.live", "s1"),
    ]


def test_a_state_of_a_newer_version_is_told_as_it_is() -> None:
    found = happenings(snapshot(102, [server(state="asleep")]), snapshot(100, [server()]))
    assert [(each.kind, each.text) for each in found] == [("server.asleep", "is asleep")]


def test_takeovers_are_told_with_their_pause() -> None:
    persist = counting()
    persist.histogram(metrics.TAKEOVER_PAUSES).observe(9.0, 5)
    before = snapshot(100, [server()], [told(persist)])
    persist.counter(metrics.TAKEOVERS).value += 3
    persist.histogram(metrics.TAKEOVER_PAUSES).observe(0.25, 3)
    (found,) = happenings(snapshot(102, [server()], [told(persist)]), before)
    assert found.kind == "stores.taken_over"
    assert "3 stores" in found.text and "0.25 s" in found.text


def test_another_coordinator_and_gateways_that_come_and_go_are_told() -> None:
    active = told(counting(PartKind.COORDINATOR, "c1"))
    standby = told(counting(PartKind.STANDBY, "c2"))
    gateway = told(counting(PartKind.GATEWAY_HTTP, "g1"))
    now_active = told(counting(PartKind.COORDINATOR, "c2"))
    before = snapshot(100, [], [active, standby, gateway])
    assert kinds(snapshot(102, [], [now_active]), before) == [
        ("coordinator.active", "c2"), ("part.silent", "g1"),
    ]
    assert kinds(before, snapshot(98, [], [active, standby])) == [("part.started", "g1")]


def test_what_was_counted_before_the_first_look_did_not_happen_now() -> None:
    persist = counting()
    persist.counter(metrics.TAKEOVERS).value = 7
    assert kinds(snapshot(102, [server()], [told(persist)]), snapshot(100, [server()])) == []


def test_a_cluster_without_a_live_server_is_critical() -> None:
    found = codes(snapshot(100, [server(state=ServerState.DEAD)]))
    assert found[0] == ("HF-101", "cluster") and ("HF-102", "s1") in found


def test_a_server_that_is_open_beside_others_that_ask_is_critical() -> None:
    servers = [server("s1", asks_for_tokens=True), server("s2")]
    assert codes(snapshot(100, servers))[0] == ("HF-104", "s2")
    asking = [server("s1", asks_for_tokens=True), server("s2", asks_for_tokens=True)]
    assert codes(snapshot(100, asking)) == []


def test_slow_syncs_late_snapshots_and_refusals_are_found() -> None:
    persist = counting()
    persist.read(metrics.SNAPSHOT_LAG, lambda: 3600)
    before = snapshot(100, [server()], [told(persist)])
    persist.histogram(metrics.SYNCS).observe(2.0, 10)
    persist.counters(metrics.ERRORS).add("busy", 10)
    persist.counters(metrics.ERRORS).add("not_found", 1000)
    persist.counter(metrics.PROCESS_CPU).value += 3.9
    found = codes(snapshot(104, [server()], [told(persist)]), before)
    assert {"HF-105", "HF-106", "HF-107", "HF-108"} <= {code for code, _ in found}
    assert [code for code, _ in found].count("HF-107") == 1


def test_owners_that_must_read_the_archive_themselves_are_found() -> None:
    persist = counting()
    reads = persist.counters(metrics.ARCHIVE_READS)
    reads.add("fallback", 7)
    before = snapshot(100, [server()], [told(persist)])
    reads.add("own", 100)
    reads.add("server", 100)
    assert "HF-114" not in dict(codes(snapshot(104, [server()], [told(persist)]), before))
    reads.add("fallback", 100)
    assert ("HF-114", "cluster") in codes(snapshot(104, [server()], [told(persist)]), before)


def test_every_check_is_in_the_document() -> None:
    listed = {row[0]: (row[1], row[2]) for row in table(read("console.md"), "Code")}
    expected = {check.code: (check.severity.value, check.about) for check in CHECKS}
    assert listed == expected
