"""Strikes hosts as `faults.py` says, one fault after the other, and remembers what it did."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from holdfast.client import KV, Client, Stream
from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.errors import StorageFailedError, UnavailableError
from tests.hosts import network
from tests.hosts.clock import HOUR_SECONDS
from tests.hosts.cluster import HOSTS, HostsParts
from tests.hosts.faults import (
    LOSS_RATIO,
    NEAR_COORDINATOR_RATIO,
    HostFault,
    PlannedHostFault,
    plan,
)
from tests.hosts.file_systems.file_system import LocalFileSystem
from tests.hosts.file_systems.network_file_system import NetworkFileSystem
from tests.hosts.network import NATS, STORAGE, Host
from tests.hosts.slow_link import slowed
from tests.torture.faults import Fault
from tests.torture.workload import KVS, STREAMS, is_stream

#: How long a fault waits until all servers are well; then it comes all the same.
_WELL_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_ASK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A host whose parts and clients reached nobody else over NATS, from `at` to `until`."""

    host: Host
    at: float
    until: float


class HostsTormentor:
    """One run's faults."""

    def __init__(
        self,
        parts: HostsParts,
        file_system: LocalFileSystem,
        client: Client,
        seed: int,
        say: Callable[[str], None],
        kinds: Sequence[HostFault],
    ) -> None:
        self.faults: list[Fault] = []
        self.cuts: list[Cut] = []
        self._parts = parts
        self._file_system = file_system
        self._client = client
        self._seed = seed
        self._say = say
        self._kinds = kinds
        #: Persist servers that were killed, by the incarnation that they had.
        self._killed: dict[str, str] = {}

    async def run(self, until: float) -> None:
        """Strike until the monotonic time `until`. A fault that would last longer is left out."""
        for fault in plan(self._seed, self._kinds):
            await asyncio.sleep(fault.rest_seconds)
            await self._wait_until_well(until)
            now = time.monotonic()
            if now >= until:
                break
            if fault.kind is HostFault.COORDINATOR and self._parts.active_coordinator is None:
                self._say("no coordinator is active, so none can be killed")
            elif now + fault.seconds <= until:
                await self._strike(fault)

    async def well_servers(self) -> dict[str, ServerInfo]:
        """Return the servers that run and serve. Empty if the coordinator does not say."""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                rows = await self._client.servers()
        except (UnavailableError, StorageFailedError, TimeoutError):
            return {}
        return {
            row.server: row
            for row in rows
            if row.state == ServerState.LIVE
            and self._killed.get(row.server) != row.incarnation
            and row.incarnation not in {fencing.incarnation for fencing in self._parts.fencings}
        }

    async def _wait_until_well(self, until: float) -> None:
        give_up_at = min(until, time.monotonic() + _WELL_SECONDS)
        while time.monotonic() < give_up_at:
            well = await self.well_servers()
            if len(well) == len(HOSTS) and self._parts.active_coordinator is not None:
                # A pause is to be that of one fault.
                await self._read_every_store(give_up_at - time.monotonic())
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _read_every_store(self, timeout_seconds: float) -> None:
        """Return once every store has answered, or it takes too long."""
        client = self._client
        try:
            async with asyncio.timeout(timeout_seconds), asyncio.TaskGroup() as tasks:
                for kind, name in STREAMS + KVS:
                    is_one = is_stream((kind, name))
                    tasks.create_task(_head(client.stream(name) if is_one else client.kv(name)))
        except* (UnavailableError, StorageFailedError, TimeoutError) as error:
            self._say(f"not every store answers yet: {error!r}")

    async def _strike(self, fault: PlannedHostFault) -> None:
        server = await self._choose(fault)
        host = self._parts.hosts[server]
        target, at = host.name, time.monotonic()
        match fault.kind:
            case HostFault.KILL:
                well = await self.well_servers()
                if server in well:
                    self._killed[server] = well[server].incarnation
                at, target = time.monotonic(), server
                self._tell(fault, target)
                self._parts.servers[server].signal(signal.SIGKILL)
            case HostFault.COORDINATOR:
                target = self._kill_coordinator(fault)
            case HostFault.NATS_NODE:
                self._tell(fault, target)
                self._parts.nats_servers[target].signal(signal.SIGKILL)
            case HostFault.ROUTE:
                other = HOSTS[(HOSTS.index(host) + 1) % len(HOSTS)]
                target = f"{host.name} {other.name}"
                self._tell(fault, target)
                await _close_route(host, other)
            case HostFault.CLOCK:
                target = self._set_clock(fault)
            case HostFault.STORAGE_RESTARTED:
                target = "storage"
                self._tell(fault, target)
                await self._served().restart_server()
            case _:
                if fault.kind is HostFault.STORAGE_STOPPED:
                    target = "storage"
                elif host is self._parts.coordinator_host():
                    target += ", with the coordinator"
                self._tell(fault, target)
                async with self._lasting(fault, host):
                    await asyncio.sleep(fault.seconds)
        self.faults.append(Fault(fault.kind, target, at, time.monotonic()))

    async def _choose(self, fault: PlannedHostFault) -> str:
        """Return the server whose host is hit: that of the coordinator's host now and then, else
        another one with the most stores. A store has no reason to come back to a server that was
        fenced, and who has none has nothing to lose."""
        near = self._parts.coordinator_host()
        rows = await self.well_servers()
        stores = {
            name: rows[name].assigned_stores if name in rows else 0
            for name, host in self._parts.hosts.items()
        }
        others = [name for name in stores if self._parts.hosts[name] is not near]
        busiest = max(others, key=lambda name: stores[name])
        if near is None or (stores[busiest] and fault.pick >= NEAR_COORDINATOR_RATIO):
            return busiest
        return next(name for name in stores if name not in others)

    def _kill_coordinator(self, fault: PlannedHostFault) -> str:
        name = self._parts.active_coordinator
        assert name is not None
        self._tell(fault, name)
        self._parts.active_coordinator = None
        self._parts.coordinators[name].signal(signal.SIGKILL)
        return name

    def _set_clock(self, fault: PlannedHostFault) -> str:
        """Set a host's clock back an hour, or right again if it is. Faults in between find hosts
        whose clocks differ."""
        host = HOSTS[int(fault.pick * len(HOSTS))]
        clock = self._parts.clocks[host.name]
        clock.set(-HOUR_SECONDS if clock.ahead_seconds == 0 else 0)
        target = f"{host.name}, {'back' if clock.ahead_seconds else 'right again'}"
        self._tell(fault, target)
        return target

    @asynccontextmanager
    async def _lasting(self, fault: PlannedHostFault, host: Host) -> AsyncIterator[None]:
        """Have what lasts around the body."""
        files, at = self._file_system, time.monotonic()
        others = [each for each in HOSTS if each is not host]
        async with AsyncExitStack() as undoing:
            match fault.kind:
                case HostFault.HOST_WITHOUT_NATS:
                    network.pull(host, NATS)
                    undoing.callback(network.plug, host, NATS)
                    undoing.callback(self._remember_cut, host, at)
                case HostFault.SPLIT:
                    for other in others:
                        network.part(host, other)
                        undoing.callback(network.join, host, other)
                        if fault.closes:
                            network.close_route(host, other)
                    undoing.callback(self._remember_cut, host, at)
                case HostFault.DELAY:
                    delayed = slowed(host, NATS, delay_seconds=fault.delay_seconds)
                    await undoing.enter_async_context(delayed)
                case HostFault.LOSS:
                    for name in (NATS, STORAGE) if files.has_server else (NATS,):
                        losing = slowed(host, name, loss_ratio=LOSS_RATIO, seed=fault.seed)
                        await undoing.enter_async_context(losing)
                case HostFault.HOST_WITHOUT_STORAGE:
                    network.pull(host, STORAGE)
                    undoing.callback(network.plug, host, STORAGE)
                case HostFault.STORAGE_STOPPED:
                    self._served().stop_server()
                    undoing.callback(self._served().continue_server)
                case _:
                    self._served().stop_mount(host)
                    undoing.callback(self._served().continue_mount, host)
            yield

    def _served(self) -> NetworkFileSystem:
        """The file system, whose mounts and servers only a planned fault of such a one hits."""
        assert isinstance(self._file_system, NetworkFileSystem)
        return self._file_system

    def _remember_cut(self, host: Host, at: float) -> None:
        self.cuts.append(Cut(host, at, time.monotonic()))

    def _tell(self, fault: PlannedHostFault, target: str) -> None:
        lasts = f" {fault.seconds:.1f} s" if fault.seconds else ""
        self._say(f"{fault.kind}: {target}{lasts}")


async def _close_route(host: Host, other: Host) -> None:
    """Close a route as soon as there is one: a nats-server that was killed opens its own anew."""
    async with asyncio.timeout(_WELL_SECONDS):
        while network.close_route(host, other) == 0:
            await asyncio.sleep(_LOOK_SECONDS)


async def _head(store: Stream | KV) -> None:
    await store.head()
