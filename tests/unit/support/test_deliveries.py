"""The checker finds each kind of wrong delivery of a work queue, and nothing in right ones."""

from __future__ import annotations

import pytest

from tests.support.checking.deliveries import check_deliveries
from tests.support.checking.history import Delivery, History


def judged(*deliveries: Delivery) -> list[str]:
    history = History()
    history.ack_wait_seconds, history.clock_skew_seconds = 5.0, 1.0
    history.deliveries += deliveries
    return list(check_deliveries(history))


def test_deliveries_that_are_due_again_are_right() -> None:
    first = Delivery("v", 1, 1, asked=1, held_from=0.0, received_at=0.1)
    handed_back = Delivery("w", 1, 2, asked=2, held_from=4.5, received_at=4.6, released=True)
    last = Delivery("v", 1, 3, asked=3, held_from=4.7, received_at=4.8, done=4, counted=1)
    assert judged(first, handed_back, last) == []


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (Delivery("w", 1, 1, asked=2, held_from=9.0, received_at=9.0), "delivery 1 is that of"),
        (Delivery("w", 1, 2, asked=2, held_from=3.0, received_at=3.0), "3.000 s after"),
        (Delivery("w", 1, 2, asked=4, held_from=9.0, received_at=9.0), "done with"),
        (Delivery("w", 1, 2, 2, 9.0, 9.0, counted=1), "two acks"),
    ],
)
def test_deliveries_that_must_not_be_are_found(other: Delivery, word: str) -> None:
    first = Delivery("v", 1, 1, asked=1, held_from=0.0, received_at=0.1, done=3, counted=1)
    assert any(word in what for what in judged(first, other))
