"""Tokens: what a signature covers, and what is no token."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.protocol.access.rights import NO_RIGHTS, Right
from holdfast.protocol.access.tokens import (
    Token,
    TokenLimits,
    new_token,
    read_token,
    sign_token,
    verify_token,
)
from holdfast.protocol.errors import HoldfastError, InvalidTokenError
from holdfast.protocol.limits import MAX_TOKEN_BYTES
from holdfast.protocol.names import StoreKind
from tests.support.effort import examples

KEY = SigningKey(bytes(32))
OTHER_KEY = SigningKey(bytes([1]) * 32)
KEYS = {"cluster": KEY.verify_key, "sso": OTHER_KEY.verify_key}


def token(**changes: Any) -> Token:
    fields: dict[str, Any] = {
        "issuer": "cluster",
        "tenant": "acme",
        "stores": ["project.42.*", "kv:settings"],
        "rights": Right.READ | Right.WRITE,
        "created_at": 1_000,
        "expires_at": 2_000,
        "subject": "Ada",
        "limits": TokenLimits(rate=100, connections=2),
    }
    return new_token(**fields | changes)


def forged(changes: dict[str, Any], key: SigningKey = KEY) -> str:
    """Return a token of any payload, signed."""
    _, payload, _ = sign_token(token(), KEY).split(".")
    fields = json.loads(base64.urlsafe_b64decode(payload + "=="))
    fields = {name: value for name, value in (fields | changes).items() if value is not None}
    return signed(json.dumps(fields).encode(), key)


def signed(payload: bytes, key: SigningKey = KEY) -> str:
    text = f"hft1.{_part(payload)}"
    return f"{text}.{_part(key.sign(text.encode()).signature)}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_token_says_what_it_was_made_with() -> None:
    for made in (token(), token(expires_at=None, subject="", limits=TokenLimits())):
        assert verify_token(sign_token(made, KEY), KEYS) == made
        assert read_token(sign_token(made, KEY)) == made


def test_each_token_has_an_id_of_its_own() -> None:
    assert token().id != token().id


@given(st.data())
@settings(deadline=None, max_examples=examples(100))
def test_a_token_with_any_changed_character_is_refused(data: st.DataObject) -> None:
    text = sign_token(token(), KEY)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(max_codepoint=127).filter(lambda each: each != text[at]))
    with pytest.raises(InvalidTokenError):
        verify_token(text[:at] + other + text[at + 1 :], KEYS)


@given(st.integers(0, MAX_TOKEN_BYTES))
@settings(deadline=None, max_examples=examples(100))
def test_a_truncated_token_is_refused(length: int) -> None:
    text = sign_token(token(), KEY)
    if length < len(text):
        with pytest.raises(InvalidTokenError):
            verify_token(text[:length], KEYS)


@given(st.one_of(st.text(), st.binary().map(lambda data: f"hft1.{_part(data)}.AAAA"), st.none()))
@settings(deadline=None, max_examples=examples(100))
def test_what_is_no_token_is_refused_as_such(text: Any) -> None:
    with pytest.raises(InvalidTokenError):
        read_token(text)


@given(
    st.dictionaries(
        st.sampled_from(
            ["id", "issuer", "tenant", "stores", "allow", "expires", "created", "limits"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
)
@settings(deadline=None, max_examples=examples(100))
def test_a_signed_token_of_any_payload_is_a_token_or_refused(changes: dict[str, Any]) -> None:
    try:
        made = verify_token(signed(json.dumps(changes).encode()), KEYS)
    except InvalidTokenError:
        return
    assert made == read_token(sign_token(made, KEY))


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "short"},
        {"id": "a" * 15 + "."},
        {"id": "a" * 15 + "*"},
        {"tenant": "_"},
        {"tenant": "acme.>"},
        {"stores": []},
        {"stores": ["x"] * 33},
        {"stores": ["project..x"]},
        {"stores": ["stream:"]},
        {"stores": "project.>"},
        {"allow": []},
        {"allow": ["everything"]},
        {"expires": -1},
        {"expires": True},
        {"expires": 1e9},
        {"limits": {"rate": 0}},
        {"limits": [1]},
        {"subject": "line\nbreak"},
    ],
)
def test_a_signed_token_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        verify_token(forged(changes), KEYS)


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert verify_token(forged({"later": [1]}), KEYS).tenant == "acme"


def test_the_key_of_another_issuer_signs_nothing_for_this_one() -> None:
    with pytest.raises(InvalidTokenError, match="did not sign"):
        verify_token(sign_token(token(), OTHER_KEY), KEYS)
    with pytest.raises(InvalidTokenError, match="no issuer"):
        verify_token(sign_token(token(issuer="unknown"), KEY), KEYS)


def test_the_signature_of_one_token_does_not_fit_another() -> None:
    first, second = sign_token(token(), KEY), sign_token(token(tenant="umbrella"), KEY)
    swapped = ".".join([*second.split(".")[:2], first.rpartition(".")[2]])
    with pytest.raises(InvalidTokenError, match="did not sign"):
        verify_token(swapped, KEYS)


def test_rights_hold_on_the_stores_that_a_pattern_names() -> None:
    held = token(stores=["project.42.*", "kv:settings", "stream:chat.>"])
    stream, kv = StoreKind.STREAM, StoreKind.KV
    rights = Right.READ | Right.WRITE
    for kind, name, expected in [
        (stream, "project.42.patches", rights),
        (kv, "project.42.patches", rights),
        (stream, "project.42", NO_RIGHTS),
        (stream, "project.42.a.b", NO_RIGHTS),
        (stream, "project.43.patches", NO_RIGHTS),
        (kv, "settings", rights),
        (stream, "settings", NO_RIGHTS),
        (stream, "chat.a.b", rights),
        (kv, "chat.a.b", NO_RIGHTS),
    ]:
        assert held.rights_on(kind, name) == expected, (kind, name)


def test_a_token_expires_at_its_second_or_never() -> None:
    assert not token().is_expired(1_999.9)
    assert token().is_expired(2_000)
    assert not token(expires_at=None).is_expired(1e12)


def test_a_token_that_nats_would_not_take_is_not_signed() -> None:
    with pytest.raises(HoldfastError, match="name fewer stores"):
        sign_token(token(stores=[f"{'x' * 100}.{number}" for number in range(32)]), KEY)
