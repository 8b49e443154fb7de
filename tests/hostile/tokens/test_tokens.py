"""What the holders' attack is made of: kinds of tokens, attempts, marks, and the verdict."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.protocol.access.rights import RIGHT_OF_WORD, Right
from holdfast.protocol.errors import InvalidTokenError
from holdfast.shared_fs.access.registry import verified
from tests.hostile.tokens.access import Access
from tests.hostile.tokens.attempts import Attempts
from tests.hostile.tokens.holders import REVOKED, Holder
from tests.hostile.tokens.intruders import Report, Tally, changed
from tests.hostile.tokens.judging import judge
from tests.hostile.tokens.office import OFFICE, Mark, Marks
from tests.support.raw_nats import published

READER = Holder("read", "text", "r" * 32, rights=int(Right.READ), logs_in=True)
OTHERS, TENANTS = ["a" * 32, "b" * 32], ["victim", "evil"]


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Access:
    return Access(tmp_path_factory.mktemp("access"), ("victim", "evil"))


def test_there_is_a_holder_of_each_right_and_of_each_kind_of_no_token(access: Access) -> None:
    issuers = access._registry.issuers()
    rights = {each.rights for each in access.holders if each.logs_in and each.tenant == OFFICE}
    assert rights == {int(right) for right in RIGHT_OF_WORD.values()} | {0}
    for holder in access.holders:
        if holder.logs_in or holder.name == "expired":
            assert verified(holder.text, issuers).id == holder.id
        elif holder.name != "replayed":
            with pytest.raises(InvalidTokenError):
                verified(holder.text, issuers)
    [replayed] = [each for each in access.holders if each.name == "replayed"]
    owner = verified(access.text(OFFICE), issuers)
    assert verified(replayed.text, issuers).id == owner.id
    assert verified(replayed.text, issuers) != owner


def test_a_changed_token_is_no_token(access: Access) -> None:
    rng = random.Random(1)
    issuers = access._registry.issuers()
    for _ in range(300):
        with pytest.raises(InvalidTokenError):
            verified(changed(access.text(OFFICE), rng), issuers)


def test_a_holder_tries_its_own_and_everything_else() -> None:
    rng = random.Random(3)
    attempts = Attempts(READER, OTHERS, TENANTS, rng, behind_nats=False)
    volleys = [attempts.volley() for _ in range(60)]
    data = b"".join(volley.data for volley in volleys)
    sent = [message.subject.decode() for message in published(data)]
    for start in (
        *("hf.office.srv.s1.", "hf.office.coord.stores.", "hf.office.destroy.s2.", "hf.victim."),
        *("hf._.coord.", "hf._.hb", "hf._.ctl.s", "hf._.ops.s", "hf._.own.s", "hf.evil."),
        *("hf.office.chg.s.private", "_INBOX.office.", "hf.elsewhere."),
    ):
        assert any(subject.startswith(start) for subject in sent), start
    assert any(subject.endswith(READER.id) for subject in sent)
    assert any(subject.endswith(OTHERS[1]) for subject in sent)
    assert b"SUB " in data
    assert f"SUB _INBOX.office.{OTHERS[0]}.> ".encode() in attempts.listening().data
    count = sum(volley.operations for volley in volleys)
    assert 0 < attempts.take_foreign_count() < count


def test_behind_nats_nobody_uses_anothers_token() -> None:
    attempts = Attempts(READER, OTHERS, TENANTS, random.Random(4), behind_nats=True)
    for _ in range(40):
        for message in published(attempts.volley().data):
            subject = message.subject.decode()
            assert subject.startswith("hf.") and not subject.startswith("hf._.")
            assert not any(other[:16] in subject for other in OTHERS)


def test_marks_are_found_and_belong_to_who_may_see_them() -> None:
    marks = Marks("5ec7e7")
    data = f"x{marks.value('read')}y{marks.name('list')}z{marks.setting('read')}".encode()
    assert marks.found(data) == [
        Mark("value", "read"),
        Mark("name", "list"),
        Mark("setting", "read"),
    ]
    assert marks.found(Marks("other").value("read").encode()) == []
    assert READER.may_see(Mark("value", "read")) and READER.may_see(Mark("name", "read"))
    assert not READER.may_see(Mark("value", "private")) and not READER.may_change
    lister = Holder("list", "", "", rights=int(Right.LIST), logs_in=True)
    assert lister.may_see(Mark("name", "list")) and not lister.may_see(Mark("value", "list"))
    configurer = Holder("configure", "", "", rights=int(Right.CONFIGURE), logs_in=True)
    assert configurer.may_see(Mark("setting", "configure")) and configurer.may_change
    observer = Holder("observer", "", "", tenant="*", rights=int(Right.LIST), logs_in=True)
    assert observer.may_see(Mark("name", "private")) and not observer.may_see(Mark("value", "x"))
    stranger = Holder("x", "", "", tenant="elsewhere", rights=int(Right.READ), logs_in=True)
    assert not stranger.may_see(Mark("value", "x")) and not stranger.may_change


def _report(**changes: Any) -> Report:
    done = Tally(operations=9, answers={"srv done": 1}, marks_seen=1)
    knocked = Tally(operations=9, refused_logins=9)
    fields = {"operations": 18, "tallies": {"read": done, "none": knocked}, **changes}
    return Report(**fields)


@pytest.mark.parametrize(
    ("changes", "errors", "said"),
    [
        ({"leaks": ["read sees it"], "leak_count": 1}, (), "seen without a right: read sees it"),
        ({"leaks": [], "leak_count": 1}, (), "seen without a right: 1 messages in all"),
        ({"let_in": ["none: x"]}, (), "let in without a valid token: none: x"),
        ({}, ("changed without a right: kv x",), "changed without a right: kv x"),
        ({"tallies": {}}, (), "shown nothing: read did not attack"),
    ],
)
def test_each_harm_is_noticed(changes: dict[str, Any], errors: tuple[str], said: str) -> None:
    holders = [READER, Holder("none", "", "")]
    assert judge(_report(), holders) == []
    assert said in judge(_report(**changes), holders, errors)


def test_an_attack_that_did_nothing_shows_nothing() -> None:
    holders = [READER, Holder("none", "", "")]
    idle = Tally(operations=9)
    tallies = {"read": idle, "none": idle}
    assert judge(_report(tallies=tallies), holders) == []
    assert judge(_report(tallies=tallies, operations=100_000), holders) == [
        "shown nothing: read has seen nothing of its own",
        "shown nothing: nothing that read asked was done",
        "shown nothing: none was never refused",
    ]


def test_a_revoked_token_was_valid(access: Access) -> None:
    [holder] = [each for each in access.holders if each.name == REVOKED]
    assert holder.logs_in and not holder.rights
    access.revoke()
    assert holder.id in access._registry.revocations().ids
