"""The tormentor: strikes the running parts as `faults.py` says, and remembers what it did."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

from holdfast.client import Client
from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.errors import UnavailableError
from tests.support.checking.history import Store
from tests.support.supervised_cluster import SERVERS, Parts
from tests.torture.faults import Fault, FaultKind, PlannedFault, Strike, choose, strikes
from tests.torture.workload import KVS, STREAMS

#: How long a strike waits for its servers; then another one gets its turn.
_WELL_SECONDS: Final = 12.0
_LOOK_SECONDS: Final = 0.2
_ASK_SECONDS: Final = 5.0
#: A server that was stopped and goes on may find itself fenced: give it time to notice.
_AFTER_PAUSE_SECONDS: Final = 3.2


class Tormentor:
    """One torture's faults."""

    def __init__(self, parts: Parts, client: Client, seed: int, say: Callable[[str], None]) -> None:
        self.faults: list[Fault] = []
        self._parts = parts
        self._client = client
        self._seed = seed
        self._say = say
        #: Servers that were hit, by the incarnation that they had: it must be another one.
        self._hit: dict[str, str] = {}
        #: Servers that are stopped, or just go on, until then.
        self._paused_until: dict[str, float] = {}

    async def run(self, until: float) -> None:
        """Strike until the monotonic time `until`; then wait until nobody is stopped any more."""
        async with asyncio.TaskGroup() as tasks:
            for strike in strikes(self._seed):
                await asyncio.sleep(strike.rest_seconds)
                if time.monotonic() >= until:
                    break
                await self._strike(strike, tasks)

    async def well_servers(self) -> dict[str, ServerInfo]:
        """Return the servers that run and serve. Empty if the coordinator does not say."""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                rows = await self._client.servers()
        except (UnavailableError, TimeoutError):
            return {}
        now = time.monotonic()
        return {
            row.server: row
            for row in rows
            if row.state == ServerState.LIVE
            and self._hit.get(row.server) != row.incarnation
            and self._paused_until.get(row.server, 0.0) < now
        }

    async def _strike(self, strike: Strike, tasks: asyncio.TaskGroup) -> None:
        give_up_at = time.monotonic() + _WELL_SECONDS
        while True:
            well = await self.well_servers()
            targets = choose(strike, list(well), len(SERVERS))
            coordinator = self._parts.active_coordinator
            wants_coordinator = any(f.kind is FaultKind.COORDINATOR for f in strike.faults)
            if targets is not None and (coordinator or not wants_coordinator):
                break
            if time.monotonic() >= give_up_at:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        owned = await self._owned_stores()
        for fault, server in zip(strike.faults, targets, strict=True):
            incarnation = well[server].incarnation if server else ""
            self._hurt(fault, server, incarnation, owned.get(server, ()), tasks)

    def _hurt(
        self,
        fault: PlannedFault,
        server: str,
        incarnation: str,
        stores: tuple[Store, ...],
        tasks: asyncio.TaskGroup,
    ) -> None:
        parts, now = self._parts, time.monotonic()
        target, until = server, now
        if fault.kind is FaultKind.COORDINATOR:
            assert parts.active_coordinator is not None
            target = parts.active_coordinator
            parts.active_coordinator = None
            parts.coordinators[target].signal(signal.SIGKILL)
        elif fault.kind is FaultKind.NATS:
            target = parts.nats.name
            parts.nats.signal(signal.SIGKILL if fault.pick < 0.5 else signal.SIGTERM)
        elif fault.kind is FaultKind.PAUSE:
            until = now + fault.pause_seconds
            parts.servers[server].signal(signal.SIGSTOP)
            self._paused_until[server] = until + _AFTER_PAUSE_SECONDS
            tasks.create_task(self._resume_at(server, until))
        else:
            kill = fault.kind is FaultKind.KILL
            parts.servers[server].signal(signal.SIGKILL if kill else signal.SIGTERM)
            self._hit[server] = incarnation
        killed_stores = stores if fault.kind is FaultKind.KILL else ()
        self.faults.append(Fault(fault.kind, target, now, until, killed_stores))
        self._say(f"{fault.kind} {target}" + (f" {until - now:.1f} s" if until > now else ""))

    async def _resume_at(self, server: str, at: float) -> None:
        try:
            await asyncio.sleep(at - time.monotonic())
        finally:
            self._parts.servers[server].signal(signal.SIGCONT)

    async def _owned_stores(self) -> dict[str, tuple[Store, ...]]:
        """Return which of the tortured stores each server owns, as far as the coordinator says."""
        owned: dict[str, tuple[Store, ...]] = {}
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                async for info in self._client.stores(prefix="torture."):
                    store = (int(info.kind), info.name)
                    if info.server and store in STREAMS + KVS:
                        owned[info.server] = (*owned.get(info.server, ()), store)
        except (UnavailableError, TimeoutError):
            return {}
        return owned
