"""CephFS: a monitor, a manager, one OSD on a file, a metadata server, and ceph-fuse on each host.

All options are as they are by default, but for one copy of everything, no authentication, and a
metadata server that looks after its locks five times a second: with the default, every 5 s, each
write to a file that another host has read lasts as long.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.hosts.file_systems.file_system import run_on, until_it_works
from tests.hosts.file_systems.network_file_system import STORAGE_HOST, NetworkFileSystem, pid_of
from tests.hosts.network import Host

_OSD: Final = "ceph-osd"
_OPTIONS: Final = """
mon_initial_members = a
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_bind_msgr2 = false
mon_allow_pool_size_one = true
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
bluestore_block_size = 8589934592
mds_tick_interval = 0.2
"""


class CephFS(NetworkFileSystem):
    """One file system in one cluster."""

    name = "cephfs"
    programs: ClassVar = {
        "ceph": "ceph-common",
        "monmaptool": "ceph-common",
        "ceph-mon": "ceph-mon",
        "ceph-mgr": "ceph-mgr",
        _OSD: "ceph-osd",
        "ceph-mds": "ceph-mds",
        "ceph-fuse": "ceph-fuse",
    }
    client = "ceph-fuse"
    daemons = ("ceph-mon", _OSD, "ceph-mds")

    def __init__(self, data: Path, hosts: Sequence[Host]) -> None:
        super().__init__(data, hosts)
        self._configuration = self._data / "ceph.conf"
        self._cluster = str(uuid.uuid4())

    async def _start_servers(self) -> None:
        for folder in ("mon", "mgr", "osd", "mds"):
            (self._data / folder).mkdir(parents=True)
        self._configure()
        await self._start_monitor()
        await self._run("ceph-mgr", "--id", "x")
        await self._start_osd()
        for pool in ("data", "metadata"):
            await self._run("ceph", "osd", "pool", "create", pool, "8")
        await self._run("ceph", "fs", "new", "holdfast", "metadata", "data")
        await self._run("ceph-mds", "--id", "m")

    async def _mount(self, host: Host, mount: Path) -> None:
        options = ("--conf", str(self._configuration), "--id", host.name)
        # It waits for the metadata server, and returns once it has mounted.
        await until_it_works(host, self.client, *options, str(mount))

    async def restart_server(self) -> None:
        os.kill(pid_of(STORAGE_HOST, _OSD), signal.SIGKILL)
        # As long as the one before holds its lock, the next one does not start.
        await self._until_it_works(_OSD, "--id", "0")

    def _configure(self) -> None:
        self._configuration.write_text(
            f"[global]\nfsid = {self._cluster}\nmon_host = [v1:{self._address}:6789]\n"
            f"public_network = {self._address.rpartition('.')[0]}.0/24\n"
            f"{_OPTIONS}"
            f"run_dir = {self._data}\n"
            f"log_file = {self._data}/$name.log\n"
            f"admin_socket = /run/ceph.$name.$pid.asok\n"
            f"mon_data = {self._data}/mon\n"
            f"mgr_data = {self._data}/mgr\n"
            f"osd_data = {self._data}/osd\n"
            f"mds_data = {self._data}/mds\n"
        )

    async def _start_monitor(self) -> None:
        monitors = str(self._data / "monmap")
        address = f"[v1:{self._address}:6789]"
        making = ("--create", "--fsid", self._cluster, "--addv", "a", address, monitors)
        await run_on(STORAGE_HOST, "monmaptool", *making)
        await self._run("ceph-mon", "--id", "a", "--mkfs", "--monmap", monitors)
        await self._run("ceph-mon", "--id", "a")
        await self._until_it_works("ceph", "--connect-timeout", "5", "status")

    async def _start_osd(self) -> None:
        disk = str(uuid.uuid4())
        await self._run("ceph", "osd", "new", disk)
        await self._run(_OSD, "--id", "0", "--mkfs", "--osd-uuid", disk)
        await self._run(_OSD, "--id", "0")
        place = ("host=h", "root=default")
        await self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", *place)

    async def _run(self, program: str, *arguments: str) -> None:
        await run_on(STORAGE_HOST, program, "--conf", str(self._configuration), *arguments)

    async def _until_it_works(self, program: str, *arguments: str) -> None:
        configuration = ("--conf", str(self._configuration))
        await until_it_works(STORAGE_HOST, program, *configuration, *arguments)
