"""A cluster at one moment: rates are those between two reports, and unknown where they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.control import ServerState
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.cluster_rows import to_json
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.overview import overview
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot
from tests.unit.protocol.monitoring.clusters import counting, server, snapshot, told


def two_snapshots() -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """A server that executes 40 operations in four seconds, and its gateway."""
    persist = counting()
    persist.counter(metrics.OPERATIONS).value = 1000
    persist.counters(metrics.BUCKET_DOLLARS).add("put", 1.0)
    persist.histogram(metrics.SYNCS).observe(5.0, 1000)
    persist.histogram(metrics.APPEND_STAGES, "sync").observe(9.0, 1000)
    persist.histogram(metrics.APPEND_STAGES, "gate").observe(9.0, 1000)
    persist.read(metrics.CONSUMERS_LAG, lambda: 12)
    persist.read(metrics.CONSUMERS_LAG_MAX, lambda: 9)
    earlier = snapshot(100, [server()], [told(persist)])
    persist.counter(metrics.OPERATIONS).value += 40
    persist.counters(metrics.BUCKET_DOLLARS).add("put", 0.5)
    persist.counters(metrics.ERRORS).add("busy", 8)
    persist.histogram(metrics.SYNCS).observe(0.002, 10)
    persist.histogram(metrics.APPEND_STAGES, "sync").observe(0.002, 10)
    persist.histogram(metrics.APPEND_STAGES, "gate").observe(0.001, 10)
    gateway = counting(PartKind.GATEWAY_HTTP, "g1")
    gateway.read_each(metrics.FOLLOWERS, lambda: {"sse": 3, "websocket": 4})
    jetstream = counting(PartKind.GATEWAY_JETSTREAM, "j1")
    jetstream.read(metrics.SERVED_CONSUMERS, lambda: 2)
    jetstream.read(metrics.SERVED_CONSUMERS_LAG, lambda: 30)
    jetstream.read(metrics.SERVED_CONSUMERS_LAG_MAX, lambda: 30)
    return earlier, snapshot(104, [server()], [told(persist), told(gateway), told(jetstream)])


def test_rates_are_those_between_the_snapshots() -> None:
    earlier, now = two_snapshots()
    found = overview(now, earlier)
    (row,) = found.servers
    assert row.operations_per_second == found.totals.operations_per_second == 10
    assert row.refused_per_second == 2
    assert found.totals.refused_by_code == {"busy": 2}
    assert found.cost is not None and found.cost.dollars == 1.5
    assert found.cost.dollars_per_day_by_kind == {"put": pytest.approx(0.5 / 4 * 86_400)}
    assert found.totals.followers == 7


def test_the_lag_of_consumers_is_that_of_servers_and_of_jetstream_gateways() -> None:
    earlier, now = two_snapshots()
    totals = overview(now, earlier).totals
    assert (totals.consumers, totals.consumers_lag, totals.consumers_lag_max) == (2, 42, 30)


def test_a_part_that_does_not_count_something_says_nothing_of_its_rate() -> None:
    persist, coordinator = counting(), counting(PartKind.COORDINATOR, "c1")
    earlier = snapshot(100, [server()], [told(persist), told(coordinator)])
    # The server has told nothing new, so only the coordinator's rates are known.
    parts = [told(persist, age_seconds=1.0), told(coordinator)]
    found = overview(snapshot(101, [server()], parts), earlier)
    assert found.totals.operations_per_second == 5.0
    assert found.totals.refused_per_second == 0.0


def test_latencies_are_those_since_the_earlier_snapshot_alone() -> None:
    earlier, now = two_snapshots()
    found = overview(now, earlier)
    sync = found.totals.sync
    assert sync is not None and sync.p99 <= 0.0025 and sync.mean == pytest.approx(0.002)
    assert list(found.totals.append_stages) == ["sync", "gate"]
    assert found.totals.append_seconds == pytest.approx(0.003)
    assert found.servers[0].append_seconds == pytest.approx(0.003)


def test_the_first_look_knows_no_rates_but_those_that_servers_tell() -> None:
    _, now = two_snapshots()
    found = overview(now)
    assert found.totals.operations_per_second == 5
    assert found.totals.refused_per_second is None and found.totals.sync is None
    assert found.cost is None and found.has_statistics


def test_a_part_that_told_nothing_new_has_no_rates() -> None:
    persist = counting()
    persist.counter(metrics.OPERATIONS).value = 1000
    earlier = snapshot(100, [server()], [told(persist, age_seconds=0.1)])
    now = snapshot(102, [server()], [told(persist, age_seconds=2.1)])
    assert overview(now, earlier).servers[0].operations_per_second == 5


def test_rates_are_by_when_parts_told_not_by_when_they_were_asked() -> None:
    persist = counting()
    before = told(persist, age_seconds=1.0)
    persist.counter(metrics.OPERATIONS).value += 30
    now = snapshot(102, [server()], [told(persist, age_seconds=0.0)])
    found = overview(now, snapshot(100, [server()], [before]))
    assert found.servers[0].operations_per_second == 10


def test_a_part_that_began_anew_counts_from_zero() -> None:
    old, new = counting(started=1), counting(started=2)
    old.counter(metrics.OPERATIONS).value = 1_000_000
    new.counter(metrics.OPERATIONS).value = 20
    now = snapshot(102, [server(incarnation="s1-2")], [told(new, incarnation="s1-2")])
    found = overview(now, snapshot(100, [server()], [told(old)]))
    assert found.servers[0].operations_per_second == 10


def test_statistics_of_another_life_are_not_those_of_a_server() -> None:
    now = snapshot(102, [server(incarnation="s1-2")], [told(counting())])
    assert overview(now).servers[0].host == ""


def test_dead_servers_count_only_as_dead() -> None:
    now = snapshot(100, [server(), server("s2", ServerState.DEAD)], [])
    totals = overview(now).totals
    assert totals.servers_by_state == {"live": 1, "dead": 1}
    assert totals.assigned_stores == 3 and totals.log_bytes == 100


def test_costs_are_those_of_a_longer_time() -> None:
    earlier, now = two_snapshots()
    free = counting()
    free.counters(metrics.BUCKET_DOLLARS).add("put", 0.0)
    long_ago = snapshot(4, [server()], [told(free)])
    found = overview(now, earlier, long_ago)
    assert found.cost is not None and found.cost.over_seconds == 100
    assert found.cost.dollars_per_day == pytest.approx(1.5 / 100 * 86_400)


@given(st.data())
def test_any_two_snapshots_make_an_overview_that_is_json(data: st.DataObject) -> None:
    numbers = st.floats(0, 1e15)

    def part() -> ClusterSnapshot:
        statistics = counting(started=data.draw(st.integers(0, 1)))
        statistics.counter(metrics.OPERATIONS).value = data.draw(numbers)
        statistics.counters(metrics.ERRORS).add(data.draw(st.sampled_from("ab")), 1)
        statistics.histogram(metrics.SYNCS).observe(data.draw(numbers), 3)
        age, at = data.draw(st.floats(0, 60)), data.draw(st.floats(0, 1e6))
        return snapshot(at, [server()], [told(statistics, age_seconds=age)])

    found = to_json(overview(part(), part()))
    assert json.loads(json.dumps(found, allow_nan=False))["servers"][0]["server"] == "s1"
    assert found["totals"]["operations_per_second"] >= 0
