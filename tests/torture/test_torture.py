"""One short torture, as CI has it, and that a torture leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.effort import tries

MINUTES = tries(0.3, 0.3, 1.0)
DEADLINE_SECONDS = 60.0

needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")


@contextmanager
def torture(data: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command around the body."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.torture", "--data", str(data), *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def processes_of(data: Path) -> list[str]:
    """The command lines of all processes that name the folder `data`, this one not among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(data) in command and path.parent.name != str(os.getpid()):
            found.append(command)
    return found


def wait_until_gone(data: Path) -> None:
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while left := processes_of(data):
        assert time.monotonic() < give_up_at, left
        time.sleep(0.05)


@pytest.mark.timeout(60 * MINUTES + 400)
def test_nothing_is_lost_duplicated_or_acknowledged_by_a_zombie(tmp_path: Path) -> None:
    data = tmp_path / "torture"
    with torture(data, "--minutes", str(MINUTES)) as process:
        report, _ = process.communicate()
        print(report)
        assert process.returncode == 0, report
    if Path("/proc").exists():
        assert processes_of(data) == []


@needs_proc
# SIGINT goes the way of SIGTERM, the one that `holdfast demo` and `up` are tested with; a parent
# that is killed takes its children along as in `test_up.py`.
@pytest.mark.parametrize("number", [signal.SIGTERM, *tries([], [], [signal.SIGKILL])])
def test_a_torture_that_is_cut_short_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    data = tmp_path / "torture"
    with torture(data) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "of a persist server" in line or "planned restart" in line:
                break
        assert len(processes_of(data)) > 8
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_SECONDS)
        if number is signal.SIGKILL and sys.platform != "linux":
            pytest.skip("elsewhere children outlive a killed parent")
        wait_until_gone(data)
        assert process.returncode in (-number, 128 + number)
