"""How tests ended, as the runners of all languages report it: in the XML of JUnit; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

_REASON_CHARACTERS: Final = 200


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class TestResult:
    """How a test ended; `reason` says why it did not pass."""

    test: str
    outcome: Outcome
    seconds: float
    reason: str = ""
    tries: int = 1

    __test__ = False


class SuiteFailedError(Exception):
    """The runner of a suite ended without a report."""


def read_junit(
    report: Path, tries: int, id_of: Callable[[ElementTree.Element], str]
) -> list[TestResult]:
    """Return the results in a report. Raises SuiteFailedError if there is none."""
    try:
        root = ElementTree.parse(report)
    except (OSError, ElementTree.ParseError) as error:
        raise SuiteFailedError(f"there is no report of the tests: {error}") from error
    return [_result(case, id_of(case), tries) for case in root.iter("testcase")]


def _result(case: ElementTree.Element, test: str, tries: int) -> TestResult:
    outcome, reason = Outcome.PASSED, ""
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            outcome = Outcome.SKIPPED if child.tag == "skipped" else Outcome.FAILED
            text = child.get("message") or child.text or ""
            reason = " ".join(text.split())[:_REASON_CHARACTERS]
    return TestResult(test, outcome, float(case.get("time") or 0), reason, tries)
