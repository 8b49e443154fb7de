"""Facts about the machine of a run: cores, kernel, versions, the cost of a sync."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from holdfast.protocol.bus.nats_server_process import nats_server_threads, usable_cores
from holdfast.protocol.distribution import version
from holdfast.shared_fs.disk.file_system import mount_of

_SYNCS: Final = 200
_BLOCK_BYTES: Final = 4096
_VERSION_SECONDS: Final = 10.0
_PACKAGES: Final = ("nats-py", "apsw", "uvloop")


def machine_facts(directory: Path, nats_server: Path) -> dict[str, Any]:
    """Return the facts as JSON. This measures some syncs in `directory`."""
    return {
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "nats_server": _nats_version(nats_server),
        # What the nats-server of holdfast's side is told, and those with JetStream.
        "nats_server_threads": nats_server_threads(os.environ, usable_cores()),
        "jetstream_threads": nats_server_threads(os.environ, math.inf),
        "packages": {
            "holdfast": version(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
        "file_system": mount_of(directory).type,
        "sync_p50_ms": sync_p50_ms(directory),
    }


def sync_p50_ms(directory: Path, count: int = _SYNCS) -> float:
    """Return how long it takes to append a block to a file and sync it. No synced write can
    be faster."""
    taken = []
    block = bytes(_BLOCK_BYTES)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(count):
            began_at = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began_at)
    return statistics.median(taken) * 1000


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _nats_version(program: Path) -> str:
    said = subprocess.run(
        [str(program), "--version"],
        capture_output=True,
        text=True,
        timeout=_VERSION_SECONDS,
        check=True,
    )
    return said.stdout.strip().rpartition(" ")[2].removeprefix("v")
