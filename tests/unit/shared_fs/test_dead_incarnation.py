"""What is left of an incarnation that ended, cut short at each step of its going."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.dead_incarnation import (
    is_let_go,
    let_go,
    log_is_missing,
    loss_is_accepted,
    quarantine_log,
)
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, fence, is_open
from holdfast.shared_fs.disk.layout import Layout, open_layout

DISK = Disk()
LIFE = ("s1", "01")


class CutShortDisk(Disk):
    """Refuses everything that changes a file after some changes."""

    def __init__(self, changes: int) -> None:
        self._left = changes

    def __getattribute__(self, name: str) -> Any:
        if name in ("write_durably", "remove", "remove_directory", "rename"):
            self._left -= 1
            if self._left < 0:
                raise StorageFailedError(reason="the power is gone")
        return super().__getattribute__(name)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A fenced life with a log of two segments."""
    layout = open_layout(tmp_path / "data", DISK)
    DISK.make_directory(layout.incarnation(*LIFE))
    create_fence(DISK, layout.fence(*LIFE))
    CommitLog(DISK, layout.log(*LIFE)).close()
    (layout.log(*LIFE) / "0000000002.log").write_bytes(b"more")
    fence(DISK, layout.fence(*LIFE))
    return layout


def test_nothing_is_left_of_what_was_let_go(layout: Layout) -> None:
    layout.loss_accepted(*LIFE).touch()
    let_go(DISK, layout, *LIFE)
    assert not layout.incarnation(*LIFE).exists()
    assert not log_is_missing(DISK, layout, *LIFE)


@pytest.mark.parametrize("changes", range(7))
def test_a_removal_that_is_cut_short_never_looks_like_a_missing_log_and_can_be_gone_on_with(
    changes: int, layout: Layout
) -> None:
    with pytest.raises(StorageFailedError):
        let_go(CutShortDisk(changes), layout, *LIFE)
    assert not log_is_missing(DISK, layout, *LIFE)
    assert not is_open(DISK, layout.fence(*LIFE))
    if DISK.names(layout.log(*LIFE)):
        assert is_let_go(DISK, layout, *LIFE) == (changes > 0), "what is left is not to be read"
    let_go(DISK, layout, *LIFE)
    assert not layout.incarnation(*LIFE).exists()


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_fenced_life_without_a_log_has_lost_it(folder_too: bool, layout: Layout) -> None:
    assert not log_is_missing(DISK, layout, *LIFE)
    for segment in layout.log(*LIFE).iterdir():
        segment.unlink()
    if folder_too:
        layout.log(*LIFE).rmdir()
    assert log_is_missing(DISK, layout, *LIFE)


def test_a_life_that_has_not_begun_its_log_has_lost_nothing(layout: Layout) -> None:
    DISK.make_directory(layout.incarnation("s1", "02"))
    assert not log_is_missing(DISK, layout, "s1", "02")
    create_fence(DISK, layout.fence("s1", "02"))
    assert not log_is_missing(DISK, layout, "s1", "02")


def test_a_damaged_log_goes_to_quarantine_with_a_report_also_in_two_goes(layout: Layout) -> None:
    def move(disk: Disk) -> None:
        quarantine_log(disk, layout, *LIFE, reason="the log is damaged", time=7)

    with pytest.raises(StorageFailedError):
        move(CutShortDisk(2))
    move(DISK)
    folder = layout.quarantine / "_logs" / "s1.01"
    assert sorted(each.name for each in folder.iterdir()) == [
        "0000000001.log",
        "0000000002.log",
        "report.json",
    ]
    assert json.loads((folder / "report.json").read_bytes())["reason"] == "the log is damaged"
    assert list(layout.log(*LIFE).iterdir()) == []


def test_a_loss_is_accepted_by_a_file_of_that_name(layout: Layout) -> None:
    assert not loss_is_accepted(DISK, layout, *LIFE)
    (layout.incarnation(*LIFE) / "loss-accepted").touch()
    assert loss_is_accepted(DISK, layout, *LIFE)
