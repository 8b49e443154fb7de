"""Which files of a table a query may leave out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.limits import MIB
from holdfast.spark.tables.scan import (
    OPERATORS,
    RowCondition,
    ScannedFile,
    ValueRange,
    in_tasks,
    may_match,
)

_MEETS = {
    "=": lambda found, value: found == value,
    "<": lambda found, value: found < value,
    "<=": lambda found, value: found <= value,
    ">": lambda found, value: found > value,
    ">=": lambda found, value: found >= value,
    "in": lambda found, value: found in value,
    "prefix": lambda found, value: found.startswith(value),
}


def test_every_operator_is_tried() -> None:
    assert set(_MEETS) == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
@given(st.data())
def test_a_file_with_a_row_that_is_wanted_is_never_left_out(operator: str, data: Any) -> None:
    words = st.text("ab\u00e9\U0001f600", max_size=3)
    rows = data.draw(st.lists(words, min_size=1))
    value = data.draw(st.lists(words) if operator == "in" else words)
    bounds = {"store": ValueRange(min(rows), max(rows))}
    if any(_MEETS[operator](row, value) for row in rows):
        assert may_match(bounds, [RowCondition("store", operator, value)])


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("=", "c", True),
        ("=", "z", False),
        ("in", ["a", "z"], False),
        ("in", ["a", "d"], True),
        ("in", [], False),
        ("<", "b", False),
        ("<=", "b", True),
        (">", "e", False),
        (">=", "e", True),
        ("prefix", "bb", True),
        ("prefix", "a", False),
        ("prefix", "ee", False),
        # Spark converts what it compares; nothing can be said of another type.
        ("=", 7, True),
    ],
)
def test_bounds_exclude_what_is_outside_of_them(operator: str, value: Any, expected: bool) -> None:
    bounds = {"store": ValueRange("b", "e")}
    assert may_match(bounds, [RowCondition("store", operator, value)]) is expected
    assert may_match({}, [RowCondition("store", operator, value)]), "nothing is known of the column"
    assert may_match(bounds, [RowCondition("key", operator, value)])


def test_many_small_files_share_a_task_and_each_is_read_once() -> None:
    small = [ScannedFile(f"{number:04d}", 3000) for number in range(2000)]
    large = ScannedFile("large", 256 * MIB)
    tasks = in_tasks([large, *small])
    assert 40 < len(tasks) < 80
    assert sorted(path for task in tasks for path in task) == sorted(
        file.path for file in (large, *small)
    )
    assert ["large"] in tasks
    assert in_tasks([]) == []
