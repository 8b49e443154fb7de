"""The file systems that the hosts share, each with a mount of its own where it has mounts.

A file system that is not local runs on a host of its own, `STORAGE_HOST`, and has a client process
on each host. Its files lie in the folder of the run; its sockets, pids and mounts in /run, which
the run has for itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.hosts.network import STORAGE, Host, run

STORAGE_HOST: Final = Host("h0", 10)
_MOUNTS: Final = Path("/run/holdfast")
_READY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1


class LocalFileSystem:
    """One directory, seen by all hosts: what a network file system without faults would be."""

    name = "local"
    #: Programs that it needs, and the Debian packages that have them.
    programs: dict[str, str] = {}  # noqa: RUF012
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

    def stop_mount(self, host: Host) -> None:
        """Let the mount of a host hang."""
        raise NotImplementedError

    def continue_mount(self, host: Host) -> None:
        raise NotImplementedError

    def stop_server(self) -> None:
        """Let all mounts hang."""
        raise NotImplementedError

    def continue_server(self) -> None:
        raise NotImplementedError

    async def restart_server(self) -> None:
        """Kill what serves it, and start that again."""
        raise NotImplementedError


class GlusterFS(LocalFileSystem):
    """GlusterFS: one brick, all options as they are by default."""

    name = "glusterfs"
    programs = {  # noqa: RUF012
        "glusterd": "glusterfs-server",
        "gluster": "glusterfs-cli",
        "glusterfs": "glusterfs-client",
    }
    has_server = True

    def __init__(self, data: Path, hosts: Sequence[Host]) -> None:
        super().__init__(data, hosts)
        self._data = data / "glusterfs"
        self._hosts = hosts
        self._address = STORAGE_HOST.address(STORAGE)

    async def start(self) -> None:
        logs = self._data / "logs"
        for folder in (logs / "bricks", self._data / "state", self._data / "brick"):
            folder.mkdir(parents=True)
        Path("/run/gluster").mkdir()
        # Its daemons log here, whatever they are told.
        run("mount", "--bind", str(logs), "/var/log/glusterfs")
        volfile = self._data / "glusterd.vol"
        volfile.write_text(
            "volume management\n"
            "    type mgmt/glusterd\n"
            f"    option working-directory {self._data / 'state'}\n"
            "    option transport-type socket\n"
            f"    option transport.socket.bind-address {self._address}\n"
            "    option transport.socket.listen-port 24007\n"
            "    option ping-timeout 0\n"
            "    option base-port 49152\n"
            "    option max-port 60999\n"
            "end-volume\n"
        )
        daemon = ["glusterd", "-f", str(volfile), "-l", str(logs / "d.log"), "-p", "/run/gluster/d"]
        await _run_on(STORAGE_HOST, *daemon)
        await _until_it_works(STORAGE_HOST, *_GLUSTER, "volume", "info")
        brick = f"{self._address}:{self._data / 'brick'}"
        await _run_on(STORAGE_HOST, *_GLUSTER, "volume", "create", _VOLUME, brick, "force")
        await _run_on(STORAGE_HOST, *_GLUSTER, "volume", "start", _VOLUME)
        for host in self._hosts:
            mount = self._mount(host)
            mount.mkdir(parents=True)
            # It returns once it has mounted.
            await _run_on(
                host,
                *("glusterfs", "-s", self._address, f"--volfile-id=/{_VOLUME}"),
                *("-l", str(logs / f"mount-{host.name}.log"), "-p", f"{mount}.pid", str(mount)),
            )
            if not mount.is_mount():
                raise RuntimeError(f"glusterfs did not mount {mount}: see {logs}")

    def folder(self, host: Host) -> Path:
        return self._mount(host) / "holdfast"

    def stop_mount(self, host: Host) -> None:
        os.kill(self._client(host), signal.SIGSTOP)

    def continue_mount(self, host: Host) -> None:
        os.kill(self._client(host), signal.SIGCONT)

    def stop_server(self) -> None:
        os.kill(self._brick(), signal.SIGSTOP)

    def continue_server(self) -> None:
        os.kill(self._brick(), signal.SIGCONT)

    async def restart_server(self) -> None:
        os.kill(self._brick(), signal.SIGKILL)
        await _run_on(STORAGE_HOST, *_GLUSTER, "volume", "start", _VOLUME, "force")

    def _mount(self, host: Host) -> Path:
        return _MOUNTS / host.name

    def _client(self, host: Host) -> int:
        return int(Path(f"{self._mount(host)}.pid").read_text())

    def _brick(self) -> int:
        [pid] = run("pgrep", "-x", "glusterfsd").split()
        return int(pid)


_VOLUME: Final = "holdfast"
_GLUSTER: Final = ("gluster", "--mode=script")
FILE_SYSTEMS: Final[dict[str, type[LocalFileSystem]]] = {
    each.name: each for each in (LocalFileSystem, GlusterFS)
}


async def _run_on(host: Host, *command: str) -> None:
    await asyncio.to_thread(run, *host.command(*command))


async def _until_it_works(host: Host, *command: str) -> None:
    give_up_at = time.monotonic() + _READY_SECONDS
    while True:
        try:
            await _run_on(host, *command)
            return
        except RuntimeError:
            if time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(_LOOK_SECONDS)
