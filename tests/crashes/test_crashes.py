"""No crash loses, doubles or brings back anything, at whatever step of what the tiers do it
comes."""

from __future__ import annotations

import secrets

import pytest

from tests.crashes.operations import OPERATIONS
from tests.crashes.planted import PLANTED
from tests.crashes.run import run
from tests.support.effort import tries

#: Chooses the points of this run, unless it is thorough and crashes at all of them.
_SEED = secrets.randbelow(1 << 16)
#: The first crash that finds it, where that is not among the first few. It is tried before all,
#: then those around it: a step more or less somewhere before it moves it.
_FOUND_BY = {
    "unlink_before_it_is_recorded": 25,
    "place_it_bit_by_bit": 34,
    "remove_before_the_tombstone": 15,
    "leave_a_half_fenced_log": 86,
}
_AROUND = 8


@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_crash_at_any_step_all_is_there_and_can_go_on(operation: str) -> None:
    print(f"seed: {_SEED}")
    result = run(operation, share=tries(0.1, 0.15, 1.0), seed=_SEED)
    assert not result.violations, str(result)
    assert result.point_count >= 25, str(result)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    planted, operation = PLANTED[bug]
    with planted():
        assert any(
            run(operation, stop_at_first=True, only=crash).violations
            for crash in (*_likely_crashes(bug), None)
        )


def _likely_crashes(bug: str) -> list[int]:
    found = _FOUND_BY.get(bug)
    if found is None:
        return []
    around = range(found - _AROUND, found + _AROUND + 1)
    return sorted(around, key=lambda crash: abs(crash - found))
