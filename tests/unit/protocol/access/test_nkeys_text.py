"""Nkeys are spelled as NATS's own package spells them."""

from __future__ import annotations

import nkeys
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.protocol.access.nkeys_text import (
    KeyKind,
    public_key,
    public_text,
    seed,
    seed_text,
)
from holdfast.protocol.errors import InvalidArgumentError
from tests.support.effort import examples

KINDS = st.sampled_from(list(KeyKind))
KEYS = st.binary(min_size=32, max_size=32)


@given(KINDS, KEYS)
@settings(deadline=None, max_examples=examples(50))
def test_a_key_has_one_text_and_is_read_back(kind: KeyKind, key: bytes) -> None:
    assert public_key(kind, public_text(kind, key)) == key
    assert seed(kind, seed_text(kind, key)) == key
    letter = {KeyKind.ACCOUNT: "A", KeyKind.SERVER: "N", KeyKind.USER: "U", KeyKind.CURVE: "X"}[
        kind
    ]
    assert public_text(kind, key)[0] == letter
    assert seed_text(kind, key)[:2] == f"S{letter}"


@given(KEYS)
@settings(deadline=None, max_examples=examples(20))
def test_keys_for_signatures_are_those_of_the_package_nkeys(key: bytes) -> None:
    for kind in (KeyKind.ACCOUNT, KeyKind.SERVER, KeyKind.USER):
        pair = nkeys.from_seed(bytearray(seed_text(kind, key).encode()))
        public = public_text(kind, bytes(SigningKey(key).verify_key))
        assert pair.public_key.decode().rstrip("=") == public


@given(KINDS, KEYS, st.data())
@settings(deadline=None, max_examples=examples(50))
def test_a_changed_text_is_no_key(kind: KeyKind, key: bytes, data: st.DataObject) -> None:
    text = public_text(kind, key)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(max_codepoint=127).filter(lambda each: each != text[at]))
    with pytest.raises(InvalidArgumentError):
        public_key(kind, text[:at] + other + text[at + 1 :])


@given(st.text(st.characters(max_codepoint=255), max_size=80))
@settings(deadline=None, max_examples=examples(50))
def test_other_text_is_no_key_and_is_not_quoted(text: str) -> None:
    for read in (public_key, seed):
        with pytest.raises(InvalidArgumentError) as caught:
            read(KeyKind.USER, text)
        assert len(text) < 8 or text not in str(caught.value)


def test_one_kind_is_not_taken_for_another() -> None:
    with pytest.raises(InvalidArgumentError):
        public_key(KeyKind.USER, public_text(KeyKind.ACCOUNT, bytes(32)))
    with pytest.raises(InvalidArgumentError):
        seed(KeyKind.USER, public_text(KeyKind.USER, bytes(32)))
    with pytest.raises(InvalidArgumentError):
        public_key(KeyKind.USER, seed_text(KeyKind.USER, bytes(32)))
