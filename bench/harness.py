"""What a benchmark measures and how that is told: figures of rounds, medians and spread, targets,
and one JSON document. Pure.

A *work* is done by several *sides* (holdfast and its peers, or holdfast in several sizes), each in
several rounds. A round yields named figures, units last. What is said of a side is the median of
its rounds, with the lowest and highest beside it; what is said of two sides is the ratio of their
medians. A target holds such a value against a bound.

It does not run anything, and knows no clock: `turns` gives the order in which to run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: Of the JSON document; a reader refuses others. Fields are added without a new number.
FORMAT: Final = 1

#: What one round measured, by name; times are in the unit that the name ends with.
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
    """Return the smallest value that `share` of the ascending values do not exceed (nearest
    rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def timed(operations: int, seconds: float, latencies_seconds: Sequence[float] = ()) -> Figures:
    """Return the figures of a round of `operations` that took `seconds` in all, and each its
    latency, in any order; without latencies there are no percentiles."""
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
    """The rounds of one side, warm-up not among them. Each round has the same figures."""

    rounds: tuple[Figures, ...]
    #: The way of doing the work that was kept, if there was more than one, and what the warm-up
    #: said of each of them (the higher the better).
    variant: str = ""
    tried: Mapping[str, float] = field(default_factory=dict)

    def spread(self, figure: str) -> Spread:
        """Raises KeyError if it was not measured."""
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
    #: False: at most.
    at_least: bool = True
    #: The other side; empty: the figure itself is held against the bound.
    than: str = ""

    def measured(self, sides: Mapping[str, Measurement]) -> float | None:
        """Return the value that counts; None if a side was not measured."""
        if self.side not in sides or (self.than and self.than not in sides):
            return None
        value = sides[self.side].median(self.figure)
        return ratio(value, sides[self.than].median(self.figure)) if self.than else value

    def reached(self, sides: Mapping[str, Measurement]) -> bool | None:
        """Return if the target is met; None if nothing tells."""
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
    """One thing that was measured, on one or more sides."""

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
    #: Facts of the machine and versions of what ran (`machine.py`).
    machine: Mapping[str, Any]
    #: What the run was asked for: rounds, sizes, whether it was quick or profiled.
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
        """The names of works with a target that was measured and not reached."""
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
    """Return value / other; infinite where other is zero."""
    return value / other if other else math.inf


def turns(sides: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield (round, side) in the order to run them. Round 0 warms up and does not count.

    All sides take their turn in each round, so that whatever the machine is going through meets
    them all; who begins changes, so that nobody always follows the same one.
    """
    for number in range(rounds + 1):
        shift = number % len(sides)
        for side in (*sides[shift:], *sides[:shift]):
            yield number, side
