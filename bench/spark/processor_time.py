"""The processor time of this process and of all that it has started: a JVM and its workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: The fields of /proc/<pid>/stat after the name: the parent, and user and system time of the
#: process, and of its children that have ended.
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)


def processor_seconds() -> float:
    """Return what this process, its children, and theirs, have taken so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for found in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = found.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(found.parent.name)
        parents[pid] = int(fields[_PARENT])
        ticks[pid] = sum(map(int, fields[_TIMES]))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(ticks[pid] for pid in own) / _TICKS
