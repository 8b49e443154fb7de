"""Numbers on the command line of a process, checked by its parser: types of argparse arguments."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from holdfast.protocol.limits import MAX_INTEGER, MAX_RETENTION_SECONDS


def number(
    *, above: float | None = None, least: float = 0.0, most: float = math.inf
) -> Callable[[str], float]:
    """Return a type of finite numbers: greater than `above` or, without that, from `least` on, and
    at most `most`."""
    bound = f"a number above {above:g}" if above is not None else f"a number from {least:g} on"
    wanted = bound if most == math.inf else f"{bound}, at most {most:.0f}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        enough = value > above if above is not None else value >= least
        if not (enough and value <= most and value < math.inf):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return parse


def seconds(text: str) -> float:
    """Parse a time span of more than nothing and at most 100 years."""
    return _SECONDS(text)


def count(least: int) -> Callable[[str], int]:
    """Return a type of whole numbers from `least` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= MAX_INTEGER:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return value

    return parse


_SECONDS = number(above=0.0, most=MAX_RETENTION_SECONDS)
