"""MooseFS: a master, a chunk server, one mount on each host, all options as they are by default.

Its `fsync` reaches no disk, so a power cut may cost what was acknowledged; none comes here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar, Final

from tests.hosts.file_systems.file_system import run_on, until_it_works
from tests.hosts.file_systems.network_file_system import STORAGE_HOST, NetworkFileSystem
from tests.hosts.network import Host

#: What a new master begins with, as Debian has it.
_EMPTY: Final = Path("/var/lib/mfs/metadata.mfs.empty")
_MASTER: Final = "mfsmaster"
_CHUNK_SERVER: Final = "mfschunkserver"


class MooseFS(NetworkFileSystem):
    """One master, one copy of each chunk."""

    name = "moosefs"
    programs: ClassVar = {
        _MASTER: "moosefs-master",
        _CHUNK_SERVER: "moosefs-chunkserver",
        "mfsmount": "moosefs-client",
    }
    client = "mfsmount"
    daemons = (_MASTER, _CHUNK_SERVER)

    async def _start_servers(self) -> None:
        for folder in ("master", "chunks", "chunkserver"):
            (self._data / folder).mkdir(parents=True)
        shutil.copy(_EMPTY, self._data / "master" / "metadata.mfs")
        network = f"{self._address.rpartition('.')[0]}.0/24"
        self._write("exports.cfg", f"{network} / rw,alldirs,admin,maproot=0:0")
        self._write("disks.cfg", str(self._data / "chunks"))
        who = ("WORKING_USER = root", "WORKING_GROUP = root")
        self._write(
            "master.cfg",
            *who,
            f"DATA_PATH = {self._data / 'master'}",
            f"EXPORTS_FILENAME = {self._data / 'exports.cfg'}",
            *(f"MATO{peer}_LISTEN_HOST = {self._address}" for peer in ("ML", "CS", "CL")),
        )
        self._write(
            "chunkserver.cfg",
            *who,
            f"DATA_PATH = {self._data / 'chunkserver'}",
            f"HDD_CONF_FILENAME = {self._data / 'disks.cfg'}",
            f"MASTER_HOST = {self._address}",
            f"BIND_HOST = {self._address}",
            f"CSSERV_LISTEN_HOST = {self._address}",
        )
        await self._start_daemons()

    async def _mount(self, host: Host, mount: Path) -> None:
        await until_it_works(host, self.client, str(mount), "-H", self._address)

    async def restart_server(self) -> None:
        # Not with SIGKILL: with one copy, that costs the chunks that were being written (ENXIO).
        for name, configuration in ((_CHUNK_SERVER, "chunkserver.cfg"), (_MASTER, "master.cfg")):
            path = str(self._data / configuration)
            await run_on(STORAGE_HOST, name, "-c", path, "stop")
        await self._start_daemons()

    async def _start_daemons(self) -> None:
        master, chunk_server = self._data / "master.cfg", self._data / "chunkserver.cfg"
        # As long as the one before holds its lock, the next one does not start.
        await until_it_works(STORAGE_HOST, _MASTER, "-c", str(master), "start")
        await until_it_works(STORAGE_HOST, _CHUNK_SERVER, "-c", str(chunk_server), "start")

    def _write(self, name: str, *lines: str) -> None:
        (self._data / name).write_text("\n".join(lines) + "\n")
