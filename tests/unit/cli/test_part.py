"""A supervised part whose log cannot be written, as on a full disk."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from holdfast.cli.cluster.part import Part

SPEAKS = "import time; print('one', flush=True); print('two', flush=True); time.sleep(60)"


async def said_until(part: Part, said: list[str], line: str) -> None:
    """Run a part until it has said this line; then stop it."""
    running = asyncio.create_task(part.keep_running())
    async with asyncio.timeout(60):
        while line not in said:
            assert not running.done(), await running
            await asyncio.sleep(0.01)
        await part.stop()
        await running


async def test_a_part_whose_log_is_on_a_full_disk_runs_on_and_tells_so_once() -> None:
    said: list[str] = []
    command = (sys.executable, "-c", SPEAKS)
    part = Part("s1", command, log_file=Path("/dev/full"), say=said.append)
    await said_until(part, said, "s1 | two")
    assert [line for line in said if "No space left" in line] == said[:1]
    assert said[1:3] == ["s1 | one", "s1 | two"]


async def test_a_first_start_that_cannot_be_written_down_fails_and_a_later_one_goes_on(
    tmp_path: Path,
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    command = (sys.executable, "-c", SPEAKS)
    log_file = tmp_path / "s1.log"
    part = Part("s1", command, log_file=log_file, say=said.append, on_start=full)
    with pytest.raises(OSError, match="No space"):
        await part.keep_running()
    part.restart_count = 1
    await said_until(part, said, "s1 | two")
    assert "cannot be written down" in said[0]
    assert log_file.read_text() == "one\ntwo\n"


async def test_a_silent_part_that_worked_is_started_again_however_often_that_fails(
    tmp_path: Path,
) -> None:
    """Parts have nothing to say unless something is wrong; then the disk is full, for a while."""
    works = tmp_path / "works"
    script = f"import os, sys, time; os.path.exists({str(works)!r}) and time.sleep(60); sys.exit(1)"
    said: list[str] = []
    command = (sys.executable, "-c", script)
    part = Part("s1", command, log_file=tmp_path / "s1.log", say=said.append)
    works.touch()
    running = asyncio.create_task(part.keep_running())
    async with asyncio.timeout(60):
        while part.pid is None:
            await asyncio.sleep(0.01)
        part.works()
        works.unlink()
        part.signal(signal.SIGKILL)
        while len(said) < 5:
            assert not running.done(), await running
            await asyncio.sleep(0.01)
        await part.stop()
        await running
    assert [line for line in said if "exit code 1" in line]
