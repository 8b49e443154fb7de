"""The fence watch tells of changes, of nothing else, and of nothing once it has ended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from unittest import mock

import pytest

from holdfast.persist.shared_disk import fence_watch
from holdfast.persist.shared_disk.fence_watch import no_watch, watch_folder
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, fence, is_open

DEADLINE_SECONDS = 30.0
DISK = Disk()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    create_fence(DISK, tmp_path / "fence")
    return tmp_path


async def told(changed: asyncio.Event) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await changed.wait()
    changed.clear()


@pytest.mark.parametrize("poll", [False, True])
async def test_a_fence_is_told_in_the_thread_of_the_loop(folder: Path, poll: bool) -> None:
    threads = set()
    changed = asyncio.Event()

    def on_change() -> None:
        threads.add(threading.current_thread())
        changed.set()

    with watch_folder(folder, on_change, poll=poll):
        await asyncio.to_thread(fence, DISK, folder / "fence")
        await told(changed)
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("poll", [False, True])
async def test_a_new_file_and_a_removed_fence_are_told(folder: Path, poll: bool) -> None:
    changed = asyncio.Event()
    with watch_folder(folder, changed.set, poll=poll):
        (folder / "request").write_text("drain\n")
        await told(changed)
        (folder / "fence").unlink()
        await told(changed)


async def test_reading_the_fence_and_writing_the_log_are_not_told(folder: Path) -> None:
    changes = 0
    changed = asyncio.Event()

    def on_change() -> None:
        nonlocal changes
        changes += 1
        changed.set()

    with watch_folder(folder, on_change, poll=False):
        for number in range(100):
            assert is_open(DISK, folder / "fence")
            (folder / "log" / str(number)).write_bytes(b"frame")
        # Events come in their order, so whatever was told of the above has been told by now.
        (folder / "last").touch()
        await told(changed)
    assert changes == 1


async def test_nothing_is_told_and_no_thread_is_left_after_the_end(folder: Path) -> None:
    before = threading.active_count()
    changes: list[None] = []
    with watch_folder(folder, lambda: changes.append(None), poll=False):
        # Without a turn of the loop: whatever was seen of these is still on its way.
        for number in range(100):
            (folder / str(number)).touch()
    assert threading.active_count() == before
    for _ in range(10):
        await asyncio.sleep(0)
    assert changes == []


async def test_a_system_without_a_watch_to_give_is_polled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = OSError(24, "inotify instance limit reached")
    monkeypatch.setattr(fence_watch, "Observer", mock.Mock(side_effect=refusal))
    changed = asyncio.Event()
    with watch_folder(folder, changed.set, poll=False):
        fence(DISK, folder / "fence")
        await told(changed)
    assert "fence.watch_polls" in caplog.text


def test_no_watch_tells_nothing_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with no_watch(tmp_path / "nowhere", lambda: None):
        pass
