"""The load generators do each operation once, keep to their bounds, and fail when one fails."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.bench.load import (
    MAX_OUTSTANDING,
    VALUE_BYTES,
    Limit,
    closed_loop,
    due_at,
    paced,
    value_of,
    windowed,
)


def test_each_number_has_its_own_value_of_the_same_size() -> None:
    values = {value_of(number) for number in range(1000)}
    assert len(values) == 1000
    assert {len(value) for value in values} == {VALUE_BYTES}


@pytest.mark.parametrize("concurrency", [1, 7, 200])
async def test_callers_do_each_operation_once_and_never_more_at_a_time_than_they_are(
    concurrency: int,
) -> None:
    under_way = 0
    most = 0

    async def operation(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number * 2

    load = await closed_loop(operation, concurrency, Limit(operations=100), 5)
    assert sorted(load.answers) == [(number, number * 2) for number in range(5, 105)]
    assert len(load.latencies_seconds) == 100
    assert most <= concurrency


async def one_turn(number: int) -> None:
    await asyncio.sleep(0)


async def test_callers_start_nothing_but_the_first_operation_after_the_time_is_up() -> None:
    assert (await closed_loop(one_turn, 3, Limit(seconds=0.0))).operations == 1


async def test_a_failed_operation_fails_the_load() -> None:
    async def operation(number: int) -> None:
        if number == 3:
            raise OSError("no")

    with pytest.raises(ExceptionGroup) as raised:
        await closed_loop(operation, 2, Limit(operations=10))
    assert raised.group_contains(OSError)


async def test_a_window_waits_for_all_answers_and_is_never_exceeded() -> None:
    futures: list[asyncio.Future[int]] = []
    loop = asyncio.get_running_loop()

    async def start(number: int) -> asyncio.Future[int]:
        assert sum(not future.done() for future in futures) < 4
        futures.append(loop.create_future())
        # The later ones are answered first.
        loop.call_later(0.001 * (10 - number), futures[-1].set_result, number)
        return futures[-1]

    load = await windowed(start, 4, Limit(operations=10))
    assert load.answers == [(number, number) for number in range(10)]


async def test_a_refused_message_of_a_window_fails_the_load() -> None:
    async def start(number: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if number == 2:
            future.set_exception(OSError("no"))
        else:
            future.set_result(number)
        return future

    with pytest.raises(OSError, match="no"):
        await windowed(start, 5, Limit(operations=5))


async def test_a_fixed_rate_sends_all_that_is_due_though_nothing_is_answered_meanwhile() -> None:
    answered = asyncio.Event()
    started = 0

    async def operation(number: int) -> None:
        nonlocal started
        started += 1
        if started == 100:
            answered.set()
        await answered.wait()

    load = await paced(operation, 10_000.0, Limit(seconds=0.01))
    assert (load.operations, started) == (100, 100)


async def test_a_fixed_rate_is_given_up_when_too_much_is_under_way() -> None:
    most = under_way = 0
    full = asyncio.Event()

    async def operation(number: int) -> None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        if under_way == MAX_OUTSTANDING:
            full.set()
        await full.wait()
        under_way -= 1

    await paced(operation, 1e6, Limit(seconds=2 * MAX_OUTSTANDING / 1e6))
    assert most == MAX_OUTSTANDING


async def test_latencies_at_a_fixed_rate_count_from_when_an_operation_was_due() -> None:
    load = await paced(one_turn, 1000.0, Limit(seconds=0.01), 40)
    assert due_at(load, 40, 1000.0) == load.began_at
    assert due_at(load, 45, 1000.0) == pytest.approx(load.began_at + 0.005)
    assert min(load.latencies_seconds) >= 0
