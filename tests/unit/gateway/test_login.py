"""What the auth service reads from nats-server and answers: claims, encryption, decisions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.public import PrivateKey
from nacl.signing import SigningKey

from holdfast.gateway.auth.claims import read_claims, sign_claims
from holdfast.gateway.auth.known_tokens import FRESH_SECONDS, STALE_SECONDS, KnownTokens
from holdfast.gateway.auth.login import (
    CLOCK_LEEWAY_SECONDS,
    Answering,
    LoginRequest,
    read_request,
)
from holdfast.gateway.auth.sealing import open_sealed, seal
from holdfast.protocol.access.nats_permissions import permissions_of
from holdfast.protocol.access.nkeys_text import KeyKind, public_text
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import Token, new_token, sign_token
from holdfast.protocol.errors import (
    InvalidTokenError,
    MalformedFrameError,
    StorageFailedError,
    UnavailableError,
)
from holdfast.shared_fs.access.registry import AccessRegistry, Issuer, Revocations
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from tests.support.effort import examples

NOW = 1_800_000_000
ACCOUNT_KEY, SERVER_KEY = SigningKey(bytes(32)), SigningKey(bytes([1]) * 32)
ACCOUNT = public_text(KeyKind.ACCOUNT, bytes(ACCOUNT_KEY.verify_key))
SERVER = public_text(KeyKind.SERVER, bytes(SERVER_KEY.verify_key))
USER = public_text(KeyKind.USER, bytes([2]) * 32)
ISSUER_KEY = SigningKey(bytes([3]) * 32)


def token(**changes: Any) -> Token:
    fields = {
        "issuer": "cluster",
        "tenant": "acme",
        "stores": ["project.*"],
        "rights": Right.READ | Right.WRITE,
        "created_at": NOW,
        "expires_at": NOW + 60,
    }
    return new_token(**{**fields, **changes})  # type: ignore[arg-type]


def question(key: SigningKey = SERVER_KEY, *, nats: object = None, **changes: object) -> str:
    asked: dict[str, object] = {
        "type": "authorization_request",
        "version": 2,
        "server_id": {"id": SERVER, "name": "n1", "host": "h"},
        "user_nkey": USER,
        "client_info": {"host": "10.0.0.7", "id": 5},
        "connect_opts": {"auth_token": "the token", "name": "line\nbreak", "protocol": 1},
    }
    if isinstance(nats, dict):
        asked |= nats
    claims = {"aud": "nats-authorization-request", "sub": ACCOUNT, "exp": NOW + 5, "nats": asked}
    return sign_claims({**claims, **changes}, KeyKind.SERVER, key, NOW)


def test_a_question_of_nats_server_is_read() -> None:
    read = read_request(question(), ACCOUNT, NOW)
    assert read == LoginRequest(SERVER, USER, 5, "the token", "10.0.0.7", "line\\nbreak")
    assert "the token" not in repr(read)


@pytest.mark.parametrize(
    "text",
    [
        question(SigningKey(bytes([9]) * 32)),
        question(aud="something else"),
        question(sub=public_text(KeyKind.ACCOUNT, bytes(32))),
        question(exp=NOW - CLOCK_LEEWAY_SECONDS - 1),
        question(exp=None),
        question(exp=True),
        question(nats={"type": "user"}),
        question(nats={"user_nkey": SERVER}),
        question(nats={"user_nkey": None}),
        question(nats={"server_id": []}),
        question(nats={"server_id": {}}),
        question(nats={"connect_opts": None}),
        question(nats={"client_info": {"id": "5"}}),
        sign_claims({"nats": {}}, KeyKind.ACCOUNT, ACCOUNT_KEY, NOW),
        question()[:-2],
        question().replace(".", "..", 1),
        "",
    ],
)
def test_what_no_nats_server_asks_is_refused(text: str) -> None:
    with pytest.raises(MalformedFrameError):
        read_request(text, ACCOUNT, NOW)


@given(st.text(st.characters(max_codepoint=127), max_size=200))
@settings(deadline=None, max_examples=examples(100))
def test_any_text_is_a_question_or_refused(text: str) -> None:
    with pytest.raises(MalformedFrameError):
        read_request(text, ACCOUNT, NOW)


@given(st.data())
@settings(deadline=None, max_examples=examples(50))
def test_claims_with_any_changed_character_are_refused(data: st.DataObject) -> None:
    text = question()
    at = data.draw(st.integers(0, len(text) - 3))
    other = data.draw(st.sampled_from("ABCabc019-_.").filter(lambda each: each != text[at]))
    with pytest.raises(MalformedFrameError):
        read_claims(text[:at] + other + text[at + 1 :], KeyKind.SERVER)


def test_who_is_let_in_gets_what_the_token_allows_until_it_expires() -> None:
    made = token()
    request = read_request(question(), ACCOUNT, NOW)
    answer = read_claims(
        Answering(ACCOUNT_KEY, "HOLDFAST", "hf").let_in(request, made, NOW), KeyKind.ACCOUNT
    )
    assert (answer["iss"], answer["sub"], answer["aud"]) == (ACCOUNT, USER, SERVER)
    user = read_claims(answer["nats"]["jwt"], KeyKind.ACCOUNT)
    assert (user["sub"], user["aud"], user["name"]) == (USER, "HOLDFAST", made.id)
    assert user["exp"] == made.expires_at
    allowed = permissions_of(made, "hf")
    assert user["nats"]["pub"] == {"allow": list(allowed.publish)}
    assert user["nats"]["sub"] == {"allow": list(allowed.subscribe)}


def test_who_is_refused_gets_no_claims_of_a_user() -> None:
    request = read_request(question(), ACCOUNT, NOW)
    text = Answering(ACCOUNT_KEY, "HOLDFAST", "hf").refuse(request, "it is revoked", NOW)
    answer = read_claims(text, KeyKind.ACCOUNT)
    assert answer["nats"].items() >= {"error": "it is revoked"}.items()
    assert "jwt" not in answer["nats"]


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=examples(50))
def test_what_is_sealed_for_one_key_is_opened_by_it_alone(text: bytes) -> None:
    ours, server, other = (PrivateKey(bytes([n]) * 32) for n in (1, 2, 3))
    to_us, to_server = (public_text(KeyKind.CURVE, bytes(key.public_key)) for key in (ours, server))
    sealed = seal(server, to_us, text)
    assert open_sealed(ours, to_server, sealed) == text
    for wrong in (sealed[:-1], sealed[1:], sealed[:20], b"", text):
        with pytest.raises(MalformedFrameError):
            open_sealed(ours, to_server, wrong)
    for key, sender in ((other, to_server), (ours, to_us), (ours, "X"), (ours, "")):
        with pytest.raises(MalformedFrameError):
            open_sealed(key, sender, sealed)


class AwayRegistry(AccessRegistry):
    """The registry in memory, which can be away."""

    def __init__(self) -> None:
        super().__init__(Bucket(MemoryBackend()))
        self.is_away = False
        self.look_count = 0

    def revocations(self, known: Revocations | None = None) -> Revocations:
        self.look_count += 1
        if self.is_away:
            raise StorageFailedError(reason="away")
        return super().revocations(known)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.registry = AwayRegistry()
        self.registry.add_issuer(Issuer("cluster", bytes(ISSUER_KEY.verify_key), ("*",)))
        self.tokens = KnownTokens(self.registry, lambda: self.now, lambda: NOW + self.now - 100.0)

    async def refused(self, text: str) -> str:
        with pytest.raises(InvalidTokenError) as caught:
            await self.tokens.check(text)
        assert not text or text not in str(caught.value)
        return str(caught.value.reason)


def signed(made: Token) -> str:
    return sign_token(made, ISSUER_KEY)


async def test_a_token_counts_until_it_expires_or_is_revoked() -> None:
    world = World()
    made, other = token(), token()
    assert await world.tokens.check(signed(made)) == made
    assert world.registry.token_text(made.id) == signed(made)
    world.registry.revoke(other, NOW)
    world.now += FRESH_SECONDS
    assert "revoked" in await world.refused(signed(other))
    assert world.registry.token_text(other.id) is None
    world.now += 60
    assert "expired" in await world.refused(signed(made))


async def test_one_id_is_one_token() -> None:
    first, other = World(), World()
    other.registry = first.registry
    other.tokens = KnownTokens(first.registry, lambda: other.now, lambda: float(NOW))
    made = token()
    twin = Token(made.id, "cluster", "acme", (">",), made.rights, NOW)
    await first.tokens.check(signed(made))
    for world in (first, other):
        assert "another token" in await world.refused(signed(twin))
        assert await world.tokens.check(signed(made)) == made


async def test_a_new_issuer_is_known_within_a_second() -> None:
    world = World()
    key = SigningKey(bytes([7]) * 32)
    made = token(issuer="idp")
    assert "no issuer" in await world.refused(sign_token(made, key))
    world.registry.add_issuer(Issuer("idp", bytes(key.verify_key), ("acme",)))
    world.now += FRESH_SECONDS
    assert await world.tokens.check(sign_token(made, key)) == made


async def test_a_registry_that_is_away_lets_nobody_in_after_seconds() -> None:
    world = World()
    made = token()
    await world.tokens.check(signed(made))
    world.registry.is_away = True
    world.now += STALE_SECONDS - 0.1
    assert await world.tokens.check(signed(made)) == made
    world.now += 0.2
    with pytest.raises(UnavailableError):
        await world.tokens.check(signed(made))
    world.registry.is_away = False
    assert await world.tokens.check(signed(made)) == made


async def test_many_logins_look_once() -> None:
    world = World()
    text = signed(token())
    await asyncio.gather(*(world.tokens.check(text) for _ in range(50)))
    assert world.registry.look_count == 1
