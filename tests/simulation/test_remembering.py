"""The history of a kv survives takeovers, in a simulated cluster whose servers are killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.persist.recovery.takeover import TakeoverPlan, plan
from holdfast.persist.shared_disk import evidence
from holdfast.protocol import changes
from holdfast.protocol.frames import WireChange
from tests.simulation.killing import play_with_kills
from tests.simulation.remembering import Remembering
from tests.simulation.simulated_cluster import Simulation

SEEDS = (1, 2)


def play(seed: int) -> Simulation:
    """Write to a kv with a history while its owner is killed again and again."""

    def did_enough(remembering: Remembering) -> None:
        assert remembering.read_count > 3
        assert sum(map(len, remembering.past.values())) > 10

    return play_with_kills(seed, Remembering, did_enough)


@contextlib.contextmanager
def forget_former_values_in_a_takeover() -> Iterator[None]:
    """Of a key that was set several times in a tick's batches, only the last set is taken over."""

    def plan_of_last_sets(*arguments: Any, **options: Any) -> TakeoverPlan:
        found = plan(*arguments, **options)
        last: dict[str, WireChange] = {}
        for batch in found.batches:
            for change in batch.changes:
                if changes.number_of(change) == changes.CHANGE_SET_ENTRY:
                    last[changes.set_key(change)] = change
        kept = [
            batch._replace(
                changes=[
                    # The revision is used up; nothing is set.
                    change
                    if changes.number_of(change) != changes.CHANGE_SET_ENTRY
                    or last[changes.set_key(change)] is change
                    else [changes.CHANGE_DELETE_ENTRIES, []]
                    for change in batch.changes
                ]
            )
            for batch in found.batches
        ]
        return found._replace(batches=kept)

    with patch.object(evidence, "plan", plan_of_last_sets):
        yield


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_read_at_its_revision_after_takeovers(seed: int) -> None:
    assert play(seed).history.failures == []


def test_former_values_that_are_lost_in_a_takeover_are_found() -> None:
    with forget_former_values_in_a_takeover():
        assert any("lacks revisions" in each for each in play(SEEDS[0]).history.failures)
