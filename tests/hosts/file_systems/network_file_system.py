"""A file system with servers on a host of its own, `STORAGE_HOST`, and a mount on each other host.

What a kind of file system adds: how its servers start, how a host mounts it, and the names of the
processes that faults stop and continue.
"""

from __future__ import annotations

import os
import signal
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.hosts.file_systems.file_system import LocalFileSystem
from tests.hosts.network import STORAGE, Host, run

STORAGE_HOST: Final = Host("h0", 10)
_MOUNTS: Final = Path("/run/holdfast")


class NetworkFileSystem(LocalFileSystem):
    """One file system and its mounts."""

    has_server = True
    #: The program of a mount.
    client: ClassVar[str]
    #: The programs that answer when the storage does: stopped and continued together.
    daemons: ClassVar[tuple[str, ...]]

    def __init__(self, data: Path, hosts: Sequence[Host]) -> None:
        super().__init__(data, hosts)
        self._data = data / self.name
        self._hosts = hosts
        self._address = STORAGE_HOST.address(STORAGE)

    async def start(self) -> None:
        await self._start_servers()
        for host in self._hosts:
            mount = _mount_of(host)
            mount.mkdir(parents=True)
            await self._mount(host, mount)
            if not mount.is_mount():
                raise RuntimeError(f"{self.client} did not mount {mount}")

    def folder(self, host: Host) -> Path:
        return _mount_of(host) / "holdfast"

    def stop_mount(self, host: Host) -> None:
        """Let the mount of a host hang."""
        os.kill(pid_of(host, self.client), signal.SIGSTOP)

    def continue_mount(self, host: Host) -> None:
        """End what `stop_mount` began."""
        os.kill(pid_of(host, self.client), signal.SIGCONT)

    def stop_server(self) -> None:
        """Let all mounts hang."""
        self._signal_daemons(signal.SIGSTOP)

    def continue_server(self) -> None:
        """End what `stop_server` began."""
        self._signal_daemons(signal.SIGCONT)

    @abstractmethod
    async def restart_server(self) -> None:
        """End what serves it, and start that again."""

    @abstractmethod
    async def _start_servers(self) -> None:
        """Set it up, and return once it can be mounted."""

    @abstractmethod
    async def _mount(self, host: Host, mount: Path) -> None:
        """Mount it on a host, at an empty folder."""

    def _signal_daemons(self, number: signal.Signals) -> None:
        for program in self.daemons:
            os.kill(pid_of(STORAGE_HOST, program), number)


def pid_of(host: Host, program: str) -> int:
    """Return the process of a host that runs a program; the oldest, if it has forked."""
    pids = [int(pid) for pid in run("ip", "netns", "pids", host.name).split()]
    found = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == program[:15]]
    return min(found)


def _mount_of(host: Host) -> Path:
    """Return where a host has its mount, which nobody else uses."""
    return _MOUNTS / host.name
