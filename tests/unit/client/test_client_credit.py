"""The window of a client: what lets it grow, and what makes it smaller."""

from __future__ import annotations

from holdfast.client.wire.credit import LATE_RATIO, Credit
from holdfast.protocol.limits import FIRST_WAITING_OPERATIONS, MAX_WAITING_OPERATIONS

TIMEOUT_SECONDS = 10.0
LATE_SECONDS = 2 * LATE_RATIO * TIMEOUT_SECONDS


def test_answers_in_time_let_it_grow_to_its_limit_stored_ones_too() -> None:
    for stored in (False, True):
        credit = Credit()
        credit.answered(1000, 0.3, TIMEOUT_SECONDS, 1.0, stored=stored)
        assert credit.window == FIRST_WAITING_OPERATIONS + 1000
        credit.answered(MAX_WAITING_OPERATIONS, 0.3, TIMEOUT_SECONDS, 1.0, stored=stored)
        assert credit.window == MAX_WAITING_OPERATIONS


def test_late_answers_make_it_smaller_but_not_those_that_waited_for_the_bucket() -> None:
    credit = Credit()
    credit.answered(1, LATE_SECONDS, TIMEOUT_SECONDS, 1.0, stored=True)
    assert credit.window == FIRST_WAITING_OPERATIONS
    credit.answered(1, LATE_SECONDS, TIMEOUT_SECONDS, 1.0)
    assert credit.window == FIRST_WAITING_OPERATIONS * 3 // 4
