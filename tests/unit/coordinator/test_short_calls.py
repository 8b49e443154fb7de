"""Where short calls of the storage run: in the loop while they are short, else in a thread."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.short_calls import (
    SHORT_SECONDS,
    TRY_AFTER_CALLS,
    TRY_AFTER_CALLS_MAX,
    ShortCalls,
)


class Clock:
    """Time that passes only in calls."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def in_loop(*durations_seconds: float) -> list[bool]:
    """Return for each call, one after the other, if it ran in the loop's thread."""
    clock = Clock()

    async def main() -> list[bool]:
        tasks = BackgroundTasks(asyncio.to_thread, ShortCalls(clock=clock))

        def call(seconds: float) -> bool:
            clock.now += seconds
            return threading.get_ident() == loop_thread

        return [await tasks.short(call, seconds) for seconds in durations_seconds]

    loop_thread = threading.get_ident()
    return asyncio.run(main())


def test_the_first_calls_run_in_a_thread_and_short_ones_then_in_the_loop() -> None:
    where = in_loop(*[0.0] * (TRY_AFTER_CALLS + 3))
    assert where == [False] * TRY_AFTER_CALLS + [True] * 3


def test_how_long_a_call_took_in_the_thread_does_not_count() -> None:
    where = in_loop(*[2 * SHORT_SECONDS] * TRY_AFTER_CALLS, 0.0, 0.0)
    assert where == [False] * TRY_AFTER_CALLS + [True] * 2


def test_one_that_takes_long_among_short_ones_sends_none_to_the_thread() -> None:
    short = [SHORT_SECONDS / 10] * TRY_AFTER_CALLS
    assert all(in_loop(*short, *short, 5 * SHORT_SECONDS, *short)[TRY_AFTER_CALLS:])


def test_while_the_disk_is_slow_calls_are_tried_in_the_loop_less_and_less_often() -> None:
    where = in_loop(*[2 * SHORT_SECONDS] * (3 * TRY_AFTER_CALLS_MAX))
    tries = [number for number, is_in_loop in enumerate(where) if is_in_loop]
    gaps = [later - earlier - 1 for earlier, later in pairwise(tries)]
    expected = [TRY_AFTER_CALLS * 2**number for number in range(len(gaps))]
    assert gaps == [min(each, TRY_AFTER_CALLS_MAX) for each in expected]


def test_once_the_disk_is_fast_again_calls_run_in_the_loop() -> None:
    where = in_loop(*[0.0] * (TRY_AFTER_CALLS + 1), 100 * SHORT_SECONDS, *[0.0] * 20)
    assert where[-1]
    assert not all(where[TRY_AFTER_CALLS:])


@pytest.mark.parametrize("number", [0, TRY_AFTER_CALLS])
async def test_what_a_call_raises_reaches_its_caller(number: int) -> None:
    tasks = BackgroundTasks(asyncio.to_thread, ShortCalls())
    for _ in range(number):
        await tasks.short(int)
    with pytest.raises(ZeroDivisionError):
        await tasks.short(divmod, 1, 0)
    assert await tasks.short(divmod, 7, 2) == (3, 1)


async def test_a_coordinator_that_is_given_no_way_for_short_calls_runs_them_as_any_other() -> None:
    tasks = BackgroundTasks(asyncio.to_thread)
    assert await tasks.short(threading.get_ident) != threading.get_ident()
