"""A nats-server of a JetStream gateway runs on one thread where there are few cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.protocol.bus import nats_server_threads as module
from holdfast.protocol.bus.nats_server_threads import (
    cores_of_quota,
    nats_server_environment,
    nats_server_threads,
    usable_cores,
)


@pytest.mark.parametrize("cores", [0.5, 1, 1.5, 2])
def test_up_to_two_cores_it_is_told_one_thread(cores: float) -> None:
    assert nats_server_environment({}, cores, gateway=True) == {"GOMAXPROCS": "1"}
    assert nats_server_threads({}, cores, gateway=True) == 1


@pytest.mark.parametrize(
    ("cores", "gateway"), [(2.5, True), (3, True), (64, True), (1, False), (2, False)]
)
def test_with_more_cores_or_without_a_gateway_it_is_left_to_go(cores: float, gateway: bool) -> None:
    assert nats_server_environment({}, cores, gateway=gateway) == {}
    assert nats_server_threads({}, cores, gateway=gateway) is None


@pytest.mark.parametrize("gateway", [True, False])
@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize(
    ("value", "threads"),
    [("2", 2), ("1", 1), ("16", 16), ("", None), ("0", None), ("-1", None), ("all", None)],
)
def test_what_the_user_has_set_wins_also_nothing(
    cores: float, gateway: bool, value: str, threads: int | None
) -> None:
    environment = {"PATH": "/bin", "GOMAXPROCS": value}
    assert nats_server_environment(environment, cores, gateway=gateway) == {}
    assert nats_server_threads(environment, cores, gateway=gateway) == threads


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
