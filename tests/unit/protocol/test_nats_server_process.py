"""A nats-server runs on one thread where there are few cores, and sleeps late then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.protocol.bus import nats_server_process as module
from holdfast.protocol.bus.nats_server_process import (
    cores_of_quota,
    nats_server_command,
    nats_server_environment,
    nats_server_threads,
    usable_cores,
)


@pytest.mark.parametrize("cores", [0.5, 1, 1.5, 2])
def test_up_to_two_cores_it_is_told_one_thread(cores: float) -> None:
    assert nats_server_environment({}, cores) == {"GOMAXPROCS": "1"}
    assert nats_server_threads({}, cores) == 1


@pytest.mark.parametrize("cores", [2.5, 3, 64])
def test_with_more_cores_it_is_left_to_go(cores: float) -> None:
    assert nats_server_environment({}, cores) == {}
    assert nats_server_threads({}, cores) is None
    assert nats_server_command(["nats-server"], {}, cores) == ["nats-server"]


@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize(
    ("value", "threads"),
    [("2", 2), ("1", 1), ("16", 16), ("", None), ("0", None), ("-1", None), ("all", None)],
)
def test_what_the_user_has_set_wins_also_nothing(
    cores: float, value: str, threads: int | None
) -> None:
    environment = {"PATH": "/bin", "GOMAXPROCS": value}
    assert nats_server_environment(environment, cores) == {}
    assert nats_server_threads(environment, cores) == threads
    command = nats_server_command(["nats-server"], environment, cores)
    assert (command == ["nats-server"]) == (threads != 1 or sys.platform != "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has a timer slack")
def test_with_one_thread_the_program_and_what_it_starts_sleep_a_millisecond_late() -> None:
    show = "import ctypes; print(ctypes.CDLL(None).prctl(30, 0, 0, 0, 0))"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}], check=True)"
    for program, slack_ns in ((show, 1_000_000), (nested, 1_000_000)):
        command = nats_server_command([sys.executable, "-c", program], {}, 2)
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert int(shown.stdout) == slack_ns


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has a timer slack")
def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = nats_server_command([str(tmp_path / "nats-server")], {}, 1)
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr == f"cannot run {tmp_path / 'nats-server'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2.0),
        ("150000 100000\n", 1.5),
        ("5000 10000\n", 0.5),
        ("max 100000\n", None),
        *((text, None) for text in ("", "max\n", "200000\n", "200000 0\n", "a b\n", "1 2 3\n")),
    ],
)
def test_a_quota_is_read_as_cores(text: str, cores: float | None) -> None:
    assert cores_of_quota(text) == cores


def test_the_cores_are_those_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(module, "_CGROUP_QUOTA", quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 7, 9}, raising=False)
    assert usable_cores() == 4
    for text, cores in (("max 100000\n", 4), ("800000 100000\n", 4), ("150000 100000\n", 1.5)):
        quota.write_text(text)
        assert usable_cores() == cores


def test_without_affinities_the_cores_of_the_host_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert usable_cores() == 1
