"""What goes wrong with gateways in a run, besides all that goes wrong with the cluster.

Each fault heals by itself what it harms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulation.jetstream.world import GatewayNode, World


class GatewayFaults:
    """Harms the gateways and their NATS."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._simulation = world.simulation
        self.chance = world.simulation.chance("faults of gateways")
        faults: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self.kill_gateway, 4),
            (self.kill_before_an_answer, 4),
            (self.kill_after_an_answer, 2),
            (self.pause_gateway, 4),
            (self.stop_gateway, 2),
            (self.vanish_gateway, 1),
            (self.cut_gateway, 3),
            (self.stall_gateway, 3),
            (self.restart_nats, 1),
        )
        # Each run has its own mixture, so that some are dominated by one kind.
        self.all = [(fault, weight * self.chance.choice((0, 1, 1, 3))) for fault, weight in faults]
        self.all.append((self.kill_gateway, 1))
        if self._simulation.direct is not None:
            self.all.append((self.cut_pipes, 2))

    def _gateway(self) -> GatewayNode:
        return self.chance.choice(self._world.gateways)

    async def kill_gateway(self) -> None:
        gateway = self._gateway()
        gateway.kill()
        await asyncio.sleep(self.chance.choice((0.05, 0.5, 4.0)))
        gateway.start()

    async def kill_before_an_answer(self) -> None:
        """Have a gateway die that was told that a message is stored, and is about to tell its
        publisher."""
        self._world.dies_at_answer = self.chance.randint(1, 10)
        await asyncio.sleep(self.chance.uniform(0.5, 3.0))
        self._world.dies_at_answer = 0
        for gateway in self._world.gateways:
            gateway.start()

    async def kill_after_an_answer(self) -> None:
        """Have a gateway die that has just told a publisher that its message is stored, or a worker
        that its ack is."""
        self._world.dies_after_answer = self.chance.randint(1, 30)
        await asyncio.sleep(self.chance.uniform(0.5, 3.0))
        self._world.dies_after_answer = 0
        for gateway in self._world.gateways:
            gateway.start()

    async def pause_gateway(self) -> None:
        """Stop a gateway, mostly until others have its streams, and let it go on."""
        process = self._gateway().process
        assert process is not None
        self._simulation.trace.add(f"pause {process.name}")
        process.pause()
        await asyncio.sleep(self.chance.uniform(0.3, 9.0))
        self._simulation.trace.add(f"resume {process.name}")
        process.resume()

    async def stop_gateway(self) -> None:
        self._gateway().stop()
        await asyncio.sleep(self.chance.uniform(0.5, 3.0))

    async def vanish_gateway(self) -> None:
        """Take the host of a gateway away, which NATS learns of only later."""
        gateway = self._gateway()
        gateway.kill(power=True)
        await asyncio.sleep(self.chance.choice((0.5, 5.0)))
        gateway.start()

    async def cut_gateway(self) -> None:
        """Take connections of a gateway away, which both sides are told."""
        gateway = self._gateway()
        if gateway.ports is None:
            return
        client, leaf = gateway.ports
        ports = self.chance.choice(((client,), (leaf,), (client, leaf)))
        for port in ports:
            port.drop()
        await asyncio.sleep(self.chance.choice((0.1, 1.0, 4.0)))
        for port in ports:
            port.come_back()

    async def stall_gateway(self) -> None:
        """Let nothing through to or from a gateway's connection for a while, nor lose it."""
        gateway = self._gateway()
        if gateway.ports is None:
            return
        until = asyncio.get_running_loop().time() + self.chance.uniform(0.5, 5.0)
        for port in self.chance.choice((gateway.ports, gateway.ports[:1], gateway.ports[1:])):
            self._world.stalled_until[port.name] = until
        await asyncio.sleep(until - asyncio.get_running_loop().time())

    async def restart_nats(self) -> None:
        """Let all connections of gateways and applications end, and come back."""
        self._world.nats.stop()
        await asyncio.sleep(self.chance.choice((0.05, 0.5, 3.0)))
        self._world.nats.start()

    async def cut_pipes(self) -> None:
        """End direct connections between gateways and servers, both of which live."""
        direct = self._simulation.direct
        for pipe in direct.pipes if direct is not None else ():
            if self.chance.random() < 0.7:
                pipe.cut()
