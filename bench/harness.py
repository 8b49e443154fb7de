"""The results of a benchmark: figures of rounds, medians and spread, targets, and one JSON
document. Pure.

A *work* is done by several *sides* (holdfast and its peers, or holdfast in several sizes), each in
several rounds. A round yields named figures, units last. The result of a side is the median of its
rounds, with the lowest and highest. Two sides are compared by the ratio of their medians. A target
compares such a value with a bound.

It runs nothing and knows no clock. `turns` yields the order in which to run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: The format of the JSON document. A reader refuses others. Adding fields does not change it.
FORMAT: Final = 1

#: The values that one round measured, by name. The name ends with the unit.
Figures = Mapping[str, float]


class Spread(NamedTuple):
    """One figure over all rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median, lowest and highest of one or more values."""
    return Spread(statistics.median(values), min(values), max(values))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the ascending values do not
    exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def timed(operations: int, seconds: float, latencies_seconds: Sequence[float] = ()) -> Figures:
    """Return the figures of a round of `operations` that took `seconds` in total. The latencies are
    in any order; without them there are no percentiles."""
    figures = {
        "operations": float(operations),
        "seconds": seconds,
        "per_second": operations / seconds if seconds > 0 else 0.0,
    }
    if latencies_seconds:
        ordered = sorted(latencies_seconds)
        figures["p50_ms"] = quantile(ordered, 0.5) * 1000
        figures["p99_ms"] = quantile(ordered, 0.99) * 1000
        figures["max_ms"] = ordered[-1] * 1000
    return figures


@dataclass(frozen=True, slots=True)
class Measurement:
    """The rounds of one side, without the warm-up. Each round has the same figures."""

    rounds: tuple[Figures, ...]
    #: The variant that was used, if there was more than one, and the result of each variant in the
    #: warm-up (higher is better).
    variant: str = ""
    tried: Mapping[str, float] = field(default_factory=dict)

    def spread(self, figure: str) -> Spread:
        """Return the spread of a figure. Raises KeyError if it was not measured."""
        return spread([one[figure] for one in self.rounds])

    def median(self, figure: str) -> float:
        return self.spread(figure).median

    @property
    def figures(self) -> tuple[str, ...]:
        return tuple(self.rounds[0]) if self.rounds else ()

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "figures": {name: self.spread(name)._asdict() for name in self.figures},
            "rounds": [dict(one) for one in self.rounds],
        }
        if self.variant:
            document |= {"variant": self.variant, "tried": dict(self.tried)}
        return document


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for a figure of a side, or for its ratio to the same figure of another side."""

    side: str
    figure: str
    bound: float
    #: If False, the bound is an upper one.
    at_least: bool = True
    #: The other side, or empty to compare the figure itself with the bound.
    than: str = ""

    def measured(self, sides: Mapping[str, Measurement]) -> float | None:
        """Return the value to compare with the bound, or None if a side was not measured."""
        if self.side not in sides or (self.than and self.than not in sides):
            return None
        value = sides[self.side].median(self.figure)
        return ratio(value, sides[self.than].median(self.figure)) if self.than else value

    def reached(self, sides: Mapping[str, Measurement]) -> bool | None:
        """Return whether the target is met, or None if it was not measured."""
        value = self.measured(sides)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def to_json(self, sides: Mapping[str, Measurement]) -> dict[str, Any]:
        return {
            "side": self.side,
            "figure": self.figure,
            "than": self.than or None,
            "at_least" if self.at_least else "at_most": self.bound,
            "measured": self.measured(sides),
            "reached": self.reached(sides),
        }


@dataclass(frozen=True, slots=True)
class Work:
    """The measurements of one work, on one or more sides."""

    name: str
    title: str
    sides: Mapping[str, Measurement]
    targets: tuple[Goal, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "sides": {name: side.to_json() for name, side in self.sides.items()},
            "targets": [target.to_json(self.sides) for target in self.targets],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """One run of one benchmark."""

    benchmark: str
    #: Facts of the machine and versions (`machine.py`).
    machine: Mapping[str, Any]
    #: The options of the run: rounds, sizes, whether it was quick or profiled.
    options: Mapping[str, Any]
    works: tuple[Work, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "machine": dict(self.machine),
            "options": dict(self.options),
            "works": [work.to_json() for work in self.works],
        }

    @property
    def missed(self) -> tuple[str, ...]:
        """The names of works with a target that was measured but not reached."""
        return tuple(
            work.name
            for work in self.works
            if any(target.reached(work.sides) is False for target in work.targets)
        )


class Table(NamedTuple):
    """Rows for people. `right` names the columns of numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()


def ratio(value: float, other: float) -> float:
    """Return value / other, or infinity if other is zero."""
    return value / other if other else math.inf


def turns(sides: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield (round, side) in the order to run them. Round 0 warms up and does not count.

    All sides take their turn in each round, so that disturbances of the machine affect all of them.
    The first side changes from round to round, so that no side always follows the same one.
    """
    for number in range(rounds + 1):
        shift = number % len(sides)
        for side in (*sides[shift:], *sides[:shift]):
            yield number, side
