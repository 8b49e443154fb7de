"""Background tasks end together, and what arrives meanwhile starts none."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.coordinator.background_tasks import BackgroundTasks


async def _fail() -> None:
    raise ValueError("a bug")


async def test_after_a_failed_task_none_is_started_and_none_is_left_unawaited() -> None:
    started: list[str] = []

    async def note() -> None:
        started.append("late")

    tasks = BackgroundTasks(asyncio.to_thread)

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # As a message that arrives while everything ends.
            tasks.start("late", note())

    with pytest.raises(ExceptionGroup):
        async with tasks:
            tasks.start("linger", linger())
            tasks.start("fail", _fail())
            await asyncio.Event().wait()
    tasks.start("later", note())
    assert started == []
    assert not tasks.running("late")


async def test_a_task_that_is_cancelled_ends_nothing() -> None:
    tasks = BackgroundTasks(asyncio.to_thread)
    done = asyncio.Event()

    async def finish() -> None:
        done.set()

    async with tasks:
        tasks.start("wait", asyncio.Event().wait())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        tasks.cancel()
        await asyncio.sleep(0)
        tasks.start("finish", finish())
        await done.wait()
