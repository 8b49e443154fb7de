"""Capacity: a server opens no more stores than there are descriptors and memory for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.persist.lifecycle import capacity
from holdfast.persist.lifecycle.capacity import fitting
from holdfast.protocol.limits import MAX_OPEN_STORES

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("descriptors", "memory_bytes", "fits"),
    [
        (None, 64 * GB, MAX_OPEN_STORES),
        (1 << 20, 8 * GB, MAX_OPEN_STORES),
        (1 << 20, 4 * GB, 10_000),
        (1024, 8 * GB, 480),
        # One descriptor for each, and another one for those whose file does not rest.
        (20_000, 64 * GB, 20_000 - 64 - 3 * 2048),
        (2 * 3 * 2048 + 64, 64 * GB, 3 * 2048),
        (64, 8 * GB, 1),
    ],
)
def test_what_is_scarcest_says_how_many_stores_may_be_open(
    descriptors: int | None, memory_bytes: int, fits: int
) -> None:
    wanted = MAX_OPEN_STORES
    assert fitting(wanted, descriptors=descriptors, memory_bytes=memory_bytes) == fits
    assert fitting(1, descriptors=descriptors, memory_bytes=memory_bytes) == 1


def test_where_files_cannot_rest_each_takes_two_descriptors() -> None:
    fits = fitting(MAX_OPEN_STORES, descriptors=20_000, memory_bytes=64 * GB, files_rest=False)
    assert fits == (20_000 - 64) // 2


@pytest.mark.parametrize("descriptors", range(64, 40_000, 997))
def test_one_more_descriptor_never_lets_fewer_stores_be_open(descriptors: int) -> None:
    def fits(count: int) -> int:
        return fitting(MAX_OPEN_STORES, descriptors=count, memory_bytes=64 * GB)

    assert fits(descriptors) <= fits(descriptors + 1)


def test_the_memory_of_a_container_is_what_it_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(capacity, "_CGROUP_LIMIT", limit)
    machine = capacity.memory_bytes()
    assert machine > 0
    limit.write_text("max\n")
    assert capacity.memory_bytes() == machine
    limit.write_text("1000000\n")
    assert capacity.memory_bytes() == 1_000_000
