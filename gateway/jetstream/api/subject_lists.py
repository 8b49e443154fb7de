"""Lists of subjects in configurations: how many there may be, and which of them meet. Pure.

A client writes as many subjects into a configuration as fit in a message, and each has to be
compared with all others, in the loop that serves all streams. So lists are bounded by what
comparing them costs. Of literal subjects only equal ones meet, which costs next to nothing; one
with wildcards is compared with every other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from holdfast.gateway.jetstream.api import names
from holdfast.protocol.limits import MAX_FILTERS, MAX_MESSAGE_SUBJECT_BYTES

#: Subjects of a stream, filters of a consumer or of all sources of a stream.
MAX_SUBJECTS: Final = MAX_FILTERS
#: What all comparisons for one request may cost: about 0.1 s.
_MAX_COST: Final = 4_000_000
#: The cost of a comparison, besides the characters of a subject.
_COMPARISON_COST: Final = 16

#: Tells whether a subject meets another one. It does if both are equal; two literal ones that
#: differ never meet.
Meets = Callable[[str, str], bool]


def excess(subjects: Sequence[str]) -> str:
    """Return why these are more than a list may have, "" if they are not."""
    if len(subjects) > MAX_SUBJECTS:
        return f"at most {MAX_SUBJECTS} subjects are supported"
    if any(len(each.encode()) > MAX_MESSAGE_SUBJECT_BYTES for each in subjects):
        return f"subject is too long, maximum allowed is {MAX_MESSAGE_SUBJECT_BYTES} bytes"
    if _cost(subjects, subjects) > _MAX_COST:
        return "too many subjects have wildcards"
    return ""


def excess_between(subjects: Sequence[str], others: Iterable[Sequence[str]]) -> str:
    """Return why these are more than can be compared with other lists, "" if they are not."""
    cost = 0
    for each in others:
        cost += _COMPARISON_COST + _cost(subjects, each) + _cost(each, subjects)
        if cost > _MAX_COST:
            return "too many subjects have wildcards"
    return ""


def first_meeting(subjects: Sequence[str], meets: Meets) -> tuple[str, str] | None:
    """Return the first subject of a list that meets another one, and that one; None if none does.
    """
    counts = Counter(subjects)
    patterns = [index for index, each in enumerate(subjects) if names.has_wildcards(each)]
    are_patterns = frozenset(patterns)
    for index, subject in enumerate(subjects):
        if counts[subject] > 1:
            return subject, subject
        for at in range(len(subjects)) if index in are_patterns else patterns:
            if at != index and meets(subject, subjects[at]):
                return subject, subjects[at]
    return None


def any_meets(subjects: Sequence[str], others: Sequence[str], meets: Meets) -> bool:
    """Return whether any of `subjects` meets any of `others`."""
    if not set(subjects).isdisjoint(others):
        return True
    patterns = [each for each in others if names.has_wildcards(each)]
    return any(
        meets(subject, other)
        for subject in subjects
        for other in (others if names.has_wildcards(subject) else patterns)
    )


def _cost(subjects: Sequence[str], others: Sequence[str]) -> int:
    """Return what it costs to compare those of `subjects` that have wildcards with `others`."""
    count = sum(map(names.has_wildcards, subjects))
    return count and count * (sum(map(len, others)) + _COMPARISON_COST * len(others))
