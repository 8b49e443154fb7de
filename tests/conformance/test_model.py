"""The model of `test_convergence.py` finds what is wrong with a history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.client import Change, ChangeKind, Entry
from tests.conformance.conforming import State
from tests.conformance.model import Model, Read, Step


def good() -> Model:
    """Two keys: one set twice and deleted, one set on a condition."""
    model = Model()
    model.add(1, Step(("a", b"1")))
    model.add(3, Step(("b", b"1"), expected={"b": 0}))
    model.add(2, Step(("a", b"2"), expected={"a": 1}))
    model.add(4, Step(gone=("a", "never"), gone_count=1))
    model.reads = [Read("a", 1, (2, b"2")), Read("a", 3, None), Read("b", 4, (3, b"1"))]
    return model


def state(model: Model) -> State:
    return model.state(4)


def test_a_good_history_is_found_good() -> None:
    assert state(good()) == {"b": b"1"}


WRONG: dict[str, Callable[[Model], object]] = {
    "a write that is lost": lambda model: model.steps.pop(2),
    "two writes with one revision": lambda model: model.add(3, Step(("b", b"2"))),
    "a condition that did not hold": lambda model: model.steps.update(
        {2: Step(("a", b"2"), expected={"a": 0})}
    ),
    "a delete of what was not there": lambda model: model.steps.update(
        {4: Step(gone=("a", "never"), gone_count=2)}
    ),
    "an old value read": lambda model: model.reads.append(Read("a", 2, (1, b"1"))),
    "a deleted key read": lambda model: model.reads.append(Read("a", 4, (2, b"2"))),
    "a key missed": lambda model: model.reads.append(Read("b", 3, None)),
    "a value that nobody wrote": lambda model: model.reads.append(Read("b", 3, (3, b"9"))),
    "a follower that saw another value": lambda model: model.check(
        Change(ChangeKind.SET, 2, 0, entry=Entry("a", b"9", {}, 2, 0))
    ),
    "a follower that saw another delete": lambda model: model.check(
        Change(ChangeKind.DELETE, 4, 0, keys=("b",))
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_history_is_found(what: str) -> None:
    model = good()
    with pytest.raises(AssertionError):
        WRONG[what](model)
        state(model)
