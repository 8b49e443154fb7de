"""What a run says: a table, each failure by name, and whether all is as expected; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.jetstream_conformance.expected import UNSTEADY
from tests.jetstream_conformance.results import Outcome, TestResult
from tests.jetstream_conformance.suite import Suite


@dataclass(frozen=True, slots=True)
class Verdict:
    """A suite's results, sorted out."""

    suite: Suite
    #: Why tests are expected to fail, by their ids.
    expected_failures: Mapping[str, str]
    results: tuple[TestResult, ...]
    #: Only some tests were asked for.
    is_partial: bool = False
    #: What was lost, or stored twice, whatever the tests said.
    violations: Sequence[str] = ()

    @property
    def passed(self) -> list[TestResult]:
        return [each for each in self.results if each.outcome is Outcome.PASSED]

    @property
    def expected(self) -> list[TestResult]:
        """Those that failed as expected."""
        return [each for each in self._failed if each.test in self.expected_failures]

    @property
    def unexpected(self) -> list[TestResult]:
        """Those that failed, or were skipped, and should pass."""
        return [
            each
            for each in self.results
            if each.outcome is not Outcome.PASSED and each.test not in self.expected_failures
        ]

    @property
    def outdated(self) -> list[str]:
        """Expected failures that passed."""
        return [
            each.test
            for each in self.passed
            if each.test in self.expected_failures and each.test not in UNSTEADY
        ]

    @property
    def missing_count(self) -> int:
        return 0 if self.is_partial else max(0, self.suite.count - len(self.results))

    @property
    def is_short(self) -> bool:
        return self.missing_count > 0

    @property
    def is_fine(self) -> bool:
        wrong = self.unexpected or self.outdated or self.missing_count or self.violations
        return not wrong and bool(self.results)

    @property
    def _failed(self) -> list[TestResult]:
        return [each for each in self.results if each.outcome is Outcome.FAILED]


def rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """Return rows of the table: a class of tests each, then the suite."""

    def group_of(result: TestResult) -> str:
        parts = result.test.split("::")
        if len(parts) == 1:
            return ""
        return parts[1] if len(parts) > 2 else parts[0].rpartition("/")[2]

    found = [
        (group, _counts(list(members), verdict))
        for group, members in groupby(sorted(verdict.results, key=group_of), key=group_of)
    ]
    return [
        *((f"{verdict.suite.name}: {group}", *counts) for group, counts in found if group),
        (f"{verdict.suite.name} ({verdict.suite.source})", *_counts(verdict.results, verdict)),
    ]


def _counts(results: Sequence[TestResult], verdict: Verdict) -> tuple[str, ...]:
    among = Verdict(verdict.suite, verdict.expected_failures, tuple(results), is_partial=True)
    counts = (
        len(results),
        len(among.passed),
        len(among.expected),
        len(among.unexpected),
        sum(each.tries > 1 for each in among.passed),
    )
    seconds = sum(each.seconds for each in results)
    return (*(str(count) for count in counts), f"{seconds:.0f}")


COLUMNS = ("tests", "of", "passed", "failed as expected", "failed", "at a second try", "seconds")


def lines(verdict: Verdict) -> list[str]:
    """Return what is worth a line."""
    expected = verdict.expected_failures
    return [
        *(f"as expected: {each.test}: {expected[each.test]}" for each in verdict.expected),
        *(f"FAILED: {each.test}: {each.reason}" for each in verdict.unexpected),
        *(f"PASSED, but should fail ({expected[test]}): {test}" for test in verdict.outdated),
        *(f"VIOLATION: {each}" for each in verdict.violations),
        *([f"{verdict.missing_count} of {verdict.suite.count} did not run"] * verdict.is_short),
    ]
