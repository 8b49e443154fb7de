"""Where syncs run: in the loop while they are short, else in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from unittest import mock

import pytest

from holdfast.persist.threads.sync_thread import (
    SHORT_SECONDS,
    TRY_AFTER_SYNCS,
    TRY_AFTER_SYNCS_MAX,
    SyncThread,
)


class Clock:
    """Time that passes only when a sync takes some."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_syncs(*durations_seconds: float) -> list[bool]:
    """Return for each sync, one after the other, if it ran in the loop's thread."""
    clock = Clock()
    where: list[bool] = []
    loop_thread = threading.get_ident()

    async def main() -> None:
        syncs = SyncThread(clock)
        try:
            for seconds in durations_seconds:

                def sync(seconds: float = seconds) -> None:
                    where.append(threading.get_ident() == loop_thread)
                    clock.now += seconds

                await syncs(sync)
        finally:
            syncs.stop()

    asyncio.run(main())
    return where


def test_the_first_syncs_run_in_the_thread_and_short_ones_then_in_the_loop() -> None:
    where = run_syncs(*[0.0] * (TRY_AFTER_SYNCS + 3))
    assert where == [False] * TRY_AFTER_SYNCS + [True] * 3


def test_how_long_a_sync_took_in_the_thread_does_not_count() -> None:
    where = run_syncs(*[2 * SHORT_SECONDS] * TRY_AFTER_SYNCS, 0.0, 0.0)
    assert where == [False] * TRY_AFTER_SYNCS + [True] * 2


def test_one_that_takes_long_among_short_ones_sends_none_to_the_thread() -> None:
    short = [SHORT_SECONDS / 10] * TRY_AFTER_SYNCS
    where = run_syncs(*short, *short, 5 * SHORT_SECONDS, *short)
    assert all(where[TRY_AFTER_SYNCS:])


def test_one_that_takes_very_long_sends_the_next_ones_to_the_thread() -> None:
    short = [SHORT_SECONDS / 10] * TRY_AFTER_SYNCS
    where = run_syncs(*short, *short, 20 * SHORT_SECONDS, *short, 0.0)
    assert where == [
        *[False] * TRY_AFTER_SYNCS,
        *[True] * (TRY_AFTER_SYNCS + 1),
        *[False] * TRY_AFTER_SYNCS,
        True,
    ]


def test_syncs_that_are_always_long_are_tried_in_the_loop_more_and_more_rarely() -> None:
    where = run_syncs(*[2 * SHORT_SECONDS] * 3 * TRY_AFTER_SYNCS_MAX)
    tried = [index for index, in_loop in enumerate(where) if in_loop]
    pauses = [after - before - 1 for before, after in pairwise([-1, *tried])]
    assert pauses[:3] == [TRY_AFTER_SYNCS, TRY_AFTER_SYNCS, 2 * TRY_AFTER_SYNCS]
    assert pauses == sorted(pauses)
    assert pauses[-1] == TRY_AFTER_SYNCS_MAX


@pytest.fixture
def syncs() -> Iterator[SyncThread]:
    syncs = SyncThread(Clock())
    yield syncs
    syncs.stop()


@pytest.mark.parametrize("before", [0, TRY_AFTER_SYNCS])
async def test_an_error_reaches_whoever_waits(syncs: SyncThread, before: int) -> None:
    for _ in range(before):
        await syncs(lambda: None)
    with pytest.raises(OSError, match="broken"):
        await syncs(mock.Mock(side_effect=OSError("broken")))
    assert await syncs(lambda: 7) == 7


async def test_a_sync_that_waits_for_the_thread_keeps_later_ones_behind_it(
    syncs: SyncThread,
) -> None:
    order: list[int] = []
    for _ in range(TRY_AFTER_SYNCS):
        await syncs(lambda: None)
    syncs._left_count = 1
    first = syncs(lambda: order.append(1))
    assert syncs._left_count == 0
    second = syncs(lambda: order.append(2))
    await asyncio.gather(first, second)
    assert order == [1, 2]


async def test_beside_long_writes_short_syncs_stay_out_of_the_loop(syncs: SyncThread) -> None:
    for _ in range(TRY_AFTER_SYNCS):
        await syncs(lambda: None)
    loop_thread = threading.get_ident()
    assert await syncs(threading.get_ident) == loop_thread
    with syncs.beside_writes():
        with syncs.beside_writes():
            assert await syncs(threading.get_ident) != loop_thread
        assert await syncs(threading.get_ident) != loop_thread
    assert await syncs(threading.get_ident) == loop_thread
