"""GlusterFS: one brick, one mount on each host, all options as they are by default."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import ClassVar, Final

from tests.hosts.file_systems.file_system import run_on, until_it_works
from tests.hosts.file_systems.network_file_system import STORAGE_HOST, NetworkFileSystem, pid_of
from tests.hosts.network import Host, run

_VOLUME: Final = "holdfast"
_BRICK: Final = "glusterfsd"
_GLUSTER: Final = ("gluster", "--mode=script")


class GlusterFS(NetworkFileSystem):
    """One volume."""

    name = "glusterfs"
    programs: ClassVar = {
        "glusterd": "glusterfs-server",
        "gluster": "glusterfs-cli",
        "glusterfs": "glusterfs-client",
    }
    client = "glusterfs"
    daemons = (_BRICK,)

    async def _start_servers(self) -> None:
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

    async def _mount(self, host: Host, mount: Path) -> None:
        log = str(self._data / "logs" / f"mount-{host.name}.log")
        from_volume = ("-s", self._address, f"--volfile-id=/{_VOLUME}")
        # It returns once it has mounted.
        await run_on(host, self.client, *from_volume, "-l", log, str(mount))

    async def restart_server(self) -> None:
        os.kill(pid_of(STORAGE_HOST, _BRICK), signal.SIGKILL)
        await run_on(STORAGE_HOST, *_GLUSTER, "volume", "start", _VOLUME, "force")
