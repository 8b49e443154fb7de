"""The virtual loop: time jumps, processes stop and go on, and what cannot end is noticed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.virtual_loop import Deadlock, Process, VirtualLoop, current_process


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400.0)
        return asyncio.get_running_loop().time()

    assert _run(main()) == pytest.approx(86_400.0)


def test_timers_fire_in_their_order() -> None:
    fired: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (0.3, 0.1, 0.2):
            loop.call_later(seconds, fired.append, seconds)
        await asyncio.sleep(1.0)

    _run(main())
    assert fired == [0.1, 0.2, 0.3]


def test_a_timer_is_never_early() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for step in range(1000):
            at = loop.time() + 0.1 / (step + 3)
            reached = loop.create_future()
            loop.call_at(at, reached.set_result, None)
            await reached
            assert loop.time() >= at

    _run(main())


def test_waiting_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    loop = VirtualLoop()
    task = loop.create_task(main())
    with pytest.raises(Deadlock):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_paused_process_does_nothing_and_then_everything_in_order() -> None:
    happened: list[tuple[str, int]] = []

    async def work() -> None:
        process = current_process()
        assert process is not None
        for number in range(4):
            await asyncio.sleep(1.0)
            happened.append((process.name, number))

    async def main() -> None:
        one, other = Process("one"), Process("other")
        tasks = [one.start(work()), other.start(work())]
        await asyncio.sleep(1.5)
        one.pause()
        await asyncio.sleep(5.0)
        assert happened[2:] == [("other", 1), ("other", 2), ("other", 3)]
        one.resume()
        await asyncio.wait(tasks)

    _run(main())
    assert happened[5:] == [("one", 1), ("one", 2), ("one", 3)]


def test_a_timer_with_an_empty_context_belongs_to_no_process() -> None:
    async def work() -> None:
        process = current_process()
        assert process is not None
        process.pause()
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, process.resume, context=contextvars.Context())
        await asyncio.sleep(0.5)

    async def main() -> float:
        await Process("p").start(work())
        return asyncio.get_running_loop().time()

    assert _run(main()) == pytest.approx(1.0)


def test_a_timer_that_was_cancelled_by_what_was_held_before_it_does_not_fire() -> None:
    async def work(answer: asyncio.Future[str]) -> str:
        async with asyncio.timeout(1.0):
            return await answer

    async def main() -> str:
        process = Process("p")
        answer = asyncio.get_running_loop().create_future()
        task = process.start(work(answer))
        await asyncio.sleep(0.5)
        process.pause()
        answer.set_result("in time")
        await asyncio.sleep(5.0)
        process.resume()
        return str(await task)

    assert _run(main()) == "in time"


def test_a_future_that_another_process_fulfils_wakes_its_waiter_only_when_that_one_runs() -> None:
    woken_at = []

    async def wait(future: asyncio.Future[None]) -> None:
        await future
        woken_at.append(asyncio.get_running_loop().time())

    async def main() -> None:
        process = Process("p")
        future = asyncio.get_running_loop().create_future()
        task = process.start(wait(future))
        await asyncio.sleep(1.0)
        process.pause()
        future.set_result(None)
        await asyncio.sleep(2.0)
        process.resume()
        await task

    _run(main())
    assert woken_at == [pytest.approx(3.0)]
