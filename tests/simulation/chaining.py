"""A stream and a kv with a chain, under faults: every acknowledged chain is found again.

Several writers append, and one removes. An ack carries the chain after its message, so one that a
takeover lost, doubled or changed makes all later ones differ.
"""

from __future__ import annotations

import asyncio
import random

from holdfast.client.connection import Client
from holdfast.protocol.chain.checking import ChainReport
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.messages import Ack
from tests.simulation.simulated_cluster import Simulation


class Chaining:
    """Writers of a stream and a kv, and the acks that they kept."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self._fail = simulation.fail
        self._chance: random.Random = simulation.chance("chaining")
        self._stream = client.stream("chained")
        self._kv = client.kv("chained")
        self.acks: list[Ack] = []
        self.kv_acks: list[Ack] = []

    async def work(self, until: float) -> None:
        """Configure the stores, then write and remove until the time `until`."""
        await self._stream.configure(chain=True, timeout_seconds=60.0)
        await self._kv.configure(chain=True, timeout_seconds=60.0)
        # As long as it stands, all later sets can be checked.
        self.kv_acks.append(await self._kv.set("kept", b"v", timeout_seconds=60.0))
        writing = (self._write(until, number) for number in range(3))
        await asyncio.gather(*writing, self._set(until))

    async def _write(self, until: float, writer: int) -> None:
        loop, chance = asyncio.get_running_loop(), self._chance
        number = 0
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(20.0))
            number += 1
            try:
                if writer == 0 and self.acks and chance.random() < 0.2:
                    seq = chance.choice(self.acks).seq or 1
                    await self._stream.delete(seq, timeout_seconds=1.0)
                    continue
                if writer == 1:
                    values = [b"%d" % number] * chance.randint(1, 5)
                    self.acks += await self._stream.append_many(values, timeout_seconds=1.0)
                    continue
                headers = {"n": str(number)} if chance.random() < 0.3 else None
                ack = await self._stream.append(b"v", headers=headers, timeout_seconds=1.0)
                self.acks.append(ack)
            except HoldfastError:
                continue

    async def _set(self, until: float) -> None:
        loop, chance = asyncio.get_running_loop(), self._chance
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(20.0))
            key = chance.choice("abcdef")
            try:
                if chance.random() < 0.2:
                    await self._kv.delete(key, timeout_seconds=1.0)
                else:
                    self.kv_acks.append(await self._kv.set(key, b"v", timeout_seconds=1.0))
            except HoldfastError:
                continue

    async def finish(self) -> None:
        """Verify the chains against all that was acknowledged."""
        for store, acks in ((self._stream, self.acks), (self._kv, self.kv_acks)):
            try:
                report: ChainReport = await store.verify_chain(acks, timeout_seconds=30.0)
            except HoldfastError as error:
                self._fail(f"the chain cannot be verified: {error!r}")
                continue
            if report.differing:
                self._fail(f"the chain differs at {report.differing[:5]}: {report}")
