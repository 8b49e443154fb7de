"""Subjects of messages, and filters that select them.

A subject is tokens joined by dots. A token is text without spaces and control characters; in the
subject of a message it is neither `*` nor `>`. A filter is a subject in which the token `*` stands
for any one token and, at the end, `>` for one or more, as in NATS.

Pure. Matching takes time in proportion to the subject and to each filter, whatever a peer sends:
there is nothing to backtrack over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.limits import MAX_FILTERS, MAX_MESSAGE_SUBJECT_BYTES

#: Matches every subject.
EVERYTHING: Final = ">"
_ONE: Final = "*"
_REST: Final = ">"
_TOKEN: Final = r"[^\x00-\x20\x7f.]+"
_TOKENS: Final = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")


def check_subject_of_message(subject: Any, *, literal_wildcards: bool = False) -> str:
    """Return the subject of a message. With `literal_wildcards` it may have the form of a filter.
    Raises InvalidArgumentError, TooLargeError."""
    checked = _check("subject", subject)
    if not is_literal(checked):
        if not literal_wildcards:
            raise InvalidArgumentError(argument="subject", reason="it has a wildcard")
        check_filter(checked)
    return checked


def check_filter(wanted: Any) -> str:
    """Return a filter. Raises InvalidArgumentError, TooLargeError."""
    checked = _check("filter", wanted)
    if _REST in checked and _REST in checked.split(".")[:-1]:
        raise InvalidArgumentError(argument="filter", reason="only its last token may be >")
    return checked


def check_filters(filters: Any) -> list[str]:
    """Return a list of filters. Raises InvalidArgumentError, TooLargeError."""
    if type(filters) is not list:
        raise InvalidArgumentError(argument="filters", reason="must be a list")
    if len(filters) > MAX_FILTERS:
        raise TooLargeError(what="filters", size=len(filters), limit=MAX_FILTERS)
    return [check_filter(each) for each in filters]


def is_literal(wanted: str) -> bool:
    """Tell if a filter has no wildcard, and so matches one subject alone."""
    if _ONE not in wanted and _REST not in wanted:
        return True
    tokens = wanted.split(".")
    return _ONE not in tokens and _REST not in tokens


def prefix_of(wanted: str) -> str:
    """Return how every subject that a filter matches begins: its text up to the first wildcard,
    with the dot; all of it if it has none."""
    found: list[str] = []
    for token in wanted.split("."):
        if token in (_ONE, _REST):
            return "".join(f"{each}." for each in found)
        found.append(token)
    return wanted


def matches(wanted: str, subject: str) -> bool:
    """Tell if a filter matches a subject."""
    if wanted in (EVERYTHING, subject):
        return True
    tokens, given = wanted.split("."), subject.split(".")
    if tokens[-1] == _REST:
        tokens.pop()
        if len(given) <= len(tokens):
            return False
        given = given[: len(tokens)]
    return len(tokens) == len(given) and all(
        token in (_ONE, each) for token, each in zip(tokens, given, strict=True)
    )


def overlaps(one: str, other: str) -> bool:
    """Tell if there are subjects that both filters match."""
    ones, others = one.split("."), other.split(".")
    for mine, theirs in zip(ones, others, strict=False):
        if _REST in (mine, theirs):
            return True
        if mine != theirs and _ONE not in (mine, theirs):
            return False
    return len(ones) == len(others)


class Filters:
    """Several filters as one: matches what any of them matches. Without filters it matches
    everything."""

    __slots__ = ("_pattern", "is_everything", "literals", "patterns")

    def __init__(self, filters: Iterable[str] = ()) -> None:
        """The filters are checked already."""
        given = dict.fromkeys(filters)
        #: Every subject matches.
        self.is_everything = not given or EVERYTHING in given
        #: The filters without wildcards: each is one subject.
        self.literals = frozenset(each for each in given if is_literal(each))
        #: The others.
        self.patterns = tuple(each for each in given if each not in self.literals)
        self._pattern = None
        if self.patterns and not self.is_everything:
            self._pattern = re.compile("|".join(map(_expression, self.patterns)), re.DOTALL)

    def matches(self, subject: str | None) -> bool:
        """Tell if a message with this subject matches; None is that of a message without one,
        which only `is_everything` without any filter matches."""
        if subject is None:
            return self.is_everything and not self.patterns
        if self.is_everything or subject in self.literals:
            return True
        return self._pattern is not None and self._pattern.fullmatch(subject) is not None


def _expression(wanted: str) -> str:
    tokens = wanted.split(".")
    last = len(tokens) - 1
    return r"\.".join(
        ".+" if token == _REST and index == last else "[^.]+" if token == _ONE else re.escape(token)
        for index, token in enumerate(tokens)
    )


def _check(argument: str, text: Any) -> str:
    if type(text) is not str or _TOKENS.fullmatch(text) is None:
        reason = f"{text!r:.80} is not tokens of printable characters joined by dots"
        raise InvalidArgumentError(argument=argument, reason=reason)
    try:
        size_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(argument=argument, reason="not UTF-8") from error
    if size_bytes > MAX_MESSAGE_SUBJECT_BYTES:
        raise TooLargeError(what=argument, size=size_bytes, limit=MAX_MESSAGE_SUBJECT_BYTES)
    return text
