"""Which names and subjects are allowed, and which subjects meet."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import names


@pytest.mark.parametrize("name", ["a", "KV_b", "oc_123", "ä", "a-b=c", "$x"])
def test_a_name_may_have_other_characters(name: str) -> None:
    assert names.is_name(name)


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "a\tb", "a/b", "a\\b", "a\r", "a\n"])
def test_a_name_has_no_dots_wildcards_separators_and_blanks(name: str) -> None:
    assert not names.is_name(name)


def test_a_made_name_is_a_name() -> None:
    made = {names.made_name() for _ in range(50)}
    assert len(made) == 50
    assert all(names.is_name(name) and len(name) == 8 for name in made)


@pytest.mark.parametrize(
    ("subject", "valid", "literal"),
    [
        ("a", True, True),
        ("a.b", True, True),
        ("a.*", True, False),
        ("a.>", True, False),
        (">", True, False),
        ("a*", True, True),
        ("a.b>", True, True),
        ("$KV.b.k", True, True),
        ("ä.ö", True, True),
        ("", False, False),
        (".", False, False),
        ("a.", False, False),
        (".a", False, False),
        ("a..b", False, False),
        ("a.>.b", False, False),
        ("a b", False, False),
        ("a.\t", False, False),
        ("a\0", False, False),
    ],
)
def test_subjects_are_tokens_joined_by_dots(subject: str, valid: bool, literal: bool) -> None:
    assert names.is_subject(subject) == valid
    assert names.is_literal(subject) == literal
    if valid:
        assert names.has_wildcards(subject) == (not literal)


_TOKENS = st.sampled_from(["a", "b", "*"])
_FILTERS = st.tuples(st.lists(_TOKENS, min_size=1, max_size=3), st.booleans()).map(
    lambda made: ".".join(made[0][: 2 if made[1] else 3] + [">"] * made[1])
)
#: All short literal subjects, one letter more than filters have.
_LITERALS = [
    ".".join(tokens)
    for length in (1, 2, 3, 4)
    for tokens in itertools.product("abc", repeat=length)
]


def _matched(filter_: str) -> set[str]:
    return {subject for subject in _LITERALS if names.is_subset(subject, filter_)}


@given(_FILTERS, _FILTERS)
def test_subsets_are_what_the_matched_subjects_say(one: str, other: str) -> None:
    assert names.is_subset(one, other) == (_matched(one) <= _matched(other))
