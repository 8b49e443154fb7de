"""`holdfast tenant set`: what its limits mean, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from tests.support.holdfast_up import call_holdfast


@pytest.fixture
def data(tmp_path: Path) -> Path:
    open_layout(tmp_path / "data", Disk())
    return tmp_path / "data"


def set_quota(data: Path, *limits: str) -> dict[str, Any]:
    done = call_holdfast("tenant", "set", "acme", *limits, "--data", str(data), "--json")
    assert done.returncode == 0, done.stderr
    quota: dict[str, Any] = json.loads(done.stdout)["quota"]
    return quota


def test_limits_are_set_kept_and_lifted(data: Path) -> None:
    assert set_quota(data, "--max-stores", "100000", "--max-bytes", "10GB") == {
        "max_stores": 100_000,
        "max_bytes": 10**10,
    }
    assert set_quota(data, "--max-rate", "2.5/s", "--max-bytes", "none") == {
        "max_stores": 100_000,
        "max_rate": 2.5,
    }
    assert set_quota(data, "--max-stores", "none", "--max-rate", "none") == {}


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("max_bytes", "4096", 4096),
        ("max_bytes", "1.5kB", 1500),
        ("max_bytes", "512 MiB", 512 << 20),
        ("max_bytes", "2tb", 2 * 10**12),
        ("max_bytes_per_second", "20MB/s", 20_000_000),
        ("max_bytes_per_second", "1GiB", 1 << 30),
        ("max_rate", "5000", 5000.0),
        ("max_stores", "0", 0),
    ],
)
def test_amounts_have_units(data: Path, option: str, text: str, value: float) -> None:
    assert set_quota(data, f"--{option.replace('_', '-')}", text) == {option: value}


@pytest.mark.parametrize(
    "limits",
    [
        (),
        ("--max-bytes", "10 apples"),
        ("--max-bytes", "-1"),
        ("--max-stores", "1.5"),
        ("--max-rate", "fast"),
        ("--max-rate", "1e9"),
        ("--max-stores", "1", "--bucket", "file:///both"),
    ],
)
def test_wrong_usage_is_told_and_changes_nothing(data: Path, limits: tuple[str, ...]) -> None:
    done = call_holdfast("tenant", "set", "acme", *limits, "--data", str(data))
    assert done.returncode == 2, done.stdout
    assert not (data / "quotas").exists()


def test_a_rate_of_nothing_is_refused(data: Path) -> None:
    done = call_holdfast("tenant", "set", "acme", "--max-rate", "0", "--data", str(data))
    assert done.returncode == 2
    assert b"max_rate" in done.stderr


def test_quotas_belong_to_a_cluster_that_exists(tmp_path: Path) -> None:
    done = call_holdfast("tenant", "set", "acme", "--max-stores", "1", "--data", str(tmp_path))
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []
