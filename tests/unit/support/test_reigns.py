"""The judge of streams that gateways serve: what it lets pass, and what it finds."""

from __future__ import annotations

from typing import Any

from tests.support.checking.history import Outcome
from tests.support.checking.reigns import Reign, Step, check_reigns

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN


def append(answer: Any, subject: str, value: str, outcome: Outcome = OK, **more: Any) -> Step:
    arguments = {"subject": subject, "value": value.encode(), **more}
    return Step("append", arguments, outcome, answer)


def cursor(rows: dict[int, bytes], removed: tuple[int, ...] = (), outcome: Outcome = OK) -> Step:
    arguments = {"name": "c", "state": b"s", "rows": rows, "removed": list(removed)}
    return Step("cursor", arguments, outcome)


def cursors(rows: dict[int, bytes]) -> Step:
    return Step("all_cursors", {}, OK, {"c": (b"", b"s", rows)})


def read(found: dict[int, tuple[str, bytes]], *filters: str) -> Step:
    return Step("read", {"filters": list(filters)}, OK, found)


#: Shows that the reads before it count.
PROOF = Step("delete", {"seqs": [999]}, OK, 0)


def judge(*reigns: list[Step]) -> list[str]:
    return list(
        check_reigns(Reign(epoch, f"g{epoch}", steps) for epoch, steps in enumerate(reigns, 1))
    )


def test_what_is_as_it_should_be_passes() -> None:
    one = [
        append(1, "a", "x"),
        append(2, "b", "y"),
        append("wrong_last_seq", "a", "z", REFUSED, expected=2),
        append(3, "a", "z", expected=1, rollup="sub"),
        read({2: ("b", b"y"), 3: ("a", b"z")}),
        Step("lasts", {"filters": [">"]}, OK, [2, 3]),
        Step("subjects", {"filter_": "*"}, OK, [("a", 1, 3, 3), ("b", 1, 2, 2)]),
        Step("count", {"filters": ["b"], "start_seq": 2}, OK, 1),
        cursor({1: b"r", 2: b"q"}, (2,)),
        Step("purge", {"filter_": "b", "before_seq": None, "keep": None}, OK, 1),
    ]
    two = [cursors({1: b"r"}), read({3: ("a", b"z")}, "a"), PROOF]
    assert judge(one, two) == []


def test_a_step_without_an_answer_may_have_happened_or_not() -> None:
    one = [append(1, "a", "x"), append(None, "a", "y", UNKNOWN)]
    there = [read({1: ("a", b"x"), 2: ("a", b"y")}), append(3, "a", "z")]
    not_there = [read({1: ("a", b"x")}), append(2, "a", "z")]
    assert judge(one, there) == judge(one, not_there) == []
    both = [read({1: ("a", b"x")}), append(3, "a", "z")]
    assert len(judge(one, both)) == 1


def test_a_row_of_a_cursor_that_was_lost_is_found() -> None:
    [what] = judge([cursor({1: b"r"})], [cursors({}), PROOF])
    assert "all_cursors" in what
    assert judge([cursor({1: b"r"}, outcome=UNKNOWN)], [cursors({1: b"r"}), PROOF]) == []


def test_a_read_that_nothing_proves_says_nothing() -> None:
    assert judge([append(1, "a", "x"), read({})]) == []
    assert judge([append(1, "a", "x"), read({}), PROOF]) != []


def test_a_write_of_a_gateway_that_was_replaced_is_found() -> None:
    late = append(2, "a", "late")
    assert judge([append(1, "a", "x")], [append(2, "a", "y"), PROOF]) == []
    assert judge([append(1, "a", "x"), late], [append(2, "a", "y"), PROOF]) != []


def test_two_gateways_of_one_epoch_are_found() -> None:
    assert len(list(check_reigns([Reign(1, "g1"), Reign(1, "g2")]))) == 1


def test_an_expectation_that_should_have_been_refused_is_found() -> None:
    [what] = judge([append(1, "a", "x"), append(2, "a", "y", expected=0)])
    assert "a refusal" in what
    [what] = judge([append("wrong_last_seq", "a", "x", REFUSED, expected=0)])
    assert "append" in what
