"""The model of `test_convergence.py` finds what is wrong with a history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.client import Change, ChangeKind, Entry
from tests.conformance.conforming import State
from tests.conformance.model import LastRead, Model, Read, Step


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


def good_subjects() -> Model:
    """Two subjects, at most two messages of each: one rolled up, one limited, one purged."""
    model = Model(max_per_subject=2)
    for seq, subject in enumerate(["a.x", "a.y", "a.x", "a.y", "a.y"], start=1):
        model.add(seq, Step((seq, b"%d" % seq), subject=subject))
    model.add(7, Step((6, b"6"), subject="a.x", rolls_up=True, expected_last=("a.x", 3)))
    model.learn([Change(ChangeKind.DELETE, 6, 0, seqs=(2,))])
    model.learn([Change(ChangeKind.DELETE, 8, 0, seqs=(1, 3))])
    model.add(9, Step((4, b"four")))
    model.add(10, Step(purged=("*.y", None, 1), gone_count=1))
    model.last_reads = [
        LastRead("a.>", 1, (2, b"2")),
        LastRead("a.x", 7, (6, b"6")),
        LastRead("a", 9, None),
    ]
    return model


def test_a_good_history_of_subjects_is_found_good() -> None:
    assert good_subjects().state(10) == {5: b"5", 6: b"6"}


def changed(number: int, **fields: object) -> Callable[[Model], object]:
    """Return what changes one step."""
    return lambda model: model.steps.update(
        {number: model.steps[number]._replace(**fields)}  # type: ignore[arg-type]
    )


WRONG_SUBJECTS: dict[str, Callable[[Model], object]] = {
    "an expectation of a subject that did not hold": changed(7, expected_last=("a.*", 3)),
    "a roll-up that removes another subject": changed(8, gone=(1, 3, 4)),
    "a roll-up that leaves something": changed(8, gone=(1,)),
    "a limit that removes the newest": changed(6, gone=(5,)),
    "a limit that is not kept": changed(6, gone=()),
    "a removal for no reason": changed(9, value=None, gone=(6,), by_itself=True),
    "a purge that counts wrong": changed(10, gone_count=2),
    "a purge of another subject": changed(10, purged=("a.x", None, 1)),
    "an old last message read": lambda model: model.last_reads.append(
        LastRead("a.x", 7, (3, b"3"))
    ),
    "a last message missed": lambda model: model.last_reads.append(LastRead("a.y", 5, None)),
}


@pytest.mark.parametrize("what", WRONG_SUBJECTS)
def test_a_wrong_history_of_subjects_is_found(what: str) -> None:
    model = good_subjects()
    with pytest.raises(AssertionError):
        WRONG_SUBJECTS[what](model)
        model.state(10)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_history_is_found(what: str) -> None:
    model = good()
    with pytest.raises(AssertionError):
        WRONG[what](model)
        state(model)
