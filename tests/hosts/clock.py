"""The clock of a host, which can be set while its processes run: libfaketime, told by a file.

All namespaces share the clock of the day, so libfaketime stands between the processes of a host and
the C library. It reads the file once a second. Only the time of day is set: the monotonic clock and
the times of files stay as they are.

    python -m tests.hosts.clock MODULE ARGUMENT ...

runs a module as `python -m MODULE` does, but with a `time.sleep` that works: libfaketime 0.9.10
lets `clock_nanosleep` until a monotonic time fail with EINVAL.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Final

HOUR_SECONDS: Final = 3600
#: Where Debian has it.
_LIBRARIES: Final = "lib/*/faketime/libfaketimeMT.so.1"


def find_library() -> Path | None:
    """Return where libfaketime is; None if it is not installed."""
    return next(Path("/usr").glob(_LIBRARIES), None)


class HostClock:
    """The clock of one host; `file` is its own. Raises FileNotFoundError without libfaketime."""

    def __init__(self, file: Path) -> None:
        library = find_library()
        if library is None:
            raise FileNotFoundError("there is no libfaketime")
        self.ahead_seconds = 0
        self._file = file
        self.set(0)
        #: What a command begins with whose process has this clock.
        self.prefix = (
            "env",
            f"LD_PRELOAD={library}",
            f"FAKETIME_TIMESTAMP_FILE={file}",
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        )

    def set(self, ahead_seconds: int) -> None:
        """Set it to so many seconds ahead of the machine's; behind, if negative."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_seconds:+d}\n")
        # A process never reads half of it.
        new.replace(self._file)
        self.ahead_seconds = ahead_seconds


def program_on(module: str) -> tuple[str, ...]:
    """Return the command that runs a module under the clock of a host."""
    return (sys.executable, "-m", "tests.hosts.clock", module)


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


if __name__ == "__main__":
    time.sleep = _sleep
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
