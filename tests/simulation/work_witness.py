"""Who did which cold work, in which epoch; and whether all of it is somebody's in the end.

It watches the check that comes before each step, at the instant at which it passes. No two servers
may pass it for the same work in the same epoch, and none in an epoch after a later one has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from holdfast.persist.tier.claims import Claims
from holdfast.protocol.errors import FencedError
from holdfast.protocol.work.cold_work import CATCH_UP, COLLECT, REAP, SWEEPS
from holdfast.protocol.work.roles import Role, Roles
from holdfast.shared_fs.disk.fence import is_open

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation

#: Servers that own stores alone, and servers that do cold work alone.
ROLES: Final[dict[str, Roles]] = {
    "s1": (Role.PERSIST,),
    "s2": (Role.PERSIST,),
    "s3": (Role.TIER,),
    "s4": (Role.TIER,),
}
#: Within this, after everything has healed, every piece of work is claimed, and the logs of the
#: dead are gone: a silence, a fence, some questions, and passes of the reaper.
_SETTLED_SECONDS: Final = 60.0


class WorkWitness:
    """Watches the cold work of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        #: The last epoch in which each work was done, and by whom.
        self._done: dict[str, tuple[int, str]] = {}
        self.step_count = 0
        #: How often a work was done by another than before.
        self.change_count = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch meanwhile."""
        check = Claims.check

        def watched(claims: Claims, work: str, epoch: int) -> None:
            check(claims, work, epoch)
            self._step(claims, work, epoch)

        with patch.object(Claims, "check", watched):
            yield

    def _step(self, claims: Claims, work: str, epoch: int) -> None:
        gate = claims._gate
        who = f"{gate._server}-{gate._incarnation}"
        node = next(node for node in self._simulation.servers if node.name == gate._server)
        if node.mount_lies:
            # Until it finds out, it believes an old fence. What it does is still harmless.
            return
        last, before = self._done.get(work, (0, ""))
        if epoch < last:
            self._simulation.fail(f"{who} does {work} in epoch {epoch} after {before} in {last}")
        elif epoch == last and who != before:
            self._simulation.fail(f"{who} and {before} do {work} in the same epoch {epoch}")
        self.step_count += 1
        self.change_count += bool(before) and before != who
        self._done[work] = epoch, who

    def forget(self) -> None:
        """The cluster is about to be rebuilt from its bucket: its epochs begin anew."""
        self._done.clear()

    async def settle(self) -> None:
        """Wait until every work is claimed by a server that runs, and the dead are reaped."""
        simulation = self._simulation
        give_up_at = simulation.loop.time() + _SETTLED_SECONDS
        while problem := self._problem():
            if simulation.loop.time() > give_up_at:
                simulation.fail(problem)
                return
            await asyncio.sleep(0.5)

    def _problem(self) -> str:
        simulation = self._simulation
        running: list[Any] = [
            node.server.parts
            for node in simulation.servers
            if node.running and node.server is not None and node.server.parts is not None
        ]
        claimed = [work for parts in running for work in parts.claims._held]
        works = [REAP, COLLECT, CATCH_UP, *SWEEPS]
        if sorted(claimed) != sorted(works):
            return f"not all of the cold work is somebody's: {sorted(claimed)}"
        alive = {(parts.life.server, parts.life.id) for parts in running}
        servers = simulation.layout.servers
        disk = simulation.servers[0].disk
        for server in disk.names(servers):
            for name in disk.names(simulation.layout.server(server)):
                fence = simulation.layout.fence(server, name)
                if (server, name) in alive or not disk.exists(fence):
                    continue
                with contextlib.suppress(FencedError):
                    if not is_open(disk, fence):
                        return f"nobody reaps the log of {server} {name}"
        return ""
