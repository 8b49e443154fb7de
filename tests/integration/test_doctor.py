"""`holdfast doctor` beside a running cluster, after a crash, and on damaged data."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

from holdfast.client import Client, connect
from tests.support.holdfast_up import (
    COMMAND,
    DEADLINE_SECONDS,
    RunningUp,
    call_holdfast,
    is_running,
    run_holdfast,
    running_up,
    wait_until,
)

#: What the checks of the machine say depends on where the tests run.
OF_THE_MACHINE = {"HF-002", "HF-003"}
EXIT_CODES = {"ok": 0, "warning": 1, "critical": 2}


def examine(data: Path, *options: str) -> dict[str, Any]:
    """Run the doctor; return its report."""
    ended = call_holdfast("--json", "doctor", "--data", str(data), *options)
    report: dict[str, Any] = json.loads(ended.stdout)
    assert ended.stderr == b""
    assert ended.returncode == EXIT_CODES[report["outcome"]]
    return report


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    """The checks that are not ok."""
    return {
        one["code"]: one["outcome"]
        for one in report["checks"]
        if one["outcome"] not in ("ok", "skipped") and one["code"] not in OF_THE_MACHINE
    }


def notes_of(report: dict[str, Any], code: str) -> int:
    [count] = [one["notes"] for one in report["checks"] if one["code"] == code]
    return int(count)


async def write(hf: Client) -> None:
    for number in range(4):
        notes = hf.stream(f"notes.{number}")
        await notes.append(b"hello")
        # A read of a store brings its file up to date.
        assert [one async for one in notes.get_all()]


def fill(cluster: RunningUp) -> None:
    async def go() -> None:
        async with connect(cluster.nats) as hf:
            await write(hf)

    asyncio.run(go())


def examine_beside_a_writer(cluster: RunningUp, *options: str) -> dict[str, Any]:
    """Examine while all stores are in use, however long that takes: an idle one is closed."""

    async def go() -> dict[str, Any]:
        async with connect(cluster.nats) as hf:
            await write(hf)
            report = asyncio.create_task(asyncio.to_thread(examine, cluster.data, *options))
            while not report.done():
                await write(hf)
                await asyncio.wait([report], timeout=1)
            return await report

    return asyncio.run(go())


def kill_everything(cluster: RunningUp) -> None:
    """As if the host had lost its power, but for what the kernel holds."""
    pids = [pid for pid in cluster.pids().values() if pid is not None]
    cluster.process.kill()
    cluster.process.wait(DEADLINE_SECONDS)
    for pid in pids:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), "all parts are gone")


def test_it_leaves_what_is_in_use_alone_warns_after_a_crash_and_not_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with running_up(data) as cluster:
        incarnations = {row["incarnation"] for row in cluster.json("servers")["servers"]}
        report = examine_beside_a_writer(cluster, "--deep")
        assert outcomes(report) == {}
        assert report["found"]["running_servers"] == 2
        assert report["found"]["in_use"] == notes_of(report, "HF-018") > 0
        assert report["found"]["in_use"] <= report["found"]["stores"] <= 4
        [state] = [one for one in report["checks"] if one["code"] == "HF-024"]
        assert state["outcome"] == "skipped" and "running" in state["skipped"]
        # Nobody lost a lock by it.
        fill(cluster)
        after = {row["incarnation"] for row in cluster.json("servers")["servers"]}
        assert after == incarnations
        kill_everything(cluster)
    report = examine(data, "--deep")
    assert outcomes(report) == {"HF-006": "warning"}
    assert report["found"]["in_use"] == 0
    with running_up(data) as cluster:
        fill(cluster)
        assert cluster.stop() == 0
    report = examine(data, "--deep")
    assert outcomes(report) == {}
    assert report["found"]["stores"] == 4
    assert {one["outcome"] for one in report["checks"]} == {"ok"}
    _damage_is_critical_and_says_what_to_do(data)


def _damage_is_critical_and_says_what_to_do(data: Path) -> None:
    victim, missing = sorted((data / "shared" / "stores").rglob("*.db"))[:2]
    victim.write_bytes(b"")
    missing.unlink()
    assert outcomes(examine(data)) == {"HF-010": "critical", "HF-025": "critical"}
    ended = run_holdfast("doctor", "--data", str(data / "shared"))
    assert ended.returncode == 2
    text = ended.stdout.decode()
    assert str(victim.relative_to(data / "shared")) in text
    assert str(missing.relative_to(data / "shared")) in text
    assert text.count("\n  Try: ") >= 2


def test_on_a_terminal_there_is_a_bar_on_stderr_and_none_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text("holdfast shared file system, format 1\n")
    main, terminal = pty.openpty()
    try:
        ended = subprocess.run(
            [*COMMAND, "doctor", "--data", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=DEADLINE_SECONDS,
            check=False,
            env={**os.environ, "TERM": "xterm"},
        )
        shown = os.read(main, 100_000)
    finally:
        os.close(terminal)
        os.close(main)
    assert ended.returncode in (0, 1)
    assert b"checking" in shown
    assert b"checking" not in ended.stdout and b"\x1b" not in ended.stdout
