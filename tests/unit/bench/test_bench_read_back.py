"""A benchmark notices when what it reads is not what it stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from holdfast.bench.read_back import Checker, ReadBackRow, WrongReadBackError

CHECKER = Checker("holdfast", "append_64")
STORED = {3: b"c", 4: b"d", 5: b"e"}
ROWS = [ReadBackRow(3, b"c"), ReadBackRow(4, b"d"), ReadBackRow(5, b"e")]


def test_what_was_stored_is_accepted() -> None:
    CHECKER.messages(STORED, ROWS)
    CHECKER.entries({"k": b"v"}, {"k": b"v"})
    CHECKER.count("the stream", 3, 3)
    CHECKER.unique([1, 2, 3])


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (ROWS[:2], "holds 2 where 3"),
        ([*ROWS, ReadBackRow(6, b"f")], "holds 4 where 3"),
        ([ROWS[0], ReadBackRow(4, b"x"), ROWS[2]], "seq 4 is b'x', not b'd'"),
        ([ROWS[0], ROWS[1], ReadBackRow(7, b"e")], "seq 7 was never"),
        ([ROWS[0], ROWS[2], ROWS[1]], "seq 4 came after seq 5"),
        ([ROWS[0], ROWS[0], ROWS[2]], "seq 3 came after seq 3"),
    ],
)
def test_other_messages_are_refused(rows: Sequence[ReadBackRow], reason: str) -> None:
    with pytest.raises(WrongReadBackError, match=reason) as raised:
        CHECKER.messages(STORED, rows)
    assert (raised.value.side, raised.value.work) == ("holdfast", "append_64")


@pytest.mark.parametrize("found", [{}, {"k": b"w"}, {"k": b"v", "l": b"v"}, {"l": b"v"}])
def test_other_entries_are_refused(found: Mapping[str, bytes]) -> None:
    with pytest.raises(WrongReadBackError):
        CHECKER.entries({"k": b"v"}, found)


def test_a_seq_that_was_given_to_two_messages_is_refused() -> None:
    with pytest.raises(WrongReadBackError, match="acknowledged twice"):
        CHECKER.unique([1, 2, 2])
