"""No crash loses, doubles or brings back anything, at whatever step of what the tiers do it comes."""

from __future__ import annotations

import pytest

from crashes.operations import OPERATIONS
from crashes.planted import PLANTED
from crashes.run import run


@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_crash_at_any_step_all_is_there_and_can_go_on(operation: str) -> None:
    result = run(operation)
    assert not result.violations, str(result)
    assert result.point_count >= 25, str(result)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    planted, operation = PLANTED[bug]
    with planted():
        assert run(operation, stop_at_first=True).violations
