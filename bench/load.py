"""Load from one client process: callers that wait for each answer, a window that is kept full, or a
fixed rate.

Operations are numbered from 0. The number decides the value and the place of each write, so that
all sides do the same work and the result can be checked. A failed operation fails the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

VALUE_BYTES: Final = 128
_NUMBER_BYTES: Final = 16
_FILLER: Final = b"0123456789abcdef" * ((VALUE_BYTES - _NUMBER_BYTES) // 16)
#: How many messages of a fixed rate may be unanswered. With more, the rate is not kept.
MAX_OUTSTANDING: Final = 5000
_PACE_SECONDS: Final = 0.001


def value_of(number: int) -> bytes:
    """Return the value that operation `number` writes: VALUE_BYTES, different for each."""
    return b"%016x" % number + _FILLER


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Turn the garbage collector off in the body. This process holds a million answers to check,
    and traversing them would pause what it measures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class UnderWay(Protocol):
    """A pending operation, such as an asyncio.Future."""

    def done(self) -> bool: ...

    def __await__(self) -> Generator[Any, Any, Any]: ...


class Limit(NamedTuple):
    """The end of a load: after `seconds` or `operations`, whichever comes first. At least one
    operation is done."""

    seconds: float | None = None
    operations: int | None = None


@dataclass(slots=True)
class LoadReport:
    """The result of a load. Answers and latencies are in the order of completion."""

    first_number: int = 0
    #: By time.perf_counter, like all times here.
    began_at: float = 0.0
    seconds: float = 0.0
    #: (number of the operation, what it returned).
    answers: list[tuple[int, Any]] = field(default_factory=list)
    latencies_seconds: list[float] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return len(self.latencies_seconds)


async def closed_loop(
    operation: Callable[[int], Awaitable[Any]],
    concurrency: int,
    limit: Limit,
    first_number: int = 0,
) -> LoadReport:
    """Run `concurrency` callers, each of which starts its next operation once the
    last is answered."""
    clock = time.perf_counter
    began_at = clock()
    load = LoadReport(first_number, began_at)
    answers, latencies = load.answers, load.latencies_seconds
    end_at = began_at + limit.seconds if limit.seconds is not None else float("inf")
    next_number = first_number
    past_number = first_number + limit.operations if limit.operations is not None else None

    async def caller() -> None:
        nonlocal next_number
        while next_number != past_number:
            number = next_number
            next_number += 1
            sent_at = clock()
            if sent_at >= end_at and number > first_number:
                return
            answer = await operation(number)
            latencies.append(clock() - sent_at)
            answers.append((number, answer))

    async with asyncio.TaskGroup() as callers:
        for _ in range(concurrency):
            callers.create_task(caller())
    load.seconds = clock() - began_at
    return load


async def windowed(
    start: Callable[[int], Awaitable[UnderWay]],
    window: int,
    limit: Limit,
    first_number: int = 0,
    take: Callable[[int, Any], None] | None = None,
) -> LoadReport:
    """Run one producer that keeps `window` operations pending. It takes answers in the order in
    which the operations were started.

    If `take` is given, it gets the number and the answer of each operation, and the load keeps no
    answers, because the garbage collector would traverse them again and again.
    """
    clock = time.perf_counter
    began_at = clock()
    load = LoadReport(first_number, began_at)
    latencies = load.latencies_seconds
    #: (start, operation, time of the answer), evaluated after the load, which needs the processor.
    answered: list[tuple[float, UnderWay, float]] = []
    end_at = began_at + limit.seconds if limit.seconds is not None else float("inf")
    number = first_number
    past_number = first_number + limit.operations if limit.operations is not None else None
    under_way: deque[tuple[int, float, UnderWay]] = deque()

    async def take_answered() -> None:
        """Wait for the oldest operation, and take all that are answered by then."""
        await under_way[0][2]
        now = clock()
        while under_way and under_way[0][2].done():
            started, sent_at, pending = under_way.popleft()
            if take is None:
                answered.append((sent_at, pending, now))
            else:
                latencies.append(now - sent_at)
                take(started, await pending)

    while number != past_number:
        if len(under_way) == window:
            await take_answered()
        sent_at = clock()
        if sent_at >= end_at and number > first_number:
            break
        under_way.append((number, sent_at, await start(number)))
        number += 1
    while under_way:
        await take_answered()
    load.seconds = clock() - began_at
    for started, (sent_at, pending, now) in enumerate(answered, first_number):
        latencies.append(now - sent_at)
        load.answers.append((started, await pending))
    return load


async def paced(
    operation: Callable[[int], Awaitable[Any]],
    per_second: float,
    limit: Limit,
    first_number: int = 0,
) -> LoadReport:
    """Start operations at a fixed rate, even if earlier ones are not answered, up to
    MAX_OUTSTANDING.

    Latencies count from the moment when an operation was due (`due_at`), so a stall counts for all
    operations that it delays.
    """
    assert limit.seconds is not None
    clock = time.perf_counter
    load = LoadReport(first_number, clock())
    past_number = first_number + int(per_second * limit.seconds)
    outstanding = 0

    async def run(number: int) -> None:
        nonlocal outstanding
        try:
            answer = await operation(number)
        finally:
            outstanding -= 1
        load.latencies_seconds.append(clock() - due_at(load, number, per_second))
        load.answers.append((number, answer))

    async with asyncio.TaskGroup() as tasks:
        number = first_number
        while number < past_number:
            while (
                number < past_number
                and outstanding < MAX_OUTSTANDING
                and due_at(load, number, per_second) <= clock()
            ):
                outstanding += 1
                tasks.create_task(run(number))
                number += 1
            await asyncio.sleep(_PACE_SECONDS)
    load.seconds = clock() - load.began_at
    return load


def due_at(load: LoadReport, number: int, per_second: float) -> float:
    """Return when an operation of a load at a fixed rate was due."""
    return load.began_at + (number - load.first_number) / per_second
