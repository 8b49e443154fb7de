"""Simulated threads and the bucket that is called in them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError, ObjectExistsError
from tests.simulation.simulated_bucket import SimulatedBucket
from tests.simulation.simulated_threads import Outcome, SimulatedThread, current_thread
from tests.simulation.virtual_loop import VirtualLoop


class Caller:
    """A process that is well until it is said to be dead."""

    name = "s1"

    def __init__(self) -> None:
        self.dead = False
        self.failures: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._loop = asyncio.get_running_loop()

    def trace(self, text: str) -> None: ...

    def may_crash(self) -> None: ...

    def may_stop(self, kind: str, key: str) -> None: ...

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        # Also called in a simulated thread, which has no loop of its own.
        self._loop.call_later(seconds, function)

    def fail(self, what: str) -> None:
        self.failures.append(what)

    async def run(self, function: Callable[[], Any]) -> Any:
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        SimulatedThread(function, ended.set_result, lambda: self.dead).advance()
        result, error = await ended
        if error is not None:
            raise error
        return result


def play(body: Callable[[SimulatedBucket], Any]) -> None:
    async def main() -> None:
        bucket = SimulatedBucket(random.Random(1), asyncio.get_running_loop().time)
        weather = bucket.weather
        weather.busy = weather.lost = weather.late = weather.unanswered = 0.0
        await body(bucket)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_two_calls_of_the_bucket_overlap_and_one_wins() -> None:
    async def body(bucket: SimulatedBucket) -> None:
        one, other = Caller(), Caller()
        results = await asyncio.gather(
            *(
                caller.run(lambda caller=caller: bucket.of(caller).put_new("key", b"body"))
                for caller in (one, other)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(each, ObjectExistsError) for each in results) == 1
        assert asyncio.get_running_loop().time() > 0

    play(body)


def test_a_thread_of_a_process_that_has_died_is_unwound_where_it_waits() -> None:
    async def body(bucket: SimulatedBucket) -> None:
        caller = Caller()

        def work() -> None:
            thread = current_thread()
            assert thread is not None
            thread.give_way(1.0)
            raise AssertionError("it goes on")

        running = asyncio.ensure_future(caller.run(work))
        await asyncio.sleep(0.5)
        caller.dead = True
        with pytest.raises(OSError, match="dead"):
            await running

    play(body)


def test_a_bucket_that_is_away_costs_time_and_an_error() -> None:
    async def body(bucket: SimulatedBucket) -> None:
        bucket.weather.away.add("s1")
        caller = Caller()
        with pytest.raises(BucketUnavailableError):
            await caller.run(lambda: bucket.of(caller).put_new("key", b"body"))
        assert not list(bucket.in_good_weather().list())

    play(body)


def test_a_write_that_is_late_has_its_effect_or_none_once() -> None:
    async def body(bucket: SimulatedBucket) -> None:
        bucket.weather.late = 1.0
        caller = Caller()
        with pytest.raises(BucketUnavailableError):
            await caller.run(lambda: bucket.of(caller).put_new("key", b"body"))
        await asyncio.sleep(2.0)
        assert [each.key for each in bucket.in_good_weather().list()] == ["key"]

    play(body)


def test_a_call_in_the_loop_is_noticed() -> None:
    async def body(bucket: SimulatedBucket) -> None:
        caller = Caller()
        bucket.of(caller).put_new("key", b"body")
        assert caller.failures

    play(body)
