"""The clock of a host, which can be set while its processes run.

All namespaces share the clock of the day. So a process that has the clock of a host asks Python for
the time of day as always, and gets that of the machine and what the host's clock is ahead, which
stands in a file that all processes of the host map. No other clock changes.

    python -m tests.hosts.clock FILE MODULE ARGUMENT ...

runs a module as `python -m MODULE` does, by that clock.

Rejected: libfaketime, which changes the C library's clock. Version 0.9.10 breaks event loops of
libuv, which then spin and time out early, and `clock_nanosleep` until a monotonic time.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Final

HOUR_SECONDS: Final = 3600
#: Eight bytes that lie together are written and read at once.
_AHEAD: Final = struct.Struct("=q")


class HostClock:
    """The clock of one host; `file` is its own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(_AHEAD.pack(0))

    @property
    def ahead_seconds(self) -> int:
        """What it is ahead of the machine's; negative if it is behind."""
        [seconds] = _AHEAD.unpack(self._file.read_bytes())
        return int(seconds)

    def set(self, ahead_seconds: int) -> None:
        """Set it, for all processes at once."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), _AHEAD.size) as mapped:
            _AHEAD.pack_into(mapped, 0, ahead_seconds)

    def program(self, module: str) -> tuple[str, ...]:
        """Return the command that runs a module by this clock."""
        return (sys.executable, "-m", "tests.hosts.clock", str(self._file), module)


def go_by(file: Path) -> None:
    """Let this process have the clock of `file`."""
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), _AHEAD.size, prot=mmap.PROT_READ)
    machine_time, machine_time_ns = time.time, time.time_ns

    def ahead_seconds() -> int:
        [seconds] = _AHEAD.unpack(mapped[:])
        return int(seconds)

    def host_time() -> float:
        return machine_time() + ahead_seconds()

    def host_time_ns() -> int:
        return machine_time_ns() + ahead_seconds() * 1_000_000_000

    time.time, time.time_ns = host_time, host_time_ns


if __name__ == "__main__":
    go_by(Path(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
