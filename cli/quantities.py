"""Amounts on the command line, such as `1.5`, `30d`, `1000/s` and `10MB`: types of options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import click

_SECONDS: Final = {"S": 1, "M": 60, "H": 3600, "D": 86_400, "W": 7 * 86_400}
_BYTES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([A-Za-z]*)")
_A_SECOND: Final = "/s"


class NumberRange(click.FloatRange):
    """A finite number within bounds. Click's own type takes `nan`, which no bound excludes."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def parse_seconds(text: str) -> int:
    """Parse a time span: a number and one of the units s, m, h, d and w."""
    return _parse(text, _SECONDS, "a time span such as 90s, 12h or 30d")


def parse_bytes(text: str) -> int:
    """Parse a size: without a unit, bytes."""
    return _parse(text, _BYTES, "a size such as 512KiB or 10MB")


def parse_byte_rate(text: str) -> int:
    """Parse bytes a second; `/s` may be left out."""
    return _parse(text.removesuffix(_A_SECOND), _BYTES, "a rate such as 10MB/s")


def parse_rate(text: str) -> int:
    """Parse a number a second; `/s` may be left out."""
    return _parse(text.removesuffix(_A_SECOND), {"": 1}, "a rate such as 1000/s")


def _parse(text: str, units: Mapping[str, int], expected: str) -> int:
    found = _AMOUNT.fullmatch(text)
    amount = int(float(found[1]) * units.get(found[2].upper(), 0)) if found else 0
    if amount < 1:
        raise click.BadParameter(f"{text!r} is not {expected}")
    return amount
