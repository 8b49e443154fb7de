"""The checker finds whatever was done that no token allowed, and nothing else."""

from __future__ import annotations

import pytest

from holdfast.protocol.access.rights import NO_RIGHTS, Right
from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreKind
from tests.support.checking.checker import check
from tests.support.checking.grants import Admission, KnownToken
from tests.support.checking.history import (
    ChangeOf,
    Final,
    Following,
    History,
    Operation,
    Outcome,
    Store,
    What,
)

_STORE: Store = (int(StoreKind.STREAM), "s")
_SUBJECT = "hf.acme.srv.a.t1"


@pytest.fixture
def history() -> History:
    """A run in which `c` has a token and has appended one message."""
    made = History()
    made.epoch_seconds = 1000.0
    made.rights["c"] = Right.READ | Right.WRITE
    made.tokens["t1"] = KnownToken("c", None)
    append = _call(made, "append", values=(b"v",))
    append.revisions = append.seqs = (1,)
    made.final[_STORE] = Final(1, 1, {1: (b"v", 1)})
    return made


def _call(
    history: History,
    action: str,
    outcome: Outcome = Outcome.OK,
    *,
    client: str = "c",
    values: tuple[bytes, ...] = (),
) -> Operation:
    operation = history.invoke(client, _STORE, action, values=values)
    operation.token = operation.token_at_return = "t1"
    history.complete(operation, outcome)
    return operation


def _admit(history: History, at: float, token: str = "t1") -> None:
    history.admissions.append(Admission("a", _SUBJECT, token, at))


def test_what_tokens_allow_is_right(history: History) -> None:
    history.tokens["t1"] = KnownToken("c", expires_at=1020, revoked_at=10.0)
    _admit(history, 14.9)
    assert check(history) == []


def test_an_answer_without_the_right_is_found(history: History) -> None:
    _call(history, "head").head_revision = 1
    history.rights["c"] = Right.WRITE
    assert any("without the right to read" in what for what in check(history))
    history.rights["c"] = Right.READ
    assert any("without the right to write" in what for what in check(history))


def test_what_somebody_stored_who_may_not_write_is_found(history: History) -> None:
    history.rights["reader"] = Right.READ
    _call(history, "append", Outcome.UNKNOWN, client="reader", values=(b"w",))
    history.final[_STORE] = Final(2, 2, {1: (b"v", 1), 2: (b"w", 2)})
    assert any("refused and stored" in what for what in check(history))


def test_a_follower_who_may_not_read_is_found(history: History) -> None:
    history.rights["writer"] = Right.WRITE
    following = Following("f", _STORE, start_seq=1, client="writer")
    following.changes = [(ChangeKind.SET, 1, ChangeOf(What.SET, (1,), b"v"))]
    history.followings.append(following)
    assert any("was told, and may not read" in what for what in check(history))


def test_an_admission_after_a_revocation_is_found(history: History) -> None:
    history.tokens["t1"].revoked_at = 10.0
    _admit(history, 15.1)
    assert any("its token was revoked at 10.00 s" in what for what in check(history))


@pytest.mark.parametrize(("behind_seconds", "found"), [(0.0, True), (3.0, False)])
def test_an_admission_after_a_token_expired_is_found(
    history: History, behind_seconds: float, found: bool
) -> None:
    history.tokens["t1"] = KnownToken("c", expires_at=1020)
    history.clocks_behind_seconds = behind_seconds
    _admit(history, 22.0)
    assert any("after its token expired" in what for what in check(history)) is found


def test_an_admission_with_a_token_of_nobody_or_of_no_use_is_found(history: History) -> None:
    _admit(history, 1.0, "t2")
    assert any("nobody was given such a token" in what for what in check(history))
    history.rights["c"] = NO_RIGHTS
    _admit(history, 1.0)
    assert any("worth nothing" in what for what in check(history))


def test_what_was_asked_too_late_and_answered_is_found(history: History) -> None:
    history.tokens["t1"].dead_from = history.position()
    late = _call(history, "head")
    late.head_revision = 1
    assert any("after its token was revoked" in what for what in check(history))
    late.token_at_return = "t2"
    assert check(history) == []
