"""What leaves of ephemeral stores beside a log whose syncs take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from tests.support.pipeline_world import World, running

APPEND = [frames.APPEND, b"v"]


class Syncs:
    """Syncs that take until they are let go, one by one."""

    def __init__(self) -> None:
        self._allowed = asyncio.Semaphore(0)
        self.begun = 0

    def allow(self) -> None:
        self._allowed.release()

    async def run(self, function: Callable[[], Any], /) -> Any:
        self.begun += 1
        await self._allowed.acquire()
        return function()


async def turns() -> None:
    """Let everything happen that waits for no sync."""
    for _ in range(50):
        await asyncio.sleep(0)


async def told(world: World, name: str) -> list[int]:
    """Return the revisions of a stream's broadcasts, as they come."""
    revisions: list[int] = []

    def on_change(message: BusMessage) -> None:
        said = frames.decode_changes(message.payload)
        revisions.append(said.previous_revision + len(said.changes))

    [store] = [each for each in world.open_stores.stores() if each.id.name == name]
    await world.peer.subscribe(world.life.subjects.changes(store.id), on_change)
    return revisions


async def test_no_later_change_of_a_store_leaves_before_one_that_waits(tmp_path: Path) -> None:
    syncs = Syncs()
    async with running(tmp_path, syncs.run) as world:
        cursors, durable = world.open_ephemeral("cursors"), world.stores[0]
        revisions = await told(world, "cursors")
        # The first reserves numbers, the second and third are built while that is synced.
        world.inbox.submit([world.arrival(cursors, APPEND)])
        await turns()
        assert syncs.begun == 1
        world.inbox.submit([world.arrival(durable, APPEND)])
        await turns()
        world.inbox.submit([world.arrival(cursors, APPEND)])
        await turns()
        assert revisions == []
        syncs.allow()
        await turns()
        assert syncs.begun == 2, "the durable store is being synced"
        world.inbox.submit([world.arrival(cursors, APPEND)])
        await turns()
        assert revisions == [2, 3, 4]
        syncs.allow()


async def test_no_store_waits_for_what_another_one_reserves(tmp_path: Path) -> None:
    syncs = Syncs()
    async with running(tmp_path, syncs.run) as world:
        cursors, typing = world.open_ephemeral("cursors"), world.open_ephemeral("typing")
        revisions, others = await told(world, "cursors"), await told(world, "typing")
        syncs.allow()
        await world.ask(world.arrival(cursors, APPEND))
        world.inbox.submit([world.arrival(typing, APPEND), world.arrival(cursors, APPEND)])
        await turns()
        world.inbox.submit([world.arrival(cursors, APPEND)])
        await turns()
        assert syncs.begun == 2
        assert revisions == [2, 3, 4]
        assert others == []
        syncs.allow()
        await turns()
        assert others == [2]


async def test_what_is_removed_from_a_full_server_gives_its_memory_back_soon(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as world:
        cursors = world.open_ephemeral("cursors")
        await world.ask(world.arrival(cursors, APPEND))
        assert cursors.pending.ticks
        world.open_stores.memory_use.limit_bytes = 1
        [refusal, _] = await world.ask(
            world.arrival(cursors, APPEND), world.arrival(cursors, [frames.TRIM, 1])
        )
        assert refusal[0] == "busy"
        await turns()
        assert not cursors.pending.ticks
