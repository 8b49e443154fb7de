"""The index of subjects finds what collides, as comparing each pair does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.catalogue.subject_index import SubjectIndex
from holdfast.protocol.subject_filters import overlaps

_TOKENS = st.sampled_from(["a", "b", "*"])


@st.composite
def _subjects(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(_TOKENS, min_size=1, max_size=4))
    return ".".join([*tokens, ">"] if draw(st.booleans()) else tokens)


@given(st.lists(_subjects(), max_size=8), _subjects(), st.data())
def test_it_finds_exactly_the_owners_of_colliding_subjects(
    subjects: list[str], asked: str, data: st.DataObject
) -> None:
    index = SubjectIndex()
    for number, subject in enumerate(subjects):
        index.add(subject, str(number))
    removed = data.draw(st.sets(st.integers(0, max(0, len(subjects) - 1))))
    for number in removed & set(range(len(subjects))):
        index.remove(subjects[number], str(number))

    assert index.colliding(asked) == {
        str(number)
        for number, subject in enumerate(subjects)
        if number not in removed and overlaps(subject, asked)
    }


def test_removing_what_is_not_there_changes_nothing() -> None:
    index = SubjectIndex()
    index.add("a.b", "one")
    index.remove("a.b.c", "one")
    index.remove("a.b", "two")
    assert index.colliding("a.*") == {"one"}
