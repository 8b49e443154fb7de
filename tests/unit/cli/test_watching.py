"""`report`, `top` and `cost`: columns, keys, screens and money, without a terminal or a cluster."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.watching.columns import COLUMNS, HEADS, duration, sorted_rows, table_rows
from holdfast.cli.watching.spending import Stored, spending
from holdfast.cli.watching.spending import to_json as cost_json
from holdfast.cli.watching.top_screen import screen
from holdfast.cli.watching.top_state import INTERVALS, ORDERS, TopState
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.cluster_rows import to_json as overview_json
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.overview import overview
from holdfast.protocol.monitoring.prices import Prices
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot
from tests.unit.protocol.monitoring.clusters import counting, server, snapshot, told


class World:
    """Servers `s1` to `s3`, of which `s3` is dead, and a coordinator."""

    def __init__(self, servers: int = 2) -> None:
        self.now = 100.0
        self.servers = [counting(name=f"s{number + 1}") for number in range(servers)]
        self.coordinator = counting(PartKind.COORDINATOR, "c1")
        self.spent = dict.fromkeys(("put", "get"), 0)
        for statistics in self.servers:
            statistics.counter(metrics.OPERATIONS)
            statistics.read_each(metrics.BUCKET_REQUESTS, lambda: dict(self.spent))
            statistics.read_each(
                metrics.BUCKET_DOLLARS, lambda: {"put": self.spent["put"] * 5e-6, "get": 0.0}
            )
            statistics.read(metrics.BUCKET_SENT, lambda: 1 << 30)

    def look(self) -> ClusterSnapshot:
        infos = [
            server(each.name, assigned_stores=number)
            for number, each in enumerate(self.servers)
        ]
        parts = [told(each) for each in (*self.servers, self.coordinator)]
        return snapshot(self.now, [*infos, server("s9", "dead", assigned_stores=50)], parts)

    def wrote(self, statistics: Statistics, operations: int, seconds: float = 0.001) -> None:
        statistics.counter(metrics.OPERATIONS).value += operations
        for stage in ("queue", "sync", "gate", "release"):
            statistics.histogram(metrics.APPEND_STAGES, stage).observe(seconds, operations)
        statistics.histogram(metrics.SYNCS).observe(seconds, operations)


def a_report() -> dict[str, Any]:
    """What `report` prints of a small cluster, for docs/cli.md."""
    world = World()
    world.servers[0].counters(metrics.ERRORS).add("busy")
    earlier = world.look()
    world.wrote(world.servers[0], 1000)
    world.servers[0].counters(metrics.ERRORS).add("busy")
    world.servers[0].counters(metrics.BUSY).add("log")
    world.servers[0].histogram(metrics.TAKEOVER_PAUSES).observe(0.2)
    world.spent["put"] += 8
    world.now += 2
    return overview_json(overview(world.look(), earlier))


def a_cost() -> dict[str, Any]:
    """What `cost` prints of one."""
    world = World(servers=1)
    earlier = world.look()
    world.spent["put"] += 40
    world.now += 10
    stored = Stored.of([("packs/a", 1 << 30)])
    return cost_json(spending(world.look(), earlier, None, stored))


def shown(state: TopState, width: int, height: int | None) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, force_terminal=False)
    console.print(screen(state, width, height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def two_looks(world: World) -> TopState:
    state = TopState("server", 2.0)
    state.looked(world.look())
    world.wrote(world.servers[-1], 1000)
    world.spent["put"] += 100
    world.now += 2.0
    state.looked(world.look())
    return state


def test_rows_are_sorted_by_numbers_from_the_largest_and_unknown_ones_come_last() -> None:
    found = two_looks(World()).overview
    assert found is not None

    def names(column: str, *, upside_down: bool = False) -> str:
        rows = sorted_rows(found.servers, column, upside_down=upside_down)
        return " ".join(row.info.server for row in rows)

    assert names("server") == "s1 s2 s9"
    assert names("server", upside_down=True) == "s9 s2 s1"
    assert names("stores") == "s9 s2 s1"
    assert names("ops/s") == "s2 s9 s1"
    assert names("append-ms") == names("append-ms", upside_down=True) == "s2 s1 s9"


def test_the_last_row_adds_up_those_that_live() -> None:
    found = two_looks(World()).overview
    assert found is not None
    *rows, totals = table_rows(found, found.servers)
    assert len(rows) == 3
    cells = dict(zip(HEADS, totals, strict=True))
    assert (cells["server"], cells["stores"], cells["ops/s"]) == ("total of 3", "1", "500")
    assert len(totals) == len(COLUMNS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (42, "42 s"), (240, "4 min"), (3 * 3600, "3 h"), (86_400 * 12, "12 d")],
)
def test_times_are_told_in_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("height", [12, 24, 50])
def test_a_screen_fits_into_the_terminal(width: int, height: int) -> None:
    state = two_looks(World(servers=60))
    for _ in range(30):
        state.happened.extend(list(state.happened)[:1])
    state.failed("no coordinator answers on prefix 'hf'", state_now(state) + 5)
    lines = shown(state, width, height)
    assert max(map(len, lines)) <= width
    if height >= 24:
        assert len(lines) <= height
    assert any("nothing new for 5.0 s" in line for line in lines)
    assert sum(line.startswith("s") and " live" in line for line in lines) >= 1


def state_now(state: TopState) -> float:
    assert state.overview is not None
    return state.overview.time_ms / 1000


def test_a_screen_has_latencies_by_stage_and_the_cost() -> None:
    text = "\n".join(shown(two_looks(World()), 160, None))
    for word in ("queue", "sync", "gate", "release", "log sync", "500 ops/s", "coordinator", "c1"):
        assert word in text, word
    # 100 puts of two servers in 2 s.
    assert f"${2 * 100 * 5e-6 / 2 * 86_400:,.2f} a day" in text


def test_a_narrow_screen_leaves_no_latency_out() -> None:
    text = "\n".join(shown(two_looks(World()), 60, 24))
    for word in ("queue", "sync", "gate", "release", "log sync"):
        assert f"{word} 0." in text or f"{word} 1." in text, word


def test_a_screen_before_the_first_look_says_what_it_waits_for() -> None:
    assert shown(TopState("server", 2.0), 80, 24) == ["asking the coordinator ..."]


def test_keys_sort_reverse_and_change_the_interval_within_bounds() -> None:
    state = TopState("server", 2.0)
    for order in (*ORDERS[1:], ORDERS[0]):
        state.pressed("s")
        assert state.order == order
    state.pressed("S")
    assert state.order == ORDERS[-1]
    state.pressed("r")
    assert state.upside_down
    for _ in range(10):
        state.pressed("+")
    assert state.interval_seconds == INTERVALS[-1]
    for _ in range(10):
        state.pressed("-")
    assert state.interval_seconds == INTERVALS[0]
    state.pressed("x")
    assert not state.quits
    state.pressed("q")
    assert state.quits


def test_an_order_that_no_key_chooses_goes_on_to_the_first_one() -> None:
    state = TopState("takeovers", 2.0)
    state.pressed("s")
    assert state.order in ORDERS


def test_what_is_remembered_is_bounded_and_reaches_back_ten_minutes() -> None:
    world, state = World(), TopState("server", 2.0)
    for _ in range(40):
        world.now += 20
        state.looked(world.look())
    assert state.overview is not None and state.overview.cost is not None
    assert 600 <= state.overview.cost.over_seconds <= 700
    for _ in range(400):
        world.now += 2.0
        state.looked(world.look())
    assert 600 <= state.overview.cost.over_seconds <= 611
    assert len(state._long_ago) < 70 and len(state._recent) < 8


def test_a_look_before_parts_have_told_anything_new_shows_the_rates_of_the_last_seconds() -> None:
    world, state = World(), TopState("server", 0.5)
    for _ in range(20):
        world.now += 0.5
        world.wrote(world.servers[0], 50)
        state.looked(world.look())
    assert state.overview is not None
    assert state.overview.totals.operations_per_second == 100
    assert state.overview.servers[0].operations_per_second == 100


def test_money_is_told_for_now_and_in_the_mean_since_the_start() -> None:
    world = World(servers=1)
    world.spent["put"] = 1_000
    earlier = world.look()
    world.now += 10
    world.spent["put"] += 40
    found = spending(world.look(), earlier, None, None)
    put = found.kinds[0]
    assert (put.kind, put.requests) == ("put", 1040)
    assert put.requests_per_second == pytest.approx(4)
    assert put.dollars_per_month_now == pytest.approx(52.6, rel=0.01)
    assert put.dollars_per_month_mean == pytest.approx(1040 * 5e-6 / 109.999 * 2_629_800)
    assert found.per_month_now == pytest.approx(put.dollars_per_month_now)
    assert [part.name for part in found.parts] == ["s1"], "a part without a bucket costs nothing"
    assert found.parts[0].budget_dollars_per_day is None


def test_another_table_counts_requests_bytes_and_what_is_stored_anew() -> None:
    world = World(servers=1)
    world.spent["get"] = 2_000
    world.servers[0].read(metrics.BUDGET, lambda: 0.5)
    world.servers[0].read(metrics.BUDGET_LEFT, lambda: 0.25)
    prices = Prices(dict.fromkeys(("put", "get"), 1.0), gib_month=2.0, gib_sent=0.5, currency="EUR")
    stored = Stored.of([("log/s1/1", 1 << 30), ("log/s1/2", 1 << 30), ("packs/a", 1 << 30)])
    found = spending(world.look(), None, prices, stored)
    costs = {each.kind: each.dollars for each in found.kinds}
    assert (costs["get"], costs["transfer"]) == (2.0, 0.5)
    assert found.per_month_now is None, "one look tells no rate"
    assert found.storage_per_month == 6.0
    assert stored.objects == {"log": 2, "packs": 1}
    assert (found.parts[0].budget_dollars_per_day, found.parts[0].budget_left_ratio) == (0.5, 0.25)


def test_a_part_that_began_anew_counts_its_new_life_alone() -> None:
    world = World(servers=1)
    world.spent["put"] = 1_000
    earlier = world.look()
    world.now += 10
    world.spent["put"] = 5
    world.servers[0].started_at_ms = 105_000
    found = spending(world.look(), earlier, None, None)
    assert found.kinds[0].dollars_per_month_now is None
    assert found.kinds[0].requests == 5


def test_an_overview_without_statistics_still_has_all_servers() -> None:
    found = overview(snapshot(1.0, [server("s1")]))
    (row, totals) = table_rows(found, found.servers)
    assert row[0] == "s1"
    assert totals[0] == "total of 1"
