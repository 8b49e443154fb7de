"""Callers that give up in the very turn of the loop in which room comes for them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client.wire.waiting_callers import WaitingCallers
from holdfast.protocol.errors import OperationTimeoutError
from holdfast.protocol.limits import FIRST_WAITING_OPERATIONS
from tests.support.coalescer_client import Client

SECONDS = 60.0


async def waiting(callers: WaitingCallers, timeout_seconds: float = SECONDS) -> asyncio.Task[None]:
    task = asyncio.create_task(callers.wait(timeout_seconds))
    await asyncio.sleep(0)
    assert len(callers.line) > 0
    return task


def without_room(client: Client) -> WaitingCallers:
    """Return the line of a client that has no room until `make_room`."""
    for _ in range(FIRST_WAITING_OPERATIONS):
        client.append()
    assert client.core.room == 0
    return WaitingCallers(client.core)


def make_room(client: Client) -> None:
    client.core.fail_all(OperationTimeoutError(timeout_seconds=SECONDS, reason="no answer"))
    assert client.core.room > 0


async def test_who_is_cancelled_just_before_room_comes_is_cancelled(
    client: Client,
) -> None:
    callers = without_room(client)
    task = await waiting(callers)
    task.cancel()
    make_room(client)
    callers.admit()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not callers.line


async def test_who_runs_out_of_time_just_before_room_comes_is_told_so(
    client: Client,
) -> None:
    callers = without_room(client)
    task = await waiting(callers, 1e-9)

    def answered() -> None:
        make_room(client)
        callers.admit()

    # The timer of the timeout is due before this one, in the same turn of the loop.
    asyncio.get_running_loop().call_later(0, answered)
    with pytest.raises(OperationTimeoutError):
        await task
    assert not callers.line


async def test_those_that_are_cancelled_just_after_they_were_admitted_let_the_next_one_in(
    client: Client,
) -> None:
    callers = without_room(client)
    tasks = [await waiting(callers)]
    make_room(client)
    tasks += [await waiting(callers) for _ in range(client.core.room)]
    callers.admit()
    assert len(callers.line) == 1
    *admitted, last = tasks
    for task in admitted:
        task.cancel()
    await asyncio.wait(admitted)
    assert all(task.cancelled() for task in admitted)
    await asyncio.wait_for(last, SECONDS)


async def test_all_are_let_in_at_the_end(client: Client) -> None:
    callers = without_room(client)
    tasks = [await waiting(callers) for _ in range(3)]
    callers.admit_all()
    await asyncio.gather(*tasks)
    assert not callers.line
