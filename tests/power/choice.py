"""Which cuts to try: every one, or a spread of them that a seed chooses."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.power.cluster import Cut, Scope
from tests.power.run import run
from tests.simulation.simulated_files import Survival


def every_cut(scenario: str, seed: int) -> Iterator[tuple[Cut, ...]]:
    """Yield every crash point of a story with every way to lose power, and each crash point once
    with a second cut somewhere in the recovery."""
    chance = random.Random(f"{seed}/{scenario}")
    story_count, recovery_count = run(scenario).event_counts
    for at in range(1, story_count + 2):
        for survival in Survival:
            for scope in Scope:
                yield (Cut(at, survival, scope, seed),)
        yield _any_cut(at, chance), _any_cut(chance.randrange(1, recovery_count + 2), chance)


def some_cuts(
    scenario: str, seed: int, single_count: int, double_count: int
) -> Iterator[tuple[Cut, ...]]:
    """Yield crash points spread over a story, each with some way to lose power, and some pairs."""
    chance = random.Random(f"{seed}/{scenario}")
    story_count, recovery_count = run(scenario).event_counts
    for number in range(single_count):
        low = 1 + number * (story_count + 1) // single_count
        high = 1 + (number + 1) * (story_count + 1) // single_count
        yield (_any_cut(chance.randrange(low, max(high, low + 1)), chance),)
    for _ in range(double_count):
        first = _any_cut(chance.randrange(1, story_count + 2), chance)
        yield first, _any_cut(chance.randrange(1, recovery_count + 2), chance)


def _any_cut(at: int, chance: random.Random) -> Cut:
    return Cut(
        at, chance.choice(list(Survival)), chance.choice(list(Scope)), chance.randrange(1 << 16)
    )
