"""Which right each operation needs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import frames
from holdfast.protocol.access.rights import (
    ALL_RIGHTS,
    RIGHT_OF_OPERATION,
    Right,
    numbers_within,
    rights_needed,
    rights_of,
)
from holdfast.protocol.errors import InvalidArgumentError

#: What names keys in its answers is a read as well as a write.
OF_PREFIXES = {frames.DELETE_PREFIX, frames.EXPECT_PREFIX}


def test_every_operation_needs_one_right_and_a_batch_those_of_its_members() -> None:
    assert RIGHT_OF_OPERATION.keys() == frames.OPERATION_NAMES.keys() - {frames.BATCH}
    for number, right in RIGHT_OF_OPERATION.items():
        assert len(right.words) == (2 if number in OF_PREFIXES else 1)


@pytest.mark.parametrize("number", OF_PREFIXES)
def test_the_right_to_write_alone_tells_nobody_which_keys_there_are(number: int) -> None:
    assert number not in numbers_within(Right.WRITE)
    for operations in ([[number, ""]], [[frames.BATCH, [[number, ""]]]]):
        assert rights_needed(operations) == Right.READ | Right.WRITE


def test_no_operation_that_writes_needs_only_the_right_to_read() -> None:
    for number, right in RIGHT_OF_OPERATION.items():
        assert (number < frames.FIRST_READ) <= (right is not Right.READ), number


def test_the_operations_within_rights_need_no_other_and_are_not_audited() -> None:
    for right in Right:
        within = {number for number, needed in RIGHT_OF_OPERATION.items() if needed == right}
        assert numbers_within(right) == within - {frames.CONFIGURE}
    # No batch either.
    assert numbers_within(ALL_RIGHTS) == RIGHT_OF_OPERATION.keys() - {frames.CONFIGURE}


@pytest.mark.parametrize(
    ("operations", "needed"),
    [
        ([[frames.APPEND, b"x"]], Right.WRITE),
        ([[frames.HEAD], [frames.GET_MESSAGE, 1]], Right.READ),
        ([[frames.APPEND, b"x"], [frames.CONFIGURE, {}]], Right.WRITE | Right.CONFIGURE),
        ([[frames.BATCH, [[frames.APPEND, b"x"]]]], Right.WRITE),
        (
            [[frames.BATCH, [[frames.APPEND, b"x"], [frames.CONSUMER_FETCH, 1, 1]]]],
            Right.WRITE | Right.CONSUME,
        ),
        ([[frames.BATCH, []]], Right(0)),
    ],
)
def test_a_group_needs_what_its_operations_need(operations: list[list[Any]], needed: Right) -> None:
    assert rights_needed(operations) == needed


@pytest.mark.parametrize(
    "operation",
    [
        [255],
        [True],
        [None],
        ["append"],
        [frames.BATCH],
        [frames.BATCH, b"\x01"],
        [frames.BATCH, [[]]],
        [frames.BATCH, [frames.APPEND]],
        [frames.BATCH, [[frames.BATCH, [[frames.CLEAR]]]]],
        [frames.BATCH, [[frames.APPEND, b"x"], ["append"]]],
    ],
)
def test_what_is_no_operation_needs_all_rights(operation: list[Any]) -> None:
    assert rights_needed([operation]) == ALL_RIGHTS


def test_rights_are_named_by_their_words() -> None:
    assert rights_of(["write", "read", "read"]).words == ("read", "write")
    assert rights_of(["all"]) == ALL_RIGHTS
    for words in ([], ["reed"], ["READ"], [""]):
        with pytest.raises(InvalidArgumentError):
            rights_of(words)
