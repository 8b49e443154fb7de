"""One tenant's flood of a server, and another tenant beside it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.write_path.inbox import TENANT_TURN_OPERATIONS
from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_INBOX_BYTES
from tests.support.pipeline_world import World, running

APPEND, HEAD = [frames.APPEND, b"v"], [frames.HEAD]
FLOOD = 4 * TENANT_TURN_OPERATIONS


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return running(tmp_path)


@pytest.mark.parametrize("operation", [APPEND, HEAD], ids=["writes", "reads"])
async def test_a_flood_of_one_tenant_costs_another_a_turn(
    world: World, operation: list[Any]
) -> None:
    flooded = world.open("flooded", tenant="evil")
    flood = [
        world.arrival(flooded, operation)._replace(reply=f"reply.flood.{number}")
        for number in range(FLOOD)
    ]
    for start in range(0, FLOOD, 1000):
        world.inbox.submit(flood[start : start + 1000])
    [result] = await world.ask(world.arrival(world.stores[0], operation))
    assert result
    # What its turn, and the one before, hold of the flood: each is a group of its own.
    assert len(world.answers) <= 2 * TENANT_TURN_OPERATIONS
    await world.until(lambda: len(world.answers) > FLOOD)


async def test_a_tenant_that_fills_the_inbox_is_told_so_and_another_is_served(world: World) -> None:
    flooded = world.open("flooded", tenant="evil")
    large = world.arrival(flooded, HEAD)._replace(size_bytes=MAX_INBOX_BYTES // 4)
    flood = [large._replace(reply=f"reply.flood.{number}") for number in range(8)]
    for each in flood:
        world.inbox.submit([each])
    [result] = await world.ask(world.arrival(world.stores[0], APPEND))
    assert result
    await world.until(lambda: len(world.answers) > len(flood))
    refused = [each for each in flood if world.answers[each.reply][0][1]]
    assert [world.answers[each.reply][0][2] for each in refused] == ["busy"] * len(refused)
    assert refused


async def test_what_waits_is_counted_back_to_nothing(world: World) -> None:
    one, two = world.stores
    arrivals = [world.arrival(one, APPEND), world.arrival(two, HEAD), world.arrival(one, HEAD)]
    await world.ask(*arrivals)
    assert world.places.occupied == []
    [result] = await world.ask(world.arrival(two, HEAD)._replace(size_bytes=MAX_INBOX_BYTES))
    assert type(result) is list
