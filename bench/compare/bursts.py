"""Clusters that take many short turns at the same work, and are compared round by round.

In each round the servers are new, because two processes that run the same code differ by some
percent, by where their memory happens to be. The first side is what the others are compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from holdfast.bench.compare.side_holdfast import HoldfastSide
from holdfast.bench.compare.works import BenchWork
from holdfast.bench.figures import shown
from holdfast.bench.harness import Figures, Measurement
from holdfast.bench.options import BenchOptions

_ROUND_SECONDS: Final = 300.0


async def compared_rounds(
    options: BenchOptions,
    measure_round: Callable[[], Awaitable[dict[str, dict[str, float]]]],
    figure: str,
    ratio: str,
) -> dict[str, Measurement]:
    """Return the figures of each side. `measure_round` gives those of one round; as `ratio` each
    side also gets its `figure` divided by that of the first side. Raises TimeoutError, and what
    `measure_round` raises."""
    rounds: dict[str, list[Figures]] = {}
    for number in range(options.rounds):
        async with asyncio.timeout(_ROUND_SECONDS):
            figures = await measure_round()
        first = next(iter(figures.values()))[figure]
        for side, of_side in figures.items():
            of_side[ratio] = of_side[figure] / first
            rounds.setdefault(side, []).append(of_side)
        told = (f"{side} {shown(figure, each[figure])}" for side, each in figures.items())
        options.say(f"  round {number + 1}: {', '.join(told)}")
    return {side: Measurement(tuple(of_side)) for side, of_side in rounds.items()}


async def begin_round(
    works: Mapping[str, BenchWork], sides: Mapping[str, HoldfastSide], *, quick: bool
) -> None:
    """Warm each side up, on new processes of its servers unless it is `quick`."""
    for side, work in works.items():
        if not quick:
            await sides[side].restart_servers()
        await work.prepare()
        await work.load(work.variants[0])
        await work.check()


def there_and_back(sides: Iterable[str], count: int) -> Iterator[str]:
    """Yield the sides `count` times: the first turn of each is followed by the others in the
    opposite order, so that a trend touches all sides alike."""
    order = list(sides)
    for _ in range(count):
        yield from order
        order.reverse()
