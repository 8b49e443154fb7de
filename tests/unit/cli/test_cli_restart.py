"""When parts are started again, and when not."""

from __future__ import annotations

import pytest

from holdfast.cli.cluster.restart import (
    FIRST_DELAY_SECONDS,
    MAX_DELAY_SECONDS,
    RAN_SECONDS,
    RestartPolicy,
    RestartVerdict,
)


def test_a_part_that_ran_and_was_killed_comes_back_at_once() -> None:
    decision = RestartPolicy().ended(-9, RAN_SECONDS)
    assert decision.verdict is RestartVerdict.RESTART
    assert decision.delay_seconds == FIRST_DELAY_SECONDS


def test_a_part_that_dies_quickly_again_and_again_comes_back_more_and_more_slowly() -> None:
    policy = RestartPolicy()
    delays = [policy.ended(-9, 0.1).delay_seconds for _ in range(40)]
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_SECONDS


def test_the_delay_starts_over_once_the_part_ran() -> None:
    policy = RestartPolicy()
    for _ in range(10):
        policy.ended(-9, 0.1)
    policy.ended(-9, RAN_SECONDS)
    assert policy.ended(-9, 0.1).delay_seconds == FIRST_DELAY_SECONDS


def test_wrong_usage_is_not_tried_again() -> None:
    assert RestartPolicy().ended(2, 0.3).verdict is RestartVerdict.GIVE_UP


def verdicts_on(policy: RestartPolicy, *codes: int) -> list[RestartVerdict]:
    """Return what becomes of a part that ends with these codes, each soon after its start."""
    return [policy.ended(code, 0.3).verdict for code in codes]


def test_three_failed_starts_in_a_row_are_the_end() -> None:
    verdicts = verdicts_on(RestartPolicy(), 1, 1, 1)
    assert verdicts == [RestartVerdict.RESTART, RestartVerdict.RESTART, RestartVerdict.GIVE_UP]


def test_a_kill_between_failed_starts_starts_the_count_over() -> None:
    assert RestartVerdict.GIVE_UP not in verdicts_on(RestartPolicy(), 1, 1, -9, 1, 1)


def test_a_part_that_once_ran_is_never_given_up() -> None:
    policy = RestartPolicy()
    policy.ended(1, RAN_SECONDS)
    assert set(verdicts_on(policy, 1, 1, 1, 1, 2, 1)) == {RestartVerdict.RESTART}


def test_a_part_that_the_cluster_found_at_work_is_never_given_up() -> None:
    policy = RestartPolicy()
    policy.works()
    assert set(verdicts_on(policy, 1, 1, 1, 1, 2, 1)) == {RestartVerdict.RESTART}
