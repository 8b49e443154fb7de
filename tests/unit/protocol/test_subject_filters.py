"""Subjects and filters: what is one, and which matches which."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.limits import MAX_FILTERS, MAX_MESSAGE_SUBJECT_BYTES
from holdfast.protocol.subject_filters import (
    Filters,
    check_filter,
    check_filters,
    check_subject_of_message,
    is_literal,
    matches,
    overlaps,
    prefix_of,
)

_TOKENS = st.sampled_from(["a", "b", "c*", ">d", "é"])
_SUBJECTS = st.lists(_TOKENS, min_size=1, max_size=4).map(".".join)
_FILTERS = st.builds(
    lambda tokens, rest: ".".join((*tokens, *rest)),
    st.lists(_TOKENS | st.just("*"), min_size=1, max_size=4),
    st.sampled_from([(), (">",)]),
) | st.just(">")


@pytest.mark.parametrize(
    ("wanted", "subject", "expected"),
    [
        ("a.b", "a.b", True), ("a.b", "a.c", False), ("a", "a.b", False), ("*", "a", True),
        ("*", "a.b", False), ("a.*", "a.b", True), ("a.*", "a", False), ("*.b", "a.b", True),
        (">", "a.b.c", True), ("a.>", "a.b.c", True), ("a.>", "a", False), ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c", True), ("a.*", "a.*", True), ("a.>", "a.*", True), ("a.b", "a.*", False),
        ("a*", "ab", False), ("a+", "aa", False), ("a.", "a.b", False),
    ],
)  # fmt: skip
def test_a_filter_matches_as_in_nats(wanted: str, subject: str, expected: bool) -> None:
    assert matches(wanted, subject) is expected
    assert Filters([wanted]).matches(subject) is expected
    assert Filters(["nothing", wanted, "no.thing.*"]).matches(subject) is expected


@given(st.lists(_FILTERS, max_size=4), _SUBJECTS)
def test_several_filters_match_what_any_of_them_does(filters: list[str], subject: str) -> None:
    expected = not filters or any(matches(each, subject) for each in filters)
    assert Filters(filters).matches(subject) is expected
    for each in filters:
        if matches(each, subject):
            assert subject.startswith(prefix_of(each))


def test_filters_overlap_if_a_subject_matches_both() -> None:
    filters = [
        ".".join(tokens)
        for length in (1, 2, 3)
        for tokens in product(("a", "b", "*", ">"), repeat=length)
        if ">" not in tokens[:-1]
    ]
    subjects = [
        ".".join(tokens) for length in (1, 2, 3, 4) for tokens in product("ab", repeat=length)
    ]
    matched = {each: {one for one in subjects if matches(each, one)} for each in filters}
    for one, other in product(filters, repeat=2):
        assert overlaps(one, other) is bool(matched[one] & matched[other]), (one, other)


@pytest.mark.parametrize("subject", ["a", "a.b", "$JS.x-y_z", "a*.b>", "é.ü", "x" * 1024])
def test_a_message_may_have_any_subject_without_wildcards(subject: str) -> None:
    assert check_subject_of_message(subject) == subject
    assert check_filter(subject) == subject
    assert is_literal(subject)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a b", "a\n", "\x7f", "a\x00", "\ud800", None, b"a", 1]
)
def test_what_is_no_subject_is_refused(text: object) -> None:
    for check in (check_subject_of_message, check_filter):
        with pytest.raises(InvalidArgumentError):
            check(text)


def test_a_wildcard_is_part_of_a_filter_and_of_a_subject_only_where_it_is_said() -> None:
    for text in ("*", ">", "a.*", "a.*.b", "a.>"):
        assert check_filter(text) == check_subject_of_message(text, literal_wildcards=True) == text
        assert not is_literal(text)
        with pytest.raises(InvalidArgumentError):
            check_subject_of_message(text)
    for text in ("a.>.b", ">.>"):
        for literal_wildcards in (False, True):
            with pytest.raises(InvalidArgumentError):
                check_subject_of_message(text, literal_wildcards=literal_wildcards)
        with pytest.raises(InvalidArgumentError):
            check_filter(text)


def test_subjects_and_filters_are_bounded() -> None:
    for text in ("x" * (MAX_MESSAGE_SUBJECT_BYTES + 1), "é" * (MAX_MESSAGE_SUBJECT_BYTES // 2 + 1)):
        with pytest.raises(TooLargeError):
            check_subject_of_message(text)
    assert check_filters(["a"] * MAX_FILTERS)
    with pytest.raises(TooLargeError):
        check_filters(["a"] * (MAX_FILTERS + 1))
    with pytest.raises(InvalidArgumentError):
        check_filters("a")


def test_without_filters_everything_matches_and_with_some_only_what_has_a_subject() -> None:
    assert Filters().matches(None)
    assert Filters().matches("a")
    assert not Filters([">"]).matches(None)
    assert not Filters(["a"]).matches(None)
    assert Filters([">", "a"]).is_everything
