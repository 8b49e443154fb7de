"""What a process is and uses, as numbers: its version, when it began, processor time and memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Final

from holdfast.protocol.distribution import version
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind

#: The second number is resident pages (proc(5)). A read of it never waits for a disk.
_STATM: Final = Path("/proc/self/statm")


def process_statistics(kind: PartKind, name: str) -> Statistics:
    """Return the statistics of a process that begins now."""
    return Statistics(kind, name, time.time_ns() // 1_000_000, platform.node())


def count_process(statistics: Statistics) -> None:
    """Let the statistics read what this process is and uses."""
    labels = (version(), str(statistics.kind), statistics.name)
    statistics.host = platform.node()
    statistics.read(metrics.BUILD_INFO, lambda: 1, *labels)
    statistics.read(metrics.START_TIME, lambda: statistics.started_at_ms / 1000)
    statistics.read(metrics.PROCESS_CPU, time.process_time)
    statistics.read(metrics.PROCESS_MEMORY, _resident_bytes)


def _resident_bytes() -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        # Elsewhere than on Linux, the most that it has used; in bytes on macOS, KiB on others.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
