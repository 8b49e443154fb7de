"""`holdfast demo`: the whole job on a small repository, and a judge that sees every fault."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.cli.demo.git_history import BlobReader
from holdfast.cli.demo.plan import DemoPlan, plan_repository
from holdfast.cli.demo.verify import DemoVerdict, verify
from holdfast.client import Client, connect
from tests.support.holdfast_up import (
    COMMAND,
    DEADLINE_SECONDS,
    running_up,
    started_holdfast,
    wait_until,
)
from tests.support.small_repository import FILE_COUNT, make_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("git") / "small project")


def run_demo(repository: Path, temporary: Path, *options: str) -> subprocess.CompletedProcess[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        [
            *COMMAND,
            "demo",
            "--repo",
            str(repository),
            "--json",
            "--no-progress",
            "--no-export",
            *options,
        ],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_everything_survives_the_kill_and_nothing_is_left_behind(
    repository: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    result = run_demo(repository, temporary)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    plan = plan_repository(repository, None, 4)
    assert report["ok"] is True
    assert report["problems"] == []
    assert report["messages"] == report["changes_followed"] == plan.message_count > 300
    assert report["files_identical"] == report["files"] == FILE_COUNT + 1
    assert (report["lost"], report["duplicated"], report["kv_identical"]) == (0, 0, True)
    assert report["skipped"]["too_large"] == 1
    assert (report["exported"], report["not_exported"]) == (None, "not wanted")
    assert report["killed_server"] in ("s1", "s2")
    assert 0 < report["killed_after_messages"] < report["messages"]
    assert list(temporary.iterdir()) == []


def test_ctrl_c_leaves_no_process_and_no_file(repository: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with started_holdfast(
        *("demo", "--repo", str(repository), "--no-progress"),
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_until(lambda: bool(list(temporary.glob("*/run/s1.log"))), "the servers start")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert list(temporary.iterdir()) == []


def test_a_folder_without_repository_is_one_clear_line(tmp_path: Path) -> None:
    result = run_demo(tmp_path, tmp_path / "temporary")
    assert result.returncode == 1
    assert json.loads(result.stderr)["error"] == "git"


def test_kept_data_is_there_for_a_later_up_and_the_judge_sees_every_fault(
    repository: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    options = ("--no-kill", "--servers", "1", "--writers", "2", "--limit", "60")
    kept = run_demo(repository, tmp_path / "temporary", "--data", str(data), *options)
    assert kept.returncode == 0, kept.stdout + kept.stderr
    report = json.loads(kept.stdout)
    assert (report["messages"], report["killed_server"]) == (60, None)
    again = run_demo(repository, tmp_path / "temporary", "--data", str(data), "--limit", "60")
    assert again.returncode == 1
    assert json.loads(again.stderr.splitlines()[-1])["error"] == "demo_used"

    plan = plan_repository(repository, 60, 1)
    files = plan.files

    async def change(client: Client) -> None:
        await client.stream(files[0].stream).set(1, b"other", headers=files[0].messages[0].headers)
        await client.stream(files[1].stream).delete(1)
        last = files[2].messages[-1]
        await client.stream(files[2].stream).append(b"again", headers=last.headers)
        await client.kv(plan.kv).set(files[3].path, b"other")

    with running_up(data, "--servers", "1") as cluster:
        untouched = asyncio.run(_judge(cluster.nats, plan))
        assert (untouched.files_identical, untouched.problems) == (len(files), [])
        assert untouched.kv_identical
        changed = asyncio.run(_judge(cluster.nats, plan, change))
    assert (changed.lost, changed.duplicated) == (1, 1)
    assert changed.files_identical == len(files) - 3
    assert not changed.kv_identical
    text = "\n".join(changed.problems)
    for expected in (
        f"{files[0].path}: message 1: its value differs",
        f"{files[1].path}: 1 lost, 0 too many",
        f"{files[2].path}: 0 lost, 1 too many",
        f"kv: the value of {files[3].path} differs",
    ):
        assert expected in text


async def _judge(
    nats: str, plan: DemoPlan, change: Callable[[Client], Awaitable[None]] | None = None
) -> DemoVerdict:
    async with connect(nats) as client, BlobReader(Path(plan.repository)) as blobs:
        if change is not None:
            await change(client)
        return await verify(client, blobs, plan, lambda count: None)
