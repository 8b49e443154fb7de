"""Keys with a ttl, while the clocks of all servers are far ahead for a while.

What has a short ttl is gone soon after it, also if it was set with such a clock or after it. What
has a long one stays, also if its server began with a clock that was wrong: the coordinator's is
right.

Of a store that such a clock has written time goes on only while it is open (docs/reliability.md,
Known gaps): so what is to go is judged where stores stay open that are asked for every second.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from holdfast.client.handles.kv import KV
from holdfast.protocol.errors import HoldfastError
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode

_HOUR_MS: Final = 3_600_000
_LEAPS_MS: Final = (_HOUR_MS, 30 * 365 * 24 * _HOUR_MS)
_SHORT_SECONDS: Final = 1.0
_LONG_SECONDS: Final = 600.0
#: Clocks of servers differ by up to ten seconds, and each change of owner may add that.
_PATIENCE_SECONDS: Final = 60.0
#: With room for so many stores none is closed while it is in use.
_MANY: Final = 1_000
_LOOK_SECONDS: Final = 1.0


class ExpiringKeys:
    """One kv of such keys, with a client of its own."""

    def __init__(self, simulation: Simulation, name: str, *, all_may_leap: bool = False) -> None:
        """With `all_may_leap` the coordinators' clocks are wrong too at times. Then what is past
        its window by every clock is forgotten, `msg_id`s among it."""
        self._simulation = simulation
        self._all_may_leap = all_may_leap
        self._name = name
        self._node = ClientNode(simulation, f"k{name.replace('.', '')}")
        simulation.clients.append(self._node)

    async def run(self, chance: random.Random) -> None:
        """Set keys before, in and after a leap, and see that they go as they should."""
        client = await self._node.run(self._node.start(timeout_seconds=10.0))
        await self._node.run(self._live(client.kv(self._name), chance))

    async def _live(self, keys: KV[bytes], chance: random.Random) -> None:
        simulation = self._simulation
        starts_ahead = chance.random() < 0.5
        leap_ms = chance.choice(_LEAPS_MS)
        leapt_before = simulation.coordinators_leapt
        stays = await self._set(keys, "long", _LONG_SECONDS)
        stays = stays and not any(node.leap_ms for node in simulation.coordinators)
        # Where the coordinators' are ahead too, nobody can tell a server that starts that it is.
        all_ahead = self._all_may_leap and starts_ahead and chance.random() < 0.5
        leaping = [*simulation.servers, *(simulation.coordinators if all_ahead else ())]
        simulation.coordinators_leapt += all_ahead
        for node in leaping:
            node.leap_ms += leap_ms
        if starts_ahead:
            for server in simulation.servers:
                server.kill()
                server.start_later(0.1)
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        await self._set(keys, "in the leap", _SHORT_SECONDS)
        for node in leaping:
            node.leap_ms -= leap_ms
        await self._set(keys, "after the leap", _SHORT_SECONDS)
        stays = stays and simulation.coordinators_leapt == leapt_before
        if stays and await self._is_gone(keys, "long"):
            simulation.fail(
                f"a key with a ttl of {_LONG_SECONDS:g} s went with a leap of the clock"
            )
        if simulation.max_open_stores < _MANY or simulation.idle_close_seconds < 3 * _LOOK_SECONDS:
            return
        for key in ("in the leap", "after the leap"):
            await self._see_it_go(keys, key)

    async def _see_it_go(self, keys: KV[bytes], key: str) -> None:
        for _ in range(int(_PATIENCE_SECONDS / _LOOK_SECONDS)):
            await asyncio.sleep(_LOOK_SECONDS)
            if await self._is_gone(keys, key):
                return
        self._simulation.fail(
            f"a key that was set {key} with a ttl of {_SHORT_SECONDS:g} s is there "
            f"{_PATIENCE_SECONDS:g} s later"
        )

    async def _set(self, keys: KV[bytes], key: str, ttl_seconds: float) -> bool:
        try:
            await keys.set(key, b"x", ttl_seconds=ttl_seconds)
        except HoldfastError:
            # Other faults keep it from being set, or from being known to be.
            return False
        return True

    async def _is_gone(self, keys: KV[bytes], key: str) -> bool:
        try:
            return await keys.get(key) is None
        except HoldfastError:
            return False
