"""A gateway dies at any moment, and another one goes on: what was promised still holds."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.gateway.jetstream.wire.ports import PortMessage
from tests.support.consumer_set_world import SECOND, ConsumerSetWorld, in_virtual_time

_MESSAGES = 60


class Worker:
    """A client that pulls, and says of each message what it likes."""

    def __init__(self, world: ConsumerSetWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self.counts: dict[int, int] = {}
        self.done: set[int] = set()

    async def work(self, *, carefully: bool) -> None:
        """Take one batch."""
        world = self._world
        inbox = await world.pull("c", batch=7, expires=SECOND // 10)
        await asyncio.sleep(0.1)
        for message in [each for each in inbox.take() if each.payload]:
            await self._take(message, 1.0 if carefully else self._chance.random())
        await inbox.subscription.unsubscribe()

    async def _take(self, message: PortMessage, mood: float) -> None:
        times, seq = (int(each) for each in message.reply.split(".")[4:6])
        assert seq not in self.done, "it was answered that it is done with"
        # Only the deliveries of the last milliseconds may be forgotten.
        assert times >= self.counts.get(seq, 0) - 1
        self.counts[seq] = times
        world = self._world
        if mood < 0.2:
            return
        if mood < 0.4:
            await world.ack(message)
        elif mood < 0.5:
            await world.ack(message, b"-NAK")
        else:
            answers = await world.listen()
            world.app.publish(message.reply, b"", reply=answers.subject)
            await asyncio.sleep(0.03)
            if any(not each.headers for each in answers.received):
                self.done.add(seq)
            await answers.subscription.unsubscribe()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_nothing_is_lost_and_nothing_comes_again_after_a_double_ack(
    seed: int, retention: str
) -> None:
    chance = random.Random(f"{seed} {retention}")

    async def run(world: ConsumerSetWorld) -> None:
        await world.create("c", ack_wait=SECOND // 2, max_ack_pending=20)
        worker = Worker(world, chance)

        async def publish() -> None:
            for _ in range(_MESSAGES):
                world.stream.publish("S.a")
                await asyncio.sleep(chance.uniform(0, 0.05))

        async def die() -> None:
            for _ in range(6):
                await asyncio.sleep(chance.uniform(0, 0.4))
                await world.restart(handed_over=chance.random() < 0.3)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish())
            dying = tasks.create_task(die())
            while not dying.done():
                await worker.work(carefully=False)
        for _ in range(60):
            await worker.work(carefully=True)
            info = await world.info("c")
            if not info["num_pending"] and not info["num_ack_pending"]:
                break
            await asyncio.sleep(0.3)
        assert set(worker.counts) == set(range(1, _MESSAGES + 1))
        assert info["ack_floor"]["stream_seq"] == _MESSAGES
        assert bool(world.stream.messages) == (retention == "limits")

    in_virtual_time(run, retention=retention)
