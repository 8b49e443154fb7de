"""The grant book: which requests are served, wait or are refused."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.protocol.access.grants import A_TOKEN, RIGHTS_ON_SYSTEM, TokenGrant
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NotAllowedError,
    RegistryUnreadableError,
)
from holdfast.protocol.limits import (
    GRANT_SECONDS,
    GRANT_WAIT_SECONDS,
    MAX_GRANT_LOADS,
    MAX_GRANT_WAITING_BYTES,
    MAX_KNOWN_GRANTS,
    MAX_UNKNOWN_GRANTS,
    REVOCATIONS_FRESH_SECONDS,
    REVOCATIONS_SECONDS,
    UNKNOWN_GRANT_SECONDS,
)
from holdfast.protocol.names import SYSTEM_TENANT
from holdfast.protocol.serving.grant_book import Claim, GrantBook
from tests.support.tokens import a_token


class Desk:
    """A book, and the requests that it settled."""

    def __init__(self) -> None:
        self.book: GrantBook[str] = GrantBook()
        self.now = 100.0
        self.wall = 1_000.0

    def look(self, token: Token | str, tenant: str = "acme") -> TokenGrant | NotAllowedError | None:
        return self.book.look(claim(token, tenant), self.now, self.wall)

    def wait(self, token: Token | str, item: str, tenant: str = "acme") -> HoldfastError | None:
        return self.book.wait(claim(token, tenant), item, 100, self.now)

    def read(self, *revoked: Token) -> list[Any]:
        ids: Collection[str] = frozenset(each.id for each in revoked)
        return [tuple(each) for each in self.book.revocations_read(ids, self.now, self.now)]

    def load(self, token: Token, found: Token | None = None) -> list[Any]:
        settled = self.book.loaded(token.id, found, "no such token", self.now)
        return [tuple(each) for each in settled]

    def know(self, token: Token) -> None:
        self.book.work(self.now)
        self.read()
        self.load(token, token)


def claim(token: Token | str, tenant: str = "acme") -> Claim:
    grant = token if isinstance(token, str) else token.id
    return Claim(tenant, grant, f"hf.{tenant}.srv.s1.{grant}")


def refused(found: object) -> str:
    assert isinstance(found, NotAllowedError)
    assert found.missing == A_TOKEN
    return str(found.reason)


def test_a_request_without_a_token_is_refused_at_once() -> None:
    assert refused(Desk().look("")) == "this cluster asks for a token"


def test_a_request_waits_for_the_revocations_then_for_its_token() -> None:
    desk, token = Desk(), a_token()
    assert desk.look(token) is None
    assert desk.wait(token, "one") is None
    work = desk.book.work(desk.now)
    assert (work.load, work.read_revocations) == ([], True)
    assert not desk.book.work(desk.now).read_revocations, "once at a time"
    assert desk.read() == [("one", None)]
    assert desk.look(token) is None
    assert desk.wait(token, "one") is None
    assert desk.wait(token, "two") is None
    work = desk.book.work(desk.now)
    assert (work.load, work.read_revocations) == ([token.id], False)
    assert desk.load(token, token) == [("one", None), ("two", None)]
    grant = desk.look(token)
    assert isinstance(grant, TokenGrant)
    assert grant.token is token
    assert desk.book.waiting_count == 0


def test_a_token_that_is_not_registered_is_refused_and_looked_up_again_later() -> None:
    desk, token = Desk(), a_token()
    desk.read()
    desk.load(token)
    assert refused(desk.look(token)) == "no such token"
    desk.now += UNKNOWN_GRANT_SECONDS
    assert desk.look(token) is None


def test_a_token_expires_by_the_wall_clock() -> None:
    desk, token = Desk(), a_token(expires_at=1_001)
    desk.know(token)
    assert isinstance(desk.look(token), TokenGrant)
    desk.wall = 1_001.0
    assert refused(desk.look(token)) == "the token has expired"


def test_a_token_is_for_its_tenant_and_an_operators_for_all() -> None:
    desk, token, operator = Desk(), a_token(), a_token(tenant="*")
    desk.know(token)
    desk.load(operator, operator)
    assert refused(desk.look(token, "umbrella")) == "the token is for another tenant"
    assert isinstance(desk.look(operator, "umbrella"), TokenGrant)
    # The cluster's own subjects are no tenant's, though NATS's wildcard matches them.
    assert refused(desk.look(operator, "_")) == "the token is for another tenant"


def test_a_revoked_token_is_refused_from_the_next_reading_on() -> None:
    desk, token, other = Desk(), a_token(), a_token()
    desk.know(token)
    desk.load(other, other)
    desk.read(token)
    assert refused(desk.look(token)) == "the token was revoked"
    assert isinstance(desk.look(other), TokenGrant)
    desk.load(token, token)
    assert refused(desk.look(token)) == "the token was revoked", "also if it is loaded again"


def test_revocations_are_read_again_while_requests_come_in() -> None:
    desk, token = Desk(), a_token()
    desk.know(token)
    desk.look(token)
    assert not desk.book.work(desk.now).read_revocations
    desk.now += REVOCATIONS_SECONDS
    assert desk.book.work(desk.now).read_revocations
    desk.read()
    desk.now += REVOCATIONS_SECONDS
    assert not desk.book.work(desk.now).read_revocations, "nobody has asked since"


def test_without_a_fresh_reading_everything_waits_and_is_refused_for_now() -> None:
    desk, token = Desk(), a_token()
    desk.know(token)
    desk.now += REVOCATIONS_FRESH_SECONDS
    assert desk.look(token) is None
    desk.wait(token, "one")
    assert desk.book.work(desk.now).read_revocations
    [(item, error)] = desk.book.revocations_unread("it is away", desk.now)
    assert item == "one"
    assert isinstance(error, RegistryUnreadableError)
    assert error.retryable
    desk.wait(token, "two")
    desk.now += GRANT_WAIT_SECONDS
    [(item, error)] = desk.book.expire(desk.now)
    assert (item, type(error)) == ("two", RegistryUnreadableError)
    desk.read()
    assert isinstance(desk.look(token), TokenGrant)


def test_a_reading_counts_from_when_it_began() -> None:
    desk, token = Desk(), a_token()
    desk.know(token)
    began_at = desk.now
    desk.now += REVOCATIONS_FRESH_SECONDS
    desk.wait(token, "one")
    assert desk.book.revocations_read(frozenset(), began_at, desk.now) == []
    assert desk.look(token) is None
    assert desk.book.work(desk.now).read_revocations, "it is read again"


def test_a_token_that_cannot_be_read_is_refused_for_now() -> None:
    desk, token = Desk(), a_token()
    desk.read()
    desk.wait(token, "one")
    desk.book.work(desk.now)
    [(_, error)] = desk.book.load_failed(token.id, "it is away")
    assert isinstance(error, RegistryUnreadableError)
    assert desk.look(token) is None, "it may be there the next time"


def test_few_tokens_are_loaded_at_once_and_tenants_take_turns() -> None:
    desk = Desk()
    desk.read()
    mine = a_token(tenant="umbrella")
    made_up = [f"{number:032}" for number in range(100)]
    for each in made_up:
        desk.wait(each, each, "evil")
    desk.wait(mine, "mine", "umbrella")
    first = desk.book.work(desk.now).load
    assert len(first) == MAX_GRANT_LOADS
    assert mine.id in first
    assert desk.book.work(desk.now).load == []


def test_what_waits_is_bounded_and_leaves_room_for_other_tenants() -> None:
    desk = Desk()
    desk.read()
    count = 0
    while desk.wait(f"{count:032}", "x", "evil") is None:
        count += 1
    assert count <= MAX_GRANT_WAITING_BYTES // 2048
    assert isinstance(desk.wait("0" * 32, "x", "evil"), BusyError)
    assert desk.wait("a" * 32, "y", "acme") is None
    desk.now += GRANT_WAIT_SECONDS
    assert len(desk.book.expire(desk.now)) == count + 1
    desk.book.validate()
    assert desk.wait("0" * 32, "x", "evil") is None


def test_known_and_unknown_grants_are_bounded() -> None:
    desk = Desk()
    desk.read()
    for number in range(MAX_UNKNOWN_GRANTS + 10):
        desk.book.loaded(f"{number:032}", None, "made up", desk.now)
    desk.book.validate()
    assert desk.look(f"{0:032}") is None
    token = a_token()
    for number in range(MAX_KNOWN_GRANTS + 10):
        desk.book.loaded(f"{number:032}", token, "", desk.now)
    desk.book.validate()


def test_a_grant_is_verified_again_after_a_while() -> None:
    desk, token = Desk(), a_token()
    desk.know(token)
    desk.now += GRANT_SECONDS
    desk.read()
    assert desk.look(token) is None


def test_a_request_that_comes_once_the_revocations_are_stale_stays_behind_earlier_ones() -> None:
    desk, token = Desk(), a_token()
    desk.book.work(desk.now)
    desk.read()
    assert desk.wait(token, "first") is None
    desk.now += REVOCATIONS_FRESH_SECONDS
    assert desk.wait(token, "second") is None
    assert desk.book.revocations_unread("away", desk.now) == []
    assert [item for item, _ in desk.load(token, token)] == ["first", "second"]


TOKENS = [a_token(), a_token(tenant="umbrella"), a_token(expires_at=1_050), a_token(tenant="*")]


class Machine(RuleBasedStateMachine):
    """Any order of events: what is served was looked up, is not known to be revoked, and every
    request is settled once, those of a grant in order."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.sent = 0
        self.waiting: dict[str, list[int]] = {token.id: [] for token in TOKENS}
        self.loading: set[str] = set()
        self.reading = False
        self.revoked: frozenset[str] = frozenset()
        self.read_revoked: frozenset[str] = frozenset()

    def settle(self, settled: list[Any]) -> None:
        for item, error in settled:
            token_id, number = item.split(":")
            assert self.waiting[token_id].pop(0) == int(number)
            if error is None:
                self.request_again(token_id, int(number))

    def request_again(self, token_id: str, number: int) -> None:
        found = self.desk.look(token_id)
        if isinstance(found, TokenGrant):
            assert token_id not in self.read_revoked
            assert found.token.is_for("acme")
            assert self.desk.wall < found.expires_at
        elif found is None and self.desk.wait(token_id, f"{token_id}:{number}") is None:
            self.waiting[token_id].append(number)

    @rule(token=st.sampled_from(TOKENS))
    def request(self, token: Token) -> None:
        self.sent += 1
        self.request_again(token.id, self.sent)

    @rule(seconds=st.floats(0, 4))
    def pass_time(self, seconds: float) -> None:
        self.desk.now += seconds
        self.desk.wall += seconds
        self.settle([tuple(each) for each in self.desk.book.expire(self.desk.now)])

    @rule()
    def work(self) -> None:
        work = self.desk.book.work(self.desk.now)
        self.loading |= set(work.load)
        self.reading |= work.read_revocations

    @rule(token=st.sampled_from(TOKENS), outcome=st.sampled_from(["found", "none", "failed"]))
    def load(self, token: Token, outcome: str) -> None:
        if token.id in self.loading:
            self.loading.discard(token.id)
            if outcome == "failed":
                self.settle(list(map(tuple, self.desk.book.load_failed(token.id, "away"))))
            else:
                self.settle(self.desk.load(token, token if outcome == "found" else None))

    @rule(token=st.sampled_from(TOKENS))
    def revoke(self, token: Token) -> None:
        self.revoked |= {token.id}

    @rule(succeeds=st.booleans())
    def read(self, succeeds: bool) -> None:
        if self.reading:
            self.reading = False
            now = self.desk.now
            if succeeds:
                self.read_revoked = self.revoked
                self.settle(
                    [tuple(e) for e in self.desk.book.revocations_read(self.revoked, now, now)]
                )
            else:
                self.settle([tuple(e) for e in self.desk.book.revocations_unread("away", now)])

    @invariant()
    def keeps_its_invariants(self) -> None:
        self.desk.book.validate()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_an_idle_book_has_nothing_to_do() -> None:
    assert not Desk().book.work(1_000_000.0).read_revocations


def test_the_system_tenant_is_for_operators_and_not_to_be_written() -> None:
    desk = Desk()
    operator, other = a_token(tenant="*"), a_token()
    for token in (operator, other):
        desk.know(token)
    found = desk.look(operator, SYSTEM_TENANT)
    assert isinstance(found, TokenGrant)
    assert found.token.rights == RIGHTS_ON_SYSTEM
    assert isinstance(desk.look(other, SYSTEM_TENANT), NotAllowedError)
    # Who tells the audit log something in its own name is looked up as one for all tenants.
    assert isinstance(desk.look(operator, "*"), TokenGrant)
    assert isinstance(desk.look(other, "*"), NotAllowedError)
