"""`holdfast probe` with real processes, on a folder and on two paths to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.bucket.bucket_capabilities import Capability
from holdfast.shared_fs.inspection import probe
from tests.support.holdfast_up import (
    DEADLINE_SECONDS,
    call_holdfast,
    run_holdfast,
    started_holdfast,
    wait_until,
)
from tests.support.s3_server import running_s3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder, with `second` as another path to it."""
    folder = tmp_path / "first"
    folder.mkdir()
    (tmp_path / "second").symlink_to(folder)
    return folder


def test_a_folder_does_all_that_is_needed_and_is_left_empty(folder: Path) -> None:
    ended = run_holdfast("probe", str(folder), "--rounds", "4")
    assert ended.stderr == b""
    assert ended.returncode == 0, ended.stdout.decode()
    text = ended.stdout.decode()
    assert "failed" not in text and "lock is free after kill -9" in text
    assert max(map(len, text.splitlines())) <= 80
    assert list(folder.iterdir()) == []


def test_two_folders_are_probed_as_one(folder: Path) -> None:
    second = folder.with_name("second")
    ended = call_holdfast("--json", "probe", str(folder), "--with", str(second), "--rounds", "4")
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert [one["folder"] for one in report["mounts"]] == [str(folder), str(second)]
    assert {one["outcome"] for one in report["checks"]}.isdisjoint({"failed"})
    assert list(folder.iterdir()) == []


def test_another_folder_is_no_second_mount(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PATIENCE_SECONDS", 0.0)
    ended = call_holdfast("probe", str(folder), "--with", str(folder.parent))
    assert ended.returncode == 2
    assert b"does not show what is created" in ended.stderr
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with running_s3() as url:
        yield url


def test_a_bucket_s_capabilities_are_told_and_it_is_left_empty(s3_url: str) -> None:
    ended = call_holdfast("--json", "probe", s3_url, "--rounds", "20")
    report = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert [one["need"] for one in report["checks"]] == [
        need
        for need in Capability
        if need is not Capability.REPLACE_BARE or report["ways"]["bare_versions"]
    ]
    assert {one["outcome"] for one in report["checks"]} <= {"ok", "warning"}
    with closing(open_bucket(s3_url)) as bucket:
        assert asdict(bucket.ways) == report["ways"]
        assert list(bucket.list("probe/")) == []


def test_a_second_mount_of_a_bucket_is_wrong_usage(folder: Path) -> None:
    ended = call_holdfast("probe", "s3://bucket", "--with", str(folder))
    assert ended.returncode == 2
    assert b"--with is for folders" in ended.stderr


def test_a_folder_that_is_missing_is_refused(folder: Path) -> None:
    ended = call_holdfast("probe", str(folder / "missing"))
    assert ended.returncode == 2
    assert b"does not exist" in ended.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("sent", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(folder: Path, sent: signal.Signals, exit_code: int) -> None:
    arguments = ("probe", str(folder), "--rounds", "100000")
    with started_holdfast(*arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_until(lambda: any(folder.glob("probe.*/lock.*")), "it has begun")
        os.kill(process.pid, sent)
        assert process.wait(DEADLINE_SECONDS) == exit_code
        assert process.stderr is not None and process.stderr.read() == b""
    assert list(folder.iterdir()) == []
