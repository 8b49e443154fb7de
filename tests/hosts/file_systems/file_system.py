"""A file system that the hosts share, each with a mount of its own where it has mounts.

One that is not local (`network_file_system.py`) runs on a host of its own. Its files lie in the
folder of the run; its sockets, pids and mounts in /run, which the run has for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.hosts.network import Host, run

_READY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1


class LocalFileSystem:
    """One directory, seen by all hosts: what a network file system without faults would be."""

    name = "local"
    #: Programs that it needs, and the Debian packages that have them.
    programs: ClassVar[dict[str, str]] = {}
    #: True if it has a server and mounts, which can fail.
    has_server = False

    def __init__(self, data: Path, hosts: Sequence[Host]) -> None:
        self._shared = data / "shared"

    async def start(self) -> None:
        """Start what serves it, and mount it on all hosts."""
        self._shared.mkdir()

    def folder(self, host: Host) -> Path:
        """Return the folder of the cluster, as seen on a host."""
        return self._shared


async def run_on(host: Host, *command: str) -> None:
    """Run a command on a host. Raises RuntimeError if it fails."""
    await asyncio.to_thread(run, *host.command(*command))


async def until_it_works(host: Host, *command: str) -> None:
    """Run it again and again. Raises RuntimeError if it has not worked for long."""
    give_up_at = time.monotonic() + _READY_SECONDS
    while True:
        try:
            await run_on(host, *command)
            return
        except RuntimeError:
            if time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(_LOOK_SECONDS)
