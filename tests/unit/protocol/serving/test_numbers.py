"""Numbers on the command line of a process."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from holdfast.protocol.serving.numbers import count, number, seconds


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((seconds, text) for text in ("nan", "inf", "-inf", "0", "-1", "1e300", "ten", "")),
        *((number(), text) for text in ("nan", "inf", "-0.1", "x")),
        *((number(above=1.0), text) for text in ("1", "nan", "inf")),
        *((count(1), text) for text in ("0", "-5", "1.5", "nan", str(2**63), "")),
    ],
)
def test_what_is_no_number_within_bounds_is_refused(
    parse: Callable[[str], float], text: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        parse(text)
    assert repr(text) in str(refused.value)


def test_numbers_within_bounds_are_taken() -> None:
    assert seconds("0.5") == 0.5
    assert number()("0") == 0.0
    assert number(above=1.0)("1.2") == 1.2
    assert count(4)("4") == 4
