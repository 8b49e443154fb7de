"""A work queue under faults: workers that fetch, acknowledge, hand back and prolong, or forget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from holdfast.client.connection import Client
from holdfast.client.handles.consumer import Consumer
from holdfast.client.handles.consumer import Delivery as Fetched
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreKind
from tests.simulation.workload import Application
from tests.support.checking.history import Delivery, History, Store

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation

QUEUE: Final[Store] = (int(StoreKind.STREAM), "tasks")
_CONSUMER: Final = "workers"
#: Everything that was forgotten is due again after this: the longest ack wait, with clocks that
#: differ.
_DRAIN_SECONDS: Final = 60.0


def prepare(simulation: Simulation) -> None:
    """Draw how long a delivery is its worker's, the same for all."""
    simulation.history.queue = QUEUE
    skews = [server.now_ms() for server in simulation.servers]
    simulation.history.clock_skew_seconds = (max(skews) - min(skews)) / 1000
    simulation.history.ack_wait_seconds = simulation.chance("queue").choice((0.5, 2.0, 6.0))


def _consumer(client: Client, history: History) -> Consumer:
    stream = client.stream(QUEUE[1])
    return stream.consumer(_CONSUMER, ack_wait_seconds=history.ack_wait_seconds)


class QueueWorker(Application):
    """Puts work into the queue, and does some of it."""

    role = "q"

    async def work(self, until: float) -> None:
        """Append and fetch until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        consumer = _consumer(self._client, self._history)
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(6.0))
            timeout_seconds = chance.choice((0.3, 1.0, 3.0))
            if chance.random() < 0.4:
                await self._append(QUEUE[1], timeout_seconds)
            else:
                await self._fetch(consumer, timeout_seconds)

    async def drain(self) -> None:
        """Do all that is left. Raises HoldfastError, TimeoutError."""
        consumer = _consumer(self._client, self._history)
        async with asyncio.timeout(_DRAIN_SECONDS):
            while True:
                for each, noted in await self._ask(consumer, 50, 1.0, 10.0):
                    await self._say(noted, each.ack(), done=True)
                info = await consumer.info()
                if not info.lag and not info.ack_pending_count:
                    return

    async def _fetch(self, consumer: Consumer, timeout_seconds: float) -> None:
        chance = self._chance
        max_wait_seconds = chance.choice((0.0, 0.0, 1.0))
        try:
            found = await self._ask(
                consumer, chance.choice((1, 3, 20)), max_wait_seconds, timeout_seconds
            )
        except HoldfastError as error:
            self._trace.add(f"fetch fails {type(error).__name__}")
            return
        for each, noted in found:
            try:
                await self._handle(each, noted)
            except HoldfastError as error:
                self._trace.add(f"ack fails {type(error).__name__}")

    async def _ask(
        self, consumer: Consumer, batch: int, max_wait_seconds: float, timeout_seconds: float
    ) -> list[tuple[Fetched, Delivery]]:
        loop, history = asyncio.get_running_loop(), self._history
        asked, asked_at = history.position(), loop.time()
        found = await consumer.fetch(
            batch, max_wait_seconds=max_wait_seconds, timeout_seconds=timeout_seconds
        )
        noted = [
            Delivery(
                self._name, each.message.seq, each.delivery_count, asked, asked_at, loop.time()
            )
            for each in found
        ]
        history.deliveries += noted
        self._trace.add(f"delivered {[(each.seq, each.count) for each in noted]}")
        return list(zip(found, noted, strict=True))

    async def _handle(self, each: Fetched, noted: Delivery) -> None:
        chance, loop = self._chance, asyncio.get_running_loop()
        if chance.random() < 0.2:
            await asyncio.sleep(chance.expovariate(2.0))
        dice = chance.random()
        if dice < 0.15:
            prolonged_at = loop.time()
            if await each.in_progress():
                noted.held_from = prolonged_at
            dice = chance.random()
        if dice < 0.65:
            await self._say(noted, each.ack(), done=True)
        elif dice < 0.75:
            noted.released = True
            await self._say(noted, each.nak(chance.choice((0.0, 0.2))), done=False)
        elif dice < 0.8 and await each.term():
            noted.done = self._history.position()

    async def _say(self, noted: Delivery, saying: Awaitable[bool], *, done: bool) -> None:
        counted = await saying
        self._trace.add(f"said of {noted.seq} {noted.count} {counted}")
        if done:
            noted.counted += counted
            noted.done = self._history.position()
