"""The parts on their hosts: a nats-server and a persist server on each, two coordinators.

All parts of a host connect to its own nats-server and know no other, so a host that is cut off has
a nats-server, a persist server and clients that reach each other and nobody else.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.shared_fs.disk.reading import FenceRead
from tests.hosts import believing
from tests.hosts.clock import HostClock
from tests.hosts.file_systems.file_system import LocalFileSystem
from tests.hosts.network import NATS, ROUTE_PORT, Host
from tests.support.supervised_cluster import SERVERS, SupervisedParts

HOSTS: Final = tuple(Host(f"h{number}", 10 + number) for number in (1, 2, 3))
_HOLDFAST: Final = "holdfast.cli"
_COORDINATORS: Final = {"c1": HOSTS[0], "c2": HOSTS[1]}
_PORT: Final = 4222
_NATS_SECONDS: Final = 30.0
_DEAD: Final = re.compile(r"coordinator\.server_dead server=(\S+) incarnation=(\S+) reason=(.*)")


class Fencing(NamedTuple):
    """A coordinator said that it has fenced a server, at this monotonic time."""

    server: str
    incarnation: str
    reason: str
    at: float


class HostsParts(SupervisedParts):
    """The running parts."""

    def __init__(self, data: Path, file_system: LocalFileSystem, fence_read: str) -> None:
        super().__init__(data)
        self.fencings: list[Fencing] = []
        #: By the server that it has.
        self.hosts = dict(zip(SERVERS, HOSTS, strict=True))
        #: By the name of the host.
        self.clocks = {host.name: HostClock(data / f"clock-{host.name}") for host in HOSTS}
        self.nats_url = ",".join(url_of(host) for host in HOSTS)
        routes = ",".join(f"nats://{host.address(NATS)}:{ROUTE_PORT}" for host in HOSTS)
        for host in HOSTS:
            own = host.address(NATS)
            self.nats_servers[host.name] = self.part(
                f"nats-{host.name}",
                host.command(
                    *(str(find_nats_server()), "--addr", own, "--port", str(_PORT)),
                    *("--cluster_name", "hosts", "--cluster", f"nats://{own}:{ROUTE_PORT}"),
                    *("--routes", routes, "--no_advertise"),
                ),
            )

        def command(host: Host, module: str, *arguments: str) -> list[str]:
            folder = str(file_system.folder(host))
            options = ("--data", folder, "--nats", url_of(host), "--fence-read", fence_read)
            program = self.clocks[host.name].program(module)
            return host.command(*program, *arguments, *options)

        for name, host in _COORDINATORS.items():
            starting = command(host, _HOLDFAST, "coordinator", "--standby")
            self.coordinators[name] = self.part(name, starting)
        server_module = believing.MODULE if fence_read == FenceRead.PLAIN else _HOLDFAST
        for name, host in self.hosts.items():
            starting = command(host, server_module, "persist", "--name", name)
            self.servers[name] = self.part(name, starting)

    async def wait_for_nats(self) -> None:
        async with asyncio.timeout(_NATS_SECONDS):
            for host in HOSTS:
                await _until_it_listens(host)

    def coordinator_host(self) -> Host | None:
        """Return where the active coordinator is, as far as its log has told."""
        return _COORDINATORS.get(self.active_coordinator or "")

    def heard(self, name: str, text: str) -> None:
        super().heard(name, text)
        dead = _DEAD.search(text) if name in self.coordinators else None
        if dead is not None:
            server, incarnation, reason = dead.groups()
            self.fencings.append(Fencing(server, incarnation, reason, time.monotonic()))


def url_of(host: Host) -> str:
    """Return where the nats-server of a host is."""
    return f"nats://{host.address(NATS)}:{_PORT}"


async def _until_it_listens(host: Host) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(host.address(NATS), _PORT)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
