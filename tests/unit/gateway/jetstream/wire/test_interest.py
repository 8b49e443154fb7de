"""The interest of an account: what it says of a subject, and whom it tells."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.jetstream.wire import interest as module
from holdfast.gateway.jetstream.wire.interest import Interest, InterestTable
from tests.support.effort import examples

TOKENS = ("a", "b", "c")
SUBJECTS = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]),
    st.lists(st.sampled_from((*TOKENS, "*")), min_size=1, max_size=4),
    st.sampled_from(([], [">"])),
) | st.just(">")
GROUPS = st.sampled_from(("", "", "q", "r"))


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription of `pattern` gets what is sent to `subject`."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        want in ("*", token) for want, token in zip(wanted, tokens, strict=True)
    )


@given(
    st.lists(st.tuples(st.booleans(), PATTERNS, GROUPS), max_size=20),
    st.lists(SUBJECTS, min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=examples(300))
def test_a_table_says_what_the_list_of_subscriptions_says(
    steps: list[tuple[bool, str, str]], subjects: list[str]
) -> None:
    table, known = InterestTable(), set()
    for began, pattern, group in steps:
        if began:
            known.add((pattern, group))
            table.add(pattern, group)
        else:
            known.discard((pattern, group))
            table.remove(pattern, group)
    for subject in subjects:
        covering = [(pattern, group) for pattern, group in known if matches(pattern, subject)]
        assert table.groups(subject) == {group for _, group in covering if group}
        apart = [(pattern, group) for pattern, group in covering if pattern != ">"]
        assert table.has(subject) == bool(apart)
        assert table.has_plain(subject) == any(not group for _, group in apart)


@given(
    st.lists(st.tuples(st.booleans(), PATTERNS, GROUPS), max_size=20),
    st.lists(SUBJECTS, min_size=1, max_size=5),
    st.integers(0, 20),
)
@settings(deadline=None, max_examples=examples(300))
def test_whoever_watches_hears_of_each_change_once_over_a_reconnect_too(
    steps: list[tuple[bool, str, str]], subjects: list[str], reconnect_at: int
) -> None:
    interest = Interest("hf")
    heard: list[bool] = []
    watchers = [interest.watch(subject, heard.append) for subject in subjects]
    said = dict.fromkeys(range(len(subjects)), False)
    for number, (began, pattern, group) in enumerate(steps):
        told = interest.apply(began, pattern, group)
        if number == reconnect_at:
            # A new connection on which only this is left.
            interest.begin()
            assert interest.apply(True, pattern, group) == []
            told += interest.complete()
        for watcher in told:
            index = watchers.index(watcher)
            assert Counter(told)[watcher] <= 2
            said[index] = watcher.interested
        for index, subject in enumerate(subjects):
            assert said[index] == interest.has(subject)


def test_a_closed_watch_hears_nothing_and_leaves_nothing_behind() -> None:
    interest = Interest("hf")
    first, second = interest.watch("a.b", print), interest.watch("a.b", print)
    first.close()
    first.close()
    assert interest.apply(True, "a.*", "") == [second]
    second.close()
    assert interest.apply(False, "a.*", "") == []
    assert not interest._watchers and not interest._watched.children


@pytest.mark.parametrize(
    "subject", ["$LDS.x", "_GR_.a.b.c", "$SYS.REQ.USER.INFO", "$JS.API.INFO", "hf.t.srv.s1"]
)
def test_what_is_no_inbox_is_not_kept(subject: str) -> None:
    interest = Interest("hf")
    interest.apply(True, subject, "")
    assert not interest.has(subject)


@pytest.mark.parametrize("subject", ["_INBOX.a", "deliver", "hf.t.js.gw.g1", "hfx.a", "$KV.a.b"])
def test_what_may_be_one_is_kept(subject: str) -> None:
    interest = Interest("hf")
    interest.apply(True, subject, "")
    assert interest.has(subject)


def test_with_more_than_can_be_kept_everything_has_interest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_INTEREST_SUBJECTS", 2)
    interest = Interest("hf")
    watcher = interest.watch("z", print)
    assert interest.apply(True, "a", "") == interest.apply(True, "b.*", "") == []
    assert interest.apply(True, "c", "") == [watcher] and watcher.interested
    assert interest.has("never.seen") and interest.overflowed
    interest.begin()
    interest.apply(True, "a", "")
    assert interest.complete() == [watcher] and not interest.has("never.seen")


def test_a_pattern_of_two_thousand_tokens_is_one_like_others() -> None:
    interest = Interest("hf")
    subject = ".".join(["a"] * 2000)
    watcher = interest.watch(subject, print)
    assert interest.apply(True, ".".join(["*"] * 2000), "") == [watcher]
    assert interest.apply(False, ".".join(["*"] * 2000), "") == [watcher]
    assert interest.apply(True, "a.>", "q") == [watcher]
