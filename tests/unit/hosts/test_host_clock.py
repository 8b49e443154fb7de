"""The clock of a host: set while a process runs, and no other clock with it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.clock import HOUR_SECONDS, HostClock, find_library, program_on
from tests.support.documents import ROOT

#: Tells its clocks and those of a file that it has written, after a sleep, for every line on stdin.
#: To be run as a module by its name.
PROGRAM = """
import json, os, pathlib, sys, time
for line in sys.stdin:
    time.sleep(0.001)
    pathlib.Path(line.strip()).write_text("")
    clocks = time.time(), time.monotonic(), os.stat(line.strip()).st_mtime
    print(json.dumps(clocks), flush=True)
"""
_DEADLINE_SECONDS = 30.0

pytestmark = pytest.mark.skipif(
    find_library() is None, reason="needs libfaketime (Debian: faketime)"
)


def test_a_running_process_gets_an_hour_back_and_keeps_every_other_clock(tmp_path: Path) -> None:
    clock = HostClock(tmp_path / "clock")
    (tmp_path / "telling_clocks.py").write_text(PROGRAM)
    surroundings = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    command = [*clock.prefix, *program_on("telling_clocks")]
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=surroundings, **how) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:

            def behind_seconds() -> int:
                print(tmp_path / "file", file=process.stdin, flush=True)
                day, monotonic, modified = json.loads(process.stdout.readline())
                assert abs(time.monotonic() - monotonic) < HOUR_SECONDS / 2
                assert abs(time.time() - modified) < HOUR_SECONDS / 2
                return round((time.time() - day) / HOUR_SECONDS) * HOUR_SECONDS

            assert behind_seconds() == 0
            clock.set(-HOUR_SECONDS)
            give_up_at = time.monotonic() + _DEADLINE_SECONDS
            while behind_seconds() != HOUR_SECONDS:
                assert time.monotonic() < give_up_at
        finally:
            # Unlike one that is killed, it leaves nothing in /dev/shm.
            process.stdin.close()
