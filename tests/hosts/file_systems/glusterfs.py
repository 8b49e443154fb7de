"""GlusterFS: one brick, one mount on each host, all options as they are by default."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.hosts.file_systems.file_system import (
    STORAGE_HOST,
    LocalFileSystem,
    mount_of,
    run_on,
    until_it_works,
)
from tests.hosts.network import STORAGE, Host, run

_VOLUME: Final = "holdfast"
_GLUSTER: Final = ("gluster", "--mode=script")


class GlusterFS(LocalFileSystem):
    """One volume."""

    name = "glusterfs"
    programs: ClassVar = {
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
        await run_on(STORAGE_HOST, *daemon)
        await until_it_works(STORAGE_HOST, *_GLUSTER, "volume", "info")
        brick = f"{self._address}:{self._data / 'brick'}"
        await run_on(STORAGE_HOST, *_GLUSTER, "volume", "create", _VOLUME, brick, "force")
        await run_on(STORAGE_HOST, *_GLUSTER, "volume", "start", _VOLUME)
        for host in self._hosts:
            mount = mount_of(host)
            mount.mkdir(parents=True)
            # It returns once it has mounted.
            await run_on(
                host,
                *("glusterfs", "-s", self._address, f"--volfile-id=/{_VOLUME}"),
                *("-l", str(logs / f"mount-{host.name}.log"), "-p", f"{mount}.pid", str(mount)),
            )
            if not mount.is_mount():
                raise RuntimeError(f"glusterfs did not mount {mount}: see {logs}")

    def folder(self, host: Host) -> Path:
        return mount_of(host) / "holdfast"

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
        await run_on(STORAGE_HOST, *_GLUSTER, "volume", "start", _VOLUME, "force")

    def _client(self, host: Host) -> int:
        return int(Path(f"{mount_of(host)}.pid").read_text())

    def _brick(self) -> int:
        [pid] = run("pgrep", "-x", "glusterfsd").split()
        return int(pid)
