"""The benchmarks of holdfast by itself from end to end, as small as can be; no number is judged."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.bench import direct
from holdfast.bench.compare import compare_chains, compare_tokens
from holdfast.bench.direct import connected_directly
from holdfast.bench.processes import BenchProcessError, running_cluster
from holdfast.bench.store import (
    engine,
    fairness,
    floor,
    idle,
    kills,
    large,
    rebalancing,
    removals,
    threads,
)
from holdfast.bench.users import users
from holdfast.bench.users.client import TENANT, ClientTask, run_client
from holdfast.bench.users.plan import document_name
from holdfast.client import connect
from holdfast.protocol.errors import InvalidArgumentError
from tests.support.forked_bench import forked_servers, measured, quick_options
from tests.support.waiting import until

_DEADLINE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    with forked_servers():
        yield


def test_the_store_layer_is_measured_beside_its_yardsticks(tmp_path: Path) -> None:
    works = measured(engine, tmp_path)
    assert [work.name for work in works] == list(engine.WORK_NAMES)
    assert {"store file", "store", "sqlite"} == set(works[0].sides)


def test_one_work_can_be_measured_alone(tmp_path: Path) -> None:
    report = engine.run(quick_options(tmp_path, "log_small"))
    assert [work.name for work in report.works] == ["log_small"]


def test_users_are_measured_with_each_number_of_servers(tmp_path: Path) -> None:
    [work] = measured(users, tmp_path)
    assert list(work.sides) == ["1 server", "2 servers"]
    figures = work.sides["2 servers"].rounds[0]
    # What was due in the last moment of a busy machine is answered after the end.
    assert 0 < figures["operations"] <= users.QUICK.seconds * users.QUICK.per_second
    assert figures["deliveries_per_second"] > 0
    for process in ("nats_server", "coordinator", "s1", "s2", "client1", "client2"):
        assert figures[f"{process}_rss_bytes"] > 0
        assert f"{process}_cpu_ratio" in figures


@pytest.mark.parametrize("meddle", [False, True])
def test_a_message_that_no_user_wrote_is_found_when_streams_are_read_back(
    tmp_path: Path, meddle: bool
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    async def until_written(name: str) -> str:
        give_up_at = time.monotonic() + _DEADLINE_SECONDS
        while not (meeting / name).exists():
            assert time.monotonic() < give_up_at, f"the client never came to {name}"
            await asyncio.sleep(0.01)
        return (meeting / name).read_text()

    async def be_the_others(url: str) -> list[str]:
        await until_written("joined.0")
        (meeting / "joined").touch()
        if meddle:
            async with connect(url, tenant=TENANT) as stranger:
                await stranger.stream(document_name(3)).append(b"not mine")
        (meeting / "begin.new").write_text(str(time.monotonic()))
        (meeting / "begin.new").rename(meeting / "begin")
        await until_written("sent.0")
        (meeting / "sent").touch()
        problems: list[str] = json.loads(await until_written("checked.0"))["problems"]
        return problems

    async def scenario() -> list[str]:
        task = ClientTask(cluster.url, str(meeting), 0, 1, 10, 5, 100.0, 0.5, None)
        async with asyncio.timeout(_DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
            others = tasks.create_task(be_the_others(cluster.url))
            await run_client(task)
        return others.result()

    with running_cluster(quick_options(tmp_path), tmp_path / "cluster") as cluster:
        problems = asyncio.run(scenario())
    assert bool(problems) is meddle
    assert all("user 3" in problem for problem in problems)


def test_idle_stores_are_measured_beside_jetstream(tmp_path: Path) -> None:
    [work] = measured(idle, tmp_path)
    assert len(work.sides) == 3
    for side in work.sides.values():
        assert side.median("first_ack_ms") > 0
        assert side.median("open_p50_ms") > 0
        assert side.median("server_rss_bytes") > 0


def test_fewer_idle_stores_than_have_a_file_or_too_many_rounds_are_refused(tmp_path: Path) -> None:
    few = dataclasses.replace(idle.QUICK, stores=(idle.QUICK.files,))
    with pytest.raises(InvalidArgumentError, match="stores"):
        idle.run(quick_options(tmp_path), few)
    with pytest.raises(InvalidArgumentError, match="rounds"):
        idle.run(dataclasses.replace(quick_options(tmp_path), rounds=1000))


def test_what_neighbours_feel_is_measured(tmp_path: Path) -> None:
    [work] = measured(fairness, tmp_path)
    assert set(work.sides) == {"alone", "writer", "reader"}


def test_what_a_large_removal_costs_others_is_measured_beside_jetstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "_NOISE_SECONDS", 0.1)
    monkeypatch.setattr(removals, "_MAX_AGE_SECONDS", 0.2)
    settings = fairness.FairnessSettings(users=2, per_second=100.0, seconds=0.05)
    [work] = removals.run(quick_options(tmp_path), settings, 2000).works
    ours = {"alone", "delete_all", "age"}
    assert set(work.sides) == ours | {f"jetstream {kind}" for kind in (*ours, "writer")}
    assert all(side.median("p99_ms") > 0 for side in work.sides.values())
    assert list(tmp_path.iterdir()) == []


def test_one_write_after_the_other_is_measured_beside_the_floor(tmp_path: Path) -> None:
    [work] = measured(floor, tmp_path)
    assert work.sides["floor"].median("p50_ms") > work.sides["fdatasync"].median("p50_ms") > 0
    for stage in ("read", "append, synced", "read, direct", "append, synced, direct"):
        assert work.sides[stage].median("p50_ms") > 0


def test_what_is_measured_as_direct_goes_past_nats(tmp_path: Path) -> None:
    async def scenario(folder: Path) -> None:
        async with connected_directly(cluster, "bench", folder) as (_, connection):
            connection.check()
            cluster.kill("s1")
            await until(lambda: not connection.is_direct)
            with pytest.raises(BenchProcessError, match="not connected directly"):
                connection.check()

    arguments = ("--direct", str(tmp_path / "direct"))
    options = quick_options(tmp_path)
    with running_cluster(options, tmp_path / "c", persist_arguments=arguments) as cluster:
        asyncio.run(scenario(tmp_path / "direct"))


def test_a_benchmark_of_direct_connections_without_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_WAIT_SECONDS", 0.2)

    async def scenario() -> None:
        async with connected_directly(cluster, "bench", tmp_path / "nothing"):
            pass

    with (
        running_cluster(quick_options(tmp_path), tmp_path / "c") as cluster,
        pytest.raises(BenchProcessError, match="not connected directly"),
    ):
        asyncio.run(scenario())


def test_what_a_kill_of_the_owner_costs_is_measured(tmp_path: Path) -> None:
    [work] = measured(kills, tmp_path)
    figures = work.sides["holdfast"]
    assert figures.median("longest_ack_max_ms") > 0
    assert figures.median("first_change_p50_ms") > 0
    assert figures.median("first_ack_p50_ms") > 0


def test_what_evening_out_the_load_costs_is_measured(tmp_path: Path) -> None:
    [work] = measured(rebalancing, tmp_path)
    figures = work.sides["holdfast"]
    assert figures.median("moves") >= 1
    assert figures.median("imbalance_before_ratio") > 1.2
    assert figures.median("moved_longest_max_ms") > 0


def test_what_tokens_cost_is_measured_beside_two_open_clusters(tmp_path: Path) -> None:
    with forked_servers():
        report = compare_tokens.run(quick_options(tmp_path, "kv_set_1000"))
    [work] = report.works
    assert set(work.sides) == {"open", "open_again", "tokens"}
    assert work.sides["open"].median("cpu_of_open_ratio") == 1.0
    assert work.sides["tokens"].median("server_cpu_us_per_operation") > 0
    assert compare_tokens.table(report).rows


def test_what_a_chain_costs_is_measured_beside_two_clusters_without(tmp_path: Path) -> None:
    with forked_servers():
        report = compare_chains.run(quick_options(tmp_path, "append_64"))
    [work] = report.works
    assert set(work.sides) == {"plain", "plain_again", "chain"}
    assert work.sides["plain"].median("cpu_of_plain_ratio") == 1.0
    figures = work.sides["chain"]
    of_server = figures.median("server_cpu_us_per_operation")
    assert figures.median("cpu_us_per_operation") > of_server > 0
    assert compare_chains.table(report).rows


def test_threads_are_measured_beside_tasks(tmp_path: Path) -> None:
    names = [work.name for work in measured(threads, tmp_path)]
    assert names == ["append_1", "append_16", "append_64", "append_async"]


def test_a_large_value_is_measured(tmp_path: Path) -> None:
    [work] = measured(large, tmp_path)
    assert list(work.sides) == ["holdfast", "holdfast_direct"]
    assert all(side.median("put_bytes_per_second") > 0 for side in work.sides.values())
