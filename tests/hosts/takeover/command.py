"""The command of a measurement: it builds the hosts and a file system that they share."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.hosts import network
from tests.hosts.file_systems import FILE_SYSTEMS
from tests.hosts.file_systems.network_file_system import STORAGE_HOST
from tests.hosts.isolation import run_isolated
from tests.hosts.needs import missing
from tests.hosts.network import Host

#: Given the name of the file system, its folder as each host sees it, and the count.
Measure = Callable[[str, list[Path], int], None]
_DEFAULT_COUNT: Final = 9


def measure_file_system(hosts: Sequence[Host], measure: Measure) -> int:
    """Run `measure` for the arguments `FS [COUNT]`, and return the exit code."""
    name = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else _DEFAULT_COUNT
    lacking = missing(FILE_SYSTEMS[name])
    if lacking:
        print(f"skipped: {'; '.join(lacking)}")
        return 0

    def run() -> int:
        network.build((STORAGE_HOST, *hosts))
        file_system = FILE_SYSTEMS[name](Path(tempfile.mkdtemp(prefix="holdfast-takeover.")), hosts)
        asyncio.run(file_system.start())
        folders = [file_system.folder(host) for host in hosts]
        folders[0].mkdir(parents=True, exist_ok=True)
        measure(name, folders, count)
        return 0

    return run_isolated(run)
