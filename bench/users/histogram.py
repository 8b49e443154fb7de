"""A histogram for millions of latencies from several processes, with classes that grow by a fixed
ratio. Pure.

A quantile is at most 1 % above the true one, and a class is one integer. Unlike quantiles, the
histograms of several processes can be added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

#: The end of a class divided by the end of the class before.
_RATIO: Final = 1.01
_SCALE: Final = 1 / math.log(_RATIO)
#: The end of class 0, which also counts durations that are negative because of the clock's
#: resolution.
_FIRST_SECONDS: Final = 1e-6


class Histogram:
    """Durations in seconds."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts = Counter(counts or {})

    @property
    def count(self) -> int:
        return self._counts.total()

    def add(self, seconds: float) -> None:
        if seconds <= _FIRST_SECONDS:
            self._counts[0] += 1
        else:
            self._counts[math.ceil(math.log(seconds / _FIRST_SECONDS) * _SCALE)] += 1

    def merge(self, other: Histogram) -> None:
        self._counts.update(other._counts)

    def quantile_seconds(self, share: float) -> float:
        """Return a duration that at least `share` of all do not exceed; 0 if there are none."""
        wanted = max(1, math.ceil(share * self.count))
        passed = 0
        for number in sorted(self._counts):
            passed += self._counts[number]
            if passed >= wanted:
                return _FIRST_SECONDS * _RATIO**number
        return 0.0

    def figures(self, name: str) -> dict[str, float]:
        """Return its figures: `<name>_p50_ms` and so on."""
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
        return {
            f"{name}_{word}_ms": self.quantile_seconds(share) * 1000
            for word, share in shares.items()
        }

    def to_json(self) -> list[tuple[int, int]]:
        return sorted(self._counts.items())

    @classmethod
    def from_json(cls, classes: Iterable[tuple[int, int]]) -> Histogram:
        return cls(dict(classes))
