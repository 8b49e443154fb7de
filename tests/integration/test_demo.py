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
from holdfast_up import COMMAND, DEADLINE_SECONDS, running_up, started_holdfast, wait_until

from holdfast.cli.demo_plan import Plan, plan_repository
from holdfast.cli.demo_verify import Verdict, verify
from holdfast.cli.git_history import BlobReader
from holdfast.client import Client, connect

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
FILE_COUNT = 30
COMMIT_COUNT = 20


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with some hundred versions: odd names, binary files, deletions, a merge's worth."""
    folder = tmp_path_factory.mktemp("git") / "small project"
    folder.mkdir()
    stream = bytearray()
    for number in range(COMMIT_COUNT):
        stream += b"commit refs/heads/main\nmark :%d\n" % (number + 1)
        stream += b"committer Ada <ada@example.org> %d +0000\n" % (1_700_000_000 + number)
        stream += b"data 6\nchange\n"
        for file in range(FILE_COUNT):
            name = f'"dir/fi le \\303\\274 {file}.bin"'
            if (file + number) % 7 == 3 and number:
                stream += f"D {name}\n".encode()
            else:
                content = bytes([number, file, 0, 10, 255]) * (1 + file * number)
                stream += f"M 100644 inline {name}\ndata {len(content)}\n".encode() + content
                stream += b"\n"
    stream += b"commit refs/heads/main\ncommitter Ada <ada@example.org> 1700001000 +0000\n"
    stream += b"data 5\nlarge\n"
    stream += b"M 100644 inline too-large\ndata 1000001\n" + b"x" * 1_000_001 + b"\n"
    for arguments in (["init", "--quiet", "--initial-branch=main"], ["fast-import", "--quiet"]):
        subprocess.run(
            ["git", "-C", str(folder), *arguments],
            input=bytes(stream) if "fast-import" in arguments else b"",
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
        )
    return folder


def run_demo(repository: Path, temporary: Path, *options: str) -> subprocess.CompletedProcess[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        [*COMMAND, "demo", "--repo", str(repository), "--json", "--no-progress", *options],
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
    assert report["killed_server"] in ("s1", "s2")
    assert 0 < report["killed_after_messages"] < report["messages"]
    assert list(temporary.iterdir()) == []


def test_a_demo_without_kill_on_the_first_versions_only(repository: Path, tmp_path: Path) -> None:
    options = ("--no-kill", "--limit", "40", "--servers", "1", "--writers", "2")
    result = run_demo(repository, tmp_path / "temporary", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert (report["messages"], report["killed_server"]) == (40, None)


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
    kept = run_demo(repository, tmp_path / "temporary", "--data", str(data), "--limit", "60")
    assert kept.returncode == 0, kept.stdout + kept.stderr
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

    with running_up(data) as cluster:
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
    nats: str, plan: Plan, change: Callable[[Client], Awaitable[None]] | None = None
) -> Verdict:
    async with connect(nats) as client, BlobReader(Path(plan.repository)) as blobs:
        if change is not None:
            await change(client)
        return await verify(client, blobs, plan, lambda count: None)
