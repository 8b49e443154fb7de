"""How hard the tests try: `make test`, a quick `make test FAST=1`, or `make test THOROUGH=1`.

What is shown is the same for each. They differ in how many examples, seeds and crash points show
it."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

_EFFORTS: Final = ("fast", "usual", "thorough")
EFFORT: Final = os.environ.get("HOLDFAST_EFFORT") or "usual"
if EFFORT not in _EFFORTS:
    raise ValueError(f"HOLDFAST_EFFORT is one of {_EFFORTS}, not {EFFORT!r}")


def tries(fast: T, usual: T, thorough: T) -> T:
    """Return what fits the effort of this run."""
    return (fast, usual, thorough)[_EFFORTS.index(EFFORT)]


def examples(thorough: int) -> int:
    """Return how many of a thorough run's Hypothesis examples this run tries."""
    return max(tries(thorough // 10, thorough // 8, thorough), 5)
