"""`holdfast bench compare` from end to end, with real servers and few operations."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.bench.compare.compare_jetstream import PLANS, compare
from holdfast.bench.compare.side_holdfast import HoldfastSide
from holdfast.bench.harness import FORMAT
from holdfast.bench.processes import JetStreamSync, free_port, running_nats
from holdfast.bench.read_back import ReadBackRow, WrongReadBackError
from tests.support.effort import tries
from tests.support.environment import environment_of, few_cores, timer_slack_ns_of
from tests.support.forked_bench import forked_servers, quick_options

_RUN_SECONDS = 110.0


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "holdfast.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
    )


def test_a_comparison_measures_every_work_on_every_side_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    data, json_file = tmp_path / "data", tmp_path / "report.json"
    data.mkdir()
    done = holdfast("bench", "compare", "--quick", "--data", str(data), "--json", str(json_file))
    assert done.returncode == 0, done.stderr
    assert "these numbers mean nothing" in done.stderr
    assert list(data.iterdir()) == []
    for plan in PLANS:
        assert plan.title in done.stdout

    [report] = json.loads(json_file.read_text())["reports"]
    assert (report["format"], report["benchmark"]) == (FORMAT, "compare_jetstream")
    assert {"cores", "python", "kernel", "nats_server", "sync_p50_ms"} <= report["machine"].keys()
    assert report["options"]["quick"] is True
    assert [work["name"] for work in report["works"]] == [plan.name for plan in PLANS]
    for plan, work in zip(PLANS, report["works"], strict=True):
        assert set(work["sides"]) == set(plan.sides)
        for side in work["sides"].values():
            assert_measured(side, plan.headline)
        assert len(work["targets"]) == len(plan.targets)
        assert all(target["reached"] in (True, False) for target in work["targets"])


def assert_measured(side: dict[str, Any], headline: str) -> None:
    [figures] = side["rounds"]
    assert set(side["figures"]) == set(figures)
    assert figures["operations"] > 0 and figures["seconds"] > 0 and figures["per_second"] > 0
    assert figures[headline] > 0
    assert figures["nats_server_rss_bytes"] > 0 and figures["client_cpu_ratio"] > 0
    for name, spread in side["figures"].items():
        assert spread == dict.fromkeys(("median", "low", "high"), figures[name])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hide environments")
def test_holdfast_s_nats_server_runs_as_that_of_up_and_jetstream_s_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    options = quick_options(tmp_path)
    with few_cores():
        for sync, leaf_port in (
            (None, free_port()),
            (None, 0),
            *((each, 0) for each in JetStreamSync),
        ):
            folder = tmp_path / f"{sync}-{leaf_port}"
            with running_nats(options, folder, sync, leaf_port=leaf_port) as nats:
                pid = nats.process.pid
                assert environment_of(pid).get("GOMAXPROCS") == (None if sync else "1")
                assert timer_slack_ns_of(pid) in (None, 50_000 if sync else 1_000_000)


def test_a_message_that_comes_back_changed_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = HoldfastSide.read

    async def read(
        self: HoldfastSide, name: str, start_seq: int, count: int, variant: str
    ) -> list[ReadBackRow]:
        rows = await honest(self, name, start_seq, count, variant)
        return [*rows[:-1], rows[-1]._replace(value=b"something else")]

    monkeypatch.setattr(HoldfastSide, "read", read)
    with forked_servers(), pytest.raises(WrongReadBackError, match="something else") as raised:
        asyncio.run(compare(quick_options(tmp_path, "append_64")))
    assert (raised.value.side, raised.value.work) == ("holdfast", "append_64")
    assert list(tmp_path.iterdir()) == []


def test_a_kv_that_forgets_a_key_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = HoldfastSide.entries

    async def entries(self: HoldfastSide, name: str, keys: list[str]) -> dict[str, bytes]:
        found = await honest(self, name, keys)
        found.popitem()
        return found

    monkeypatch.setattr(HoldfastSide, "entries", entries)
    with forked_servers(), pytest.raises(WrongReadBackError, match="the kv holds"):
        asyncio.run(compare(quick_options(tmp_path, "kv_set_64")))


def test_a_profile_is_written_of_each_of_holdfast_s_servers(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    done = holdfast(
        *("bench", "compare", "--quick", "--only", "append_64"),
        *("--data", str(tmp_path), "--profile", str(profile)),
    )
    assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in profile.iterdir())
    assert [name.rpartition(".")[2] for name in written] == ["prof", "txt"] * 2
    [text] = list(profile.glob("*-s1-*.txt"))
    assert "persist" in text.read_text()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_ends_every_process_and_removes_every_file(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    command = [sys.executable, "-P", "-m", "holdfast.cli", "bench", "compare", "--quick"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)], stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        # The first work is announced once everything runs.
        running.stderr.readline()
        assert list(tmp_path.iterdir())
        processes = children(running.pid)
        assert processes
        running.send_signal(number)
        _, said = running.communicate(timeout=_RUN_SECONDS)
    assert running.returncode == exit_code, said
    assert "Fatal" not in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for one in threads for child in (one / "children").read_text().split()]


def test_a_backfill_is_measured_at_the_tail(tmp_path: Path) -> None:
    data, json_file = tmp_path / "data", tmp_path / "report.json"
    data.mkdir()
    # Beside all other tests JetStream's side has taken more than a minute for its part.
    sides = tries(["holdfast"], ["holdfast"], ["holdfast", "jetstream"])
    only = [argument for side in sides for argument in ("--only", side)]
    to = ("--data", str(data), "--json", str(json_file))
    done = holdfast("bench", "backfill", "--quick", *only, *to)
    assert done.returncode == 0, done.stderr
    assert list(data.iterdir()) == []
    [report] = json.loads(json_file.read_text())["reports"]
    assert [work["name"] for work in report["works"]] == sides
    for work in report["works"]:
        assert set(work["sides"]) == {"alone", "beside a backfill", "beside burners"}
        backfill = work["sides"]["beside a backfill"]["figures"]
        assert backfill["reader_processor_ratio"]["median"] > 0
        for side in work["sides"].values():
            for latency in ("ack", "delivery", "get"):
                figures = side["figures"]
                median = figures[f"{latency}_p50_ms"]["median"]
                assert 0 < median <= figures[f"{latency}_p99_ms"]["median"]
        assert len(work["targets"]) == 3
