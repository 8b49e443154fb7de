"""A run is fine only if every test ended as expected, and none is missing."""

from __future__ import annotations

from collections.abc import Sequence

from tests.jetstream_conformance.report import Verdict, lines, rows
from tests.jetstream_conformance.results import Outcome, TestResult
from tests.jetstream_conformance.suite import Suite, Surroundings

PASSED, FAILED, SKIPPED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED


class ThreeTests(Suite):
    name = "three"
    source = "checkout"
    count = 3

    async def attempt(
        self, around: Surroundings, tests: Sequence[str], only: str, number: int
    ) -> list[TestResult]:
        return []


def verdict(*outcomes: Outcome, expected: dict[str, str] | None = None) -> Verdict:
    results = tuple(
        TestResult(f"t.py::{'abc'[index]}", outcome, 1.0, "because")
        for index, outcome in enumerate(outcomes)
    )
    return Verdict(ThreeTests(), expected or {}, results)


def test_all_that_passed_is_fine() -> None:
    found = verdict(PASSED, PASSED, PASSED)
    assert found.is_fine
    assert lines(found) == []
    assert rows(found)[-1] == ("three (checkout)", "3", "3", "0", "0", "0", "3")


def test_a_failure_is_fine_only_if_it_is_expected() -> None:
    assert not verdict(PASSED, PASSED, FAILED).is_fine
    found = verdict(PASSED, PASSED, FAILED, expected={"t.py::c": "no mirrors"})
    assert found.is_fine
    assert lines(found) == ["as expected: t.py::c: no mirrors"]


def test_an_expected_failure_that_passes_is_wrong() -> None:
    found = verdict(PASSED, PASSED, PASSED, expected={"t.py::c": "no mirrors"})
    assert not found.is_fine
    assert lines(found) == ["PASSED, but should fail (no mirrors): t.py::c"]


def test_a_skipped_or_missing_test_is_wrong() -> None:
    assert lines(verdict(PASSED, PASSED, SKIPPED)) == ["FAILED: t.py::c: because"]
    found = verdict(PASSED, PASSED)
    assert not found.is_fine
    assert lines(found) == ["1 of 3 did not run"]


def test_what_is_lost_is_wrong_whatever_the_tests_say() -> None:
    found = Verdict(ThreeTests(), {}, verdict(PASSED, PASSED, PASSED).results, False, ("lost",))
    assert not found.is_fine
    assert lines(found) == ["VIOLATION: lost"]
