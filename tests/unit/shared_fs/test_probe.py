"""The probe against a side whose reads come from a cache, which it must find out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.inspection import probe
from holdfast.shared_fs.inspection.probe_peer import Way, Workbench
from holdfast.shared_fs.inspection.probe_verdicts import (
    Measured,
    Need,
    ProbedMount,
    Verdict,
    judge,
)

ROUNDS = 8
MOUNT = ProbedMount("/mnt/a", "fuse.glusterfs", "/mnt/a", False, 1, False, False)


class CachingDisk(Disk):
    """Answers from the first read of a file, for so many reads."""

    def __init__(self, reads: float) -> None:
        super().__init__()
        self._reads = reads
        self._kept: dict[Path, tuple[float, bytes]] = {}

    def read(self, path: Path) -> bytes:
        left, content = self._kept.get(path, (0, b""))
        if left < 1:
            left, content = self._reads, super().read(path)
        self._kept[path] = (left - 1, content)
        return content


class RememberingDisk(Disk):
    """Finds a file that is gone, for one look."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[Path] = set()

    def exists(self, path: Path) -> bool:
        if super().exists(path):
            self._known.add(path)
            return True
        if path in self._known:
            self._known.remove(path)
            return True
        return False


class PeerInProcess:
    """A side without a process of its own, so without locks of its own."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._workbench = Workbench(folder, plain=disk)

    async def ask(self, request: str, **arguments: Any) -> Any:
        return self._workbench.do(request, arguments)["answer"]


def see(folder: Path, disk: Disk, *ways: str) -> Measured:
    """Return what the prober measures if the reading side has this disk."""
    writer = probe.ProbedSide(PeerInProcess(folder, Disk()), MOUNT)
    reader = probe.ProbedSide(PeerInProcess(folder, disk), MOUNT)
    prober = probe.Prober((writer, reader), (folder, folder), ROUNDS, lambda done: None)

    async def run() -> Measured:
        for way in ways:
            await getattr(prober, way)()
        return prober.measured

    return asyncio.run(run())


def test_what_a_reader_never_sees_ends_the_rounds_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(probe, "_WATCH_SECONDS", 0.01)
    measured = see(tmp_path, CachingDisk(float("inf")), "overwrite")
    assert [one.never_count for one in measured.sights] == [probe._ENOUGH_STALE, 0]


def test_a_late_reader_is_stale_and_the_fresh_one_is_not(tmp_path: Path) -> None:
    measured = see(tmp_path, CachingDisk(2), "overwrite", "append", "replace")
    late = {(one.way, bool(one.late_ms)) for one in measured.sights}
    assert late == {
        (way, stale) for way in (Way.OVERWRITE, Way.APPEND, Way.REPLACE) for stale in (True, False)
    }
    assert all(not one.never_count for one in measured.sights)
    fence = next(one for one in judge_with(measured) if one.need is Need.FENCE)
    assert fence.outcome is Verdict.FAILED
    assert "--fopen-keep-cache=false" in fence.mend


def test_a_name_that_is_found_after_its_removal_is_stale(tmp_path: Path) -> None:
    measured = see(tmp_path, RememberingDisk(), "create_and_remove")
    late = {one.way: len(one.late_ms) for one in measured.sights if one.late_ms}
    assert late == {Way.REMOVE: 1}
    assert not any(one.never_count for one in measured.sights)


def judge_with(measured: Measured) -> list[Any]:
    """Judge what was seen alone; the rest could not be measured."""
    seen = {Need.FENCE, Need.LOG, Need.REPLACED}
    measured.broken = {need: "not measured" for need in Need if need not in seen}
    return judge(measured)
