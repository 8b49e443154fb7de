"""One tenant's flood of a server, and another tenant beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pipeline_world import World, run

from holdfast.persist.write_path.inbox import TENANT_TURN_OPERATIONS
from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_INBOX_BYTES
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout

APPEND, HEAD = [frames.APPEND, b"v"], [frames.HEAD]
FLOOD = 20_000


@pytest.mark.parametrize("operation", [APPEND, HEAD], ids=["writes", "reads"])
def test_a_flood_of_one_tenant_costs_another_a_turn(tmp_path: Path, operation: list[Any]) -> None:
    async def body(world: World) -> None:
        layout = open_layout(tmp_path, Disk())
        flooded = world.open(layout, "flooded", tenant="evil")
        world.stores.append(flooded)
        [quiet, _] = world.stores[:2]
        flood = [
            world.arrival(flooded, operation)._replace(reply=f"reply.flood.{number}")
            for number in range(FLOOD)
        ]
        for start in range(0, FLOOD, 1000):
            world.inbox.submit(flood[start : start + 1000])
        [result] = await world.ask(world.arrival(quiet, operation))
        assert result
        # What its turn, and the one before, hold of the flood: each is a group of its own.
        assert len(world.answers) <= 2 * TENANT_TURN_OPERATIONS
        while len(world.answers) <= FLOOD:
            world._arrived.clear()
            await world._arrived.wait()

    run(tmp_path, body)


def test_a_tenant_that_fills_the_inbox_is_told_so_and_another_is_served(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        layout = open_layout(tmp_path, Disk())
        flooded = world.open(layout, "flooded", tenant="evil")
        world.stores.append(flooded)
        large = world.arrival(flooded, HEAD)._replace(size_bytes=MAX_INBOX_BYTES // 4)
        flood = [large._replace(reply=f"reply.flood.{number}") for number in range(8)]
        for each in flood:
            world.inbox.submit([each])
        [result] = await world.ask(world.arrival(world.stores[0], APPEND))
        assert result
        while len(world.answers) <= len(flood):
            world._arrived.clear()
            await world._arrived.wait()
        refused = [each for each in flood if world.answers[each.reply][0][1]]
        assert [world.answers[each.reply][0][2] for each in refused] == ["busy"] * len(refused)
        assert refused

    run(tmp_path, body)


def test_what_waits_is_counted_back_to_nothing(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        one, two = world.stores
        arrivals = [world.arrival(one, APPEND), world.arrival(two, HEAD), world.arrival(one, HEAD)]
        await world.ask(*arrivals)
        assert world.places.occupied == []
        whole = world.arrival(two, [frames.HEAD])._replace(size_bytes=MAX_INBOX_BYTES)
        [result] = await world.ask(whole)
        assert type(result) is list

    run(tmp_path, body)
