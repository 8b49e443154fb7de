"""The clock of a host: set while a process runs, and no other clock with it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.hosts.clock import HOUR_SECONDS, HostClock
from tests.support.documents import ROOT

#: Tells its clocks for every line on stdin. To be run as a module by its name.
PROGRAM = """
import json, sys, time
for line in sys.stdin:
    print(json.dumps([time.time(), time.time_ns() / 1e9, time.monotonic()]), flush=True)
"""


def test_a_running_process_gets_an_hour_back_and_keeps_its_monotonic_clock(tmp_path: Path) -> None:
    clock = HostClock(tmp_path / "clock")
    (tmp_path / "telling_clocks.py").write_text(PROGRAM)
    surroundings = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = clock.program("telling_clocks")
    with subprocess.Popen(command, cwd=ROOT, env=surroundings, **how) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for ahead_seconds in (0, -HOUR_SECONDS, 0):
            clock.set(ahead_seconds)
            assert clock.ahead_seconds == ahead_seconds
            print(file=process.stdin, flush=True)
            *days, monotonic = json.loads(process.stdout.readline())
            for day in days:
                assert abs(time.time() + ahead_seconds - day) < HOUR_SECONDS / 2
            assert abs(time.monotonic() - monotonic) < HOUR_SECONDS / 2
        process.stdin.close()
