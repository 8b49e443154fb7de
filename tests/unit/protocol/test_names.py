"""Names: what is one and what is not, at the edges of the grammar."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidNameError
from holdfast.protocol.limits import MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_NAME_TOKENS
from holdfast.protocol.names import (
    SYSTEM_TENANT,
    StoreId,
    StoreKind,
    check_key,
    check_own_tenant,
    check_pattern,
    check_server,
    check_store,
    check_tenant,
    literal_start,
    matches,
    quote,
    unquote,
)
from tests.support.effort import examples

TOKEN_CHARACTERS = string.ascii_letters + string.digits + "_=%@+~,:-"


@given(st.text(min_size=1, max_size=60))
@settings(deadline=None, max_examples=examples(200))
def test_quote_makes_one_token_of_any_text_and_unquote_gives_it_back(text: str) -> None:
    token = quote(text)
    assert unquote(token) == text
    assert "." not in token
    if len(token) <= MAX_NAME_BYTES:
        assert check_store(token) == token


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
@settings(deadline=None, max_examples=examples(200))
def test_quote_never_maps_two_texts_to_one_token(one: str, other: str) -> None:
    assert (quote(one) == quote(other)) == (one == other)


@given(st.lists(st.text(TOKEN_CHARACTERS, min_size=1, max_size=8), min_size=1, max_size=16))
@settings(deadline=None, max_examples=examples(200))
def test_every_name_of_the_grammar_is_taken(tokens: list[str]) -> None:
    name = ".".join(tokens)
    assert check_store(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "a.", ".a", "a..b", "a b", "a/b", "../x", "a\n", "a\x00", "*", ">", "a.>"),
        *("é", "a\u2028", "$SYS", "a*b", "x" * (MAX_NAME_BYTES + 1)),
        ".".join("a" * (MAX_NAME_TOKENS + 1)),
    ],
)
def test_what_is_no_store_name_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_store(name)
    assert caught.value.what == "store"
    assert caught.value.reason


@pytest.mark.parametrize("name", [None, 7, b"a", ["a"], 1.5])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    for check in (check_store, check_tenant, check_server, check_key):
        with pytest.raises(InvalidNameError):
            check(name)  # type: ignore[arg-type]


def test_the_longest_store_name_and_the_most_tokens_are_taken() -> None:
    assert check_store("x" * MAX_NAME_BYTES)
    assert check_store(".".join("a" * MAX_NAME_TOKENS))


@pytest.mark.parametrize("name", ["", "_", "-a", "_a", "a.b", "a b", "x" * 64, "a\n", "ä", "a/b"])
def test_tenants_and_servers_are_plain_words(name: str) -> None:
    for check in (check_tenant, check_server):
        with pytest.raises(InvalidNameError):
            check(name)


def test_one_tenant_is_the_clusters_own_and_no_token_or_quota_is_for_it() -> None:
    assert check_tenant(SYSTEM_TENANT) == SYSTEM_TENANT
    for name in (SYSTEM_TENANT, f"{SYSTEM_TENANT}x"):
        with pytest.raises(InvalidNameError):
            check_own_tenant(name)
    with pytest.raises(InvalidNameError):
        check_tenant(f"{SYSTEM_TENANT}x")


def test_a_plain_word_of_63_characters_is_taken() -> None:
    assert check_tenant("a" * 63) == "a" * 63
    assert check_server("A-1_b") == "A-1_b"


@pytest.mark.parametrize(
    "key",
    ["", "a!@#$%^&*|()", '["x","y"]', "\x00", "🪸", "\U0010ffff", "k" * 1000, "\U0010ffff" * 1000],
)
def test_any_text_is_a_key(key: str) -> None:
    assert check_key(key) == key


def test_a_key_is_measured_in_bytes() -> None:
    assert check_key("k" * MAX_KEY_BYTES)
    assert check_key("é" * (MAX_KEY_BYTES // 2))
    for key in ("k" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2 + 1)):
        with pytest.raises(InvalidNameError):
            check_key(key)


def test_a_lone_surrogate_is_no_key_and_the_refusal_can_be_sent() -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_key("a\ud800")
    assert str(caught.value.name).isascii()


def test_a_store_id_says_what_it_is() -> None:
    assert str(StoreId("acme", StoreKind.KV, "a.b")) == "kv 'a.b' of tenant 'acme'"


@pytest.mark.parametrize(
    ("pattern", "found", "others"),
    [
        ("project.*.patches", ["project.1.patches"], ["project.patches", "project.1.2.patches"]),
        ("project.>", ["project.1", "project.1.patches"], ["project", "projects.1"]),
        ("*", ["a"], ["a.b"]),
        (">", ["a", "a.b.c"], []),
        ("*.b.>", ["a.b.c"], ["a.b", "a.c.b"]),
        ("a.b", ["a.b"], ["a.b.c", "a"]),
    ],
)
def test_patterns_match_as_subjects_do(pattern: str, found: list[str], others: list[str]) -> None:
    assert check_pattern(pattern) == pattern
    assert [name for name in found + others if matches(pattern, name)] == found
    assert all(name.startswith(literal_start(pattern)) for name in found)


@pytest.mark.parametrize("pattern", ["", ".", "a.", ">.a", "a.>.b", "a*", "a b", "*.>x", "a." * 20])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidNameError, match="pattern"):
        check_pattern(pattern)
