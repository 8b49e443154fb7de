"""The chain of a stream survives takeovers, in a simulated cluster whose servers are killed."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.persist.recovery.takeover import TakeoverPlan, plan
from holdfast.persist.shared_disk import evidence
from holdfast.persist.store.accepting import message_changes
from holdfast.protocol import changes
from holdfast.protocol.chain.hashing import after_values
from holdfast.protocol.frames import WireChange
from holdfast.shared_fs.store_file.chain.chain_rows import ChainRows
from tests.simulation.chaining import Chaining
from tests.simulation.killing import play_with_kills
from tests.simulation.simulated_cluster import Simulation

SEEDS = (1, 2)


def play(seed: int) -> Simulation:
    """Write to a stream with a chain while its owner is killed again and again."""

    def did_enough(chaining: Chaining) -> None:
        assert len(chaining.acks) > 20
        assert chaining.kv_acks

    return play_with_kills(seed, Chaining, did_enough)


@contextlib.contextmanager
def changed_in_a_takeover(number: int, *, silent: bool) -> Iterator[None]:
    """A takeover takes over another value than was acknowledged; a `silent` one does not compare
    its chain with that of the last owner either."""

    def forged(change: WireChange) -> WireChange:
        if changes.number_of(change) != number:
            return change
        return [*change[:2], b"forged", *change[3:]]

    def plan_of_others(*arguments: Any, **options: Any) -> TakeoverPlan:
        found = plan(*arguments, **options)
        batches = [
            batch._replace(
                changes=[forged(change) for change in batch.changes],
                chain=None if silent else batch.chain,
            )
            for batch in found.batches
        ]
        return found._replace(batches=batches)

    with patch.object(evidence, "plan", plan_of_others):
        yield


@contextlib.contextmanager
def wrong_in_memory() -> Iterator[None]:
    """An owner that appends several messages at once computes another chain than theirs."""

    def wrong(chain: bytes, *arguments: Any) -> list[bytes]:
        found = after_values(chain, *arguments)
        return [*found[:-1], hashlib.sha256(found[-1]).digest()]

    with patch.object(message_changes, "after_values", wrong):
        yield


def test_an_owner_whose_memory_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with wrong_in_memory():
        failures = play(SEEDS[0]).history.failures
    # By its own file, which computes some of the chains again, or by the next owner.
    assert any("its owner had the chain" in failure for failure in failures), failures
    # And without either, by those who kept acks.
    monkeypatch.setattr(ChainRows, "compare", lambda *_: None)
    with wrong_in_memory():
        failures = play(SEEDS[0]).history.failures
    assert any("the chain differs" in failure for failure in failures), failures


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_in_the_chain_after_takeovers(seed: int) -> None:
    assert play(seed).history.failures == []


@pytest.mark.parametrize("number", [changes.CHANGE_SET_MESSAGE, changes.CHANGE_SET_ENTRY])
@pytest.mark.parametrize("silent", [True, False])
def test_a_takeover_that_changes_a_value_is_found(silent: bool, number: int) -> None:
    with changed_in_a_takeover(number, silent=silent):
        failures = play(SEEDS[0]).history.failures
    word = "the chain differs" if silent else "its owner had the chain"
    assert any(word in failure for failure in failures), failures
