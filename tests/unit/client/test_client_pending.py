"""A pending ack: awaited before and after its answer, by several, and given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.client.handles.writing.pending import PendingAck
from holdfast.protocol.errors import StaleWriteError
from holdfast.protocol.messages import Ack, Durability

ACK = Ack(1, 7, 1_000, Durability.SYNCED)


def to_ack(result: Any, time: int, durability: Durability) -> Ack:
    return Ack(result[0], result[1], time, durability)


async def wait(pending: PendingAck) -> Ack:
    return await pending


async def test_an_answer_that_is_there_is_given_at_once_and_again() -> None:
    pending = PendingAck(to_ack)
    assert not pending.done()
    pending.set_result(ACK)
    assert pending.done()
    assert await pending is ACK
    assert await pending is ACK


async def test_all_who_wait_hear_of_the_answer() -> None:
    pending = PendingAck(to_ack)
    heard: list[PendingAck] = []
    pending.add_done_callback(heard.append)
    waiting = [asyncio.create_task(wait(pending)) for _ in range(3)]
    await asyncio.sleep(0)
    pending.set_result(([1, 7], 1_000, Durability.SYNCED))
    assert await asyncio.gather(*waiting) == [ACK] * 3
    assert heard == [pending]
    pending.add_done_callback(heard.append)
    await asyncio.sleep(0)
    assert heard == [pending] * 2


async def test_a_refusal_is_raised_to_each() -> None:
    pending = PendingAck(to_ack)
    pending.set_result((StaleWriteError(counter=3), 0, None))
    for _ in range(2):
        with pytest.raises(StaleWriteError):
            await pending


async def test_who_is_cancelled_while_waiting_gives_it_up() -> None:
    pending = PendingAck(to_ack)
    waiting = asyncio.create_task(wait(pending))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    # Nobody is told any more: what was not sent yet is dropped.
    assert pending.done()
