"""What holdfast keeps is for the user that it runs as, and passwords are on no command line."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.cluster.cluster import Cluster, ClusterOptions
from holdfast.cli.cluster.part import Part
from holdfast.coordinator.__main__ import main as run_coordinator
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk import privacy
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.privacy import open_to_others, private_files, tighten
from holdfast.shared_fs.store_file.store_file import StoreFile

SECRET = "nats://ada:sesame@127.0.0.1:4222"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_files_and_folders_are_made_for_their_user_alone(tmp_path: Path) -> None:
    disk = Disk()
    with private_files():
        layout = open_layout(tmp_path / "data", disk)
        store = StoreId("acme", 1, "notes")
        disk.make_directory(layout.store(store).parent)
        StoreFile.create(layout.store(store), store, time=1).close()
        disk.open_append(layout.root / "log").close()
        bucket = open_bucket((tmp_path / "bucket").as_uri())
        bucket.put_new("a/b", b"x")
    made = [tmp_path / "data", *tmp_path.glob("data/**/*"), *tmp_path.glob("bucket/**/*")]
    assert len(made) > 8
    for path in made:
        assert mode_of(path) == (0o700 if path.is_dir() else 0o600), path
    assert os.umask(0o022) == 0o022


def test_a_folder_of_an_earlier_version_is_closed_unless_it_is_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    assert open_to_others(tmp_path) == 0o755
    monkeypatch.setattr(privacy.os, "geteuid", lambda: os.getuid() + 1)
    tighten(tmp_path)
    assert mode_of(tmp_path) == 0o755
    monkeypatch.undo()
    tighten(tmp_path)
    assert mode_of(tmp_path) == 0o700
    assert open_to_others(tmp_path) is None


def test_what_an_operator_has_opened_by_an_acl_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o750)
    monkeypatch.setattr(privacy.os, "listxattr", lambda path: ["system.posix_acl_access"])
    tighten(tmp_path)
    assert mode_of(tmp_path) == 0o750
    assert open_to_others(tmp_path) is None


def test_a_bucket_of_an_earlier_version_is_closed_where_a_server_opens_it(tmp_path: Path) -> None:
    open_bucket(tmp_path.as_uri())
    tmp_path.chmod(0o755)
    open_bucket(tmp_path.as_uri(), make=False)
    assert mode_of(tmp_path) == 0o755
    open_bucket(tmp_path.as_uri())
    assert mode_of(tmp_path) == 0o700


def test_a_server_runs_with_a_private_umask(tmp_path: Path) -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        # It ends at once, since nothing listens there, and only then is the umask to be looked at.
        assert run_coordinator(["--data", str(tmp_path), "--nats", "nats://127.0.0.1:1"]) == 1
    finally:
        # Its loop leaves a handler behind, and later tests interrupt themselves.
        signal.signal(signal.SIGINT, interrupt)
    assert os.umask(0o022) == 0o077


async def test_the_password_of_nats_is_on_no_command_line_in_no_file_and_not_printed(
    tmp_path: Path,
) -> None:
    cluster = Cluster(ClusterOptions(tmp_path, nats_url=SECRET), print)
    cluster.nats_url = SECRET
    (tmp_path / "run").mkdir()
    part = cluster._part("s1", ["holdfast", "persist", *cluster._common_arguments()])
    cluster.servers = [part]
    assert part._environment["HOLDFAST_NATS"] == SECRET
    cluster._write_state()
    written = (tmp_path / "run" / "cluster.json").read_text()
    shown = [*part.command, cluster.command_for_server("s3"), cluster.shown_nats_url, written]
    assert not [text for text in shown if "sesame" in text]
    assert '"nats://***@127.0.0.1:4222"' in written


async def test_a_part_has_its_environment_and_shows_it_to_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    program = (
        "import os, sys; print(os.environ['HOLDFAST_NATS'], 'ses' + 'ame' in str(sys.orig_argv))"
    )
    part = Part(
        "s1",
        [sys.executable, "-c", program],
        log_file=tmp_path / "log",
        say=said.append,
        environment={"HOLDFAST_NATS": SECRET},
    )
    task = asyncio.create_task(part.keep_running())
    while not said:
        await asyncio.sleep(0.01)
    await part.stop()
    await task
    assert said[0] == f"s1 | {SECRET} False"


@pytest.mark.skipif(sys.platform != "linux", reason="reads command lines in /proc")
def test_a_command_takes_the_url_from_the_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "holdfast.cli", "coordinator", "--data", str(tmp_path)]
    url = {"HOLDFAST_NATS": "nats://ada:sesame@127.0.0.1:1"}
    result = subprocess.run(
        command, env=os.environ | url, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "***@127.0.0.1:1" in result.stderr
    assert "sesame" not in result.stderr
