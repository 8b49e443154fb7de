"""Lists of subjects: those that cost too much to compare are refused, and what meets is found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import names
from holdfast.gateway.jetstream.api.checks.consumer_checks import check_create as check_consumer
from holdfast.gateway.jetstream.api.checks.consumer_checks import complete
from holdfast.gateway.jetstream.api.checks.source_checks import MAX_SOURCES, check_origins
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.subject_lists import MAX_SUBJECTS, any_meets, first_meeting
from holdfast.protocol.limits import MAX_MESSAGE_SUBJECT_BYTES
from holdfast.protocol.subject_filters import overlaps

_SUBJECTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "*", ">"]), min_size=1, max_size=3).map(".".join),
    max_size=6,
)
MANY = [f"a.{number}" for number in range(MAX_SUBJECTS + 1)]
#: As many as fit in a message of 1 MiB: comparing all of them takes an hour.
WITH_WILDCARDS = [f"{number}.*" for number in range(3000)]
#: The same with few that are long.
LONG = [f"{number}{'.*' * 500}" for number in range(400)]
LIST_OF_WORK = [f"{number}.*" for number in range(350)]
TRANSFORMS = [{"src": f"{number}.*", "dest": f"x{number}.$1"} for number in range(600)]


def _stream(**fields: Any) -> ApiStreamConfig:
    return check_create(ApiStreamConfig.parse({"name": "S"} | fields))


def _consumer(stream: ApiStreamConfig, **fields: Any) -> ApiConsumerConfig:
    asked = {"durable_name": "C", "ack_policy": "explicit"} | fields
    return complete(ApiConsumerConfig.parse(asked), stream)


@given(_SUBJECTS)
def test_what_meets_in_a_list_is_found_as_by_comparing_all(subjects: list[str]) -> None:
    for meets in (overlaps, names.is_subset):
        pairs = itertools.permutations(subjects, 2)
        found = first_meeting(subjects, meets)
        assert (found is not None) == any(meets(one, other) for one, other in pairs)
        assert found is None or meets(*found)


@given(_SUBJECTS, _SUBJECTS)
def test_what_meets_in_two_lists_is_found_as_by_comparing_all(
    subjects: list[str], others: list[str]
) -> None:
    pairs = itertools.product(subjects, others)
    assert any_meets(subjects, others, overlaps) == any(overlaps(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("subjects", "words"),
    [
        (MANY, "at most"),
        (WITH_WILDCARDS, "wildcards"),
        (LONG, "wildcards"),
        (["k" * (MAX_MESSAGE_SUBJECT_BYTES + 1)], "too long"),
        (["é" * (MAX_MESSAGE_SUBJECT_BYTES // 2 + 1)], "too long"),
    ],
    ids=["many", "wildcards", "long with wildcards", "long", "long in bytes"],
)
def test_a_list_that_costs_too_much_is_refused_before_it_is_compared(
    subjects: list[str], words: str
) -> None:
    with pytest.raises(ApiError, match=words):
        _stream(subjects=subjects)
    with pytest.raises(ApiError, match=words):
        _consumer(_stream(), filter_subjects=subjects)
    transforms = [{"src": each, "dest": ""} for each in subjects]
    with pytest.raises(ApiError, match=words):
        _stream(mirror={"name": "O", "subject_transforms": transforms})
    with pytest.raises(ApiError, match=words):
        _stream(sources=[{"name": "O", "subject_transforms": transforms}])


def test_a_list_of_literal_subjects_may_be_long() -> None:
    stream = _stream(subjects=MANY[:-1])
    assert stream.subjects == tuple(MANY[:-1])
    assert len(_consumer(stream, filter_subjects=MANY[:-1]).filters) == MAX_SUBJECTS
    assert _stream(subjects=LIST_OF_WORK).subjects == tuple(LIST_OF_WORK)


def test_the_sources_of_a_stream_share_what_filters_may_cost() -> None:
    halves = [
        {"name": f"O{at}", "subject_transforms": TRANSFORMS[at : at + 300]} for at in (0, 300)
    ]
    assert _stream(sources=halves[:1])
    with pytest.raises(ApiError, match="wildcards"):
        _stream(sources=halves)


def test_a_work_queue_refuses_filters_that_cost_too_much_beside_those_of_others() -> None:
    stream = _stream(retention="workqueue", subjects=[">"], no_ack=True)
    others = {
        f"C{at}": _consumer(stream, durable_name=f"C{at}", filter_subjects=[f"{at}.a", f"{at}.b"])
        for at in range(2000)
    }
    check_consumer(_consumer(stream, filter_subject="a.*"), stream, others)
    with pytest.raises(ApiError, match="unique"):
        check_consumer(_consumer(stream, filter_subject="*.a"), stream, others)
    with pytest.raises(ApiError, match="wildcards"):
        check_consumer(
            _consumer(stream, filter_subjects=[f"*.x{at}" for at in range(300)]), stream, others
        )


@pytest.mark.parametrize("field", ["subject_transform", "republish", "sources"])
def test_a_destination_that_repeats_a_token_without_end_is_refused(field: str) -> None:
    mapping = {"src": "a.*", "dest": ".".join(["$1"] * 2000)}
    value: Any = mapping
    if field == "sources":
        value = [{"name": "O", "subject_transforms": [mapping]}]
    with pytest.raises(ApiError):
        _stream(**{field: value})


def test_origins_that_all_have_the_same_origins_are_each_visited_once() -> None:
    """Three levels of streams, each with all of the next as its sources: 256 ** 3 ways."""
    asked: list[str] = []

    def sources(level: int) -> list[dict[str, Any]]:
        # None of these subjects come back, so that it is no cycle.
        return [
            {"name": f"L{level}-{at}", "filter_subject": f"f{at}"} for at in range(MAX_SOURCES)
        ]

    levels = [_stream(subjects=[f"s{level}"], sources=sources(level + 1)) for level in range(3)]

    def find(name: str) -> ApiStreamConfig | None:
        asked.append(name)
        level = int(name[1])
        return replace(levels[level], name=name) if level < len(levels) else None

    check_origins(levels[0], find)
    assert len(asked) == MAX_SOURCES + len(set(asked))
