"""No cancellation is lost in what forgets them, and none is made up."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast.protocol.bus.cancelling import cancellable


async def _forgetful() -> None:
    """What nats-py does in places."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def _work() -> None:
    with cancellable():
        await _forgetful()


async def test_a_cancellation_that_is_forgotten_within_is_raised_at_the_end() -> None:
    task = asyncio.create_task(_work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_deadline_that_is_forgotten_within_is_kept() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await _work()


async def test_who_cleans_up_after_a_cancellation_is_not_cancelled_once_more() -> None:
    cleaned_up = False

    async def ends_slowly() -> None:
        nonlocal cleaned_up
        try:
            await asyncio.Event().wait()
        finally:
            with cancellable():
                await asyncio.sleep(0)
            cleaned_up = True

    task = asyncio.create_task(ends_slowly())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert cleaned_up and task.cancelled()


async def test_a_deadline_within_that_has_passed_is_no_cancellation() -> None:
    with cancellable(), pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()


async def test_an_error_that_hides_a_cancellation_is_replaced_by_it() -> None:
    async def work() -> None:
        with cancellable():
            await _forgetful()
            raise ConnectionError

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
