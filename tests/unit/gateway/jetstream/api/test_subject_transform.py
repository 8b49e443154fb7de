"""Subjects are transformed as nats-server transforms them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api.subject_transform import SubjectTransform, TransformError


@pytest.mark.parametrize(
    ("source", "destination", "subject", "result"),
    [
        ("a", "b", "a", "b"),
        ("a", "b", "c", None),
        ("a.*", "b.$1", "a.x", "b.x"),
        ("a.*", "b.$1", "a.x.y", None),
        ("*.*", "$2.$1", "x.y", "y.x"),
        ("*.*", "{{wildcard(2)}}.{{ Wildcard( 1 ) }}", "x.y", "y.x"),
        ("a.>", "b.>", "a.x.y", "b.x.y"),
        ("a.*.>", "b.$1.>", "a.x.y.z", "b.x.y.z"),
        (">", "p.>", "a.b", "p.a.b"),
        ("", "p.>", "a.b", "p.a.b"),
        (">", ">", "a.b", "a.b"),
        ("a.*", "b.{{splitFromLeft(1,2)}}", "a.hello", "b.he.llo"),
        ("a.*", "b.{{splitFromRight(1,2)}}", "a.hello", "b.hel.lo"),
        ("a.*", "b.{{splitFromLeft(1,9)}}", "a.hello", "b.hello"),
        ("a.*", "b.{{sliceFromLeft(1,2)}}", "a.hello", "b.he.ll.o"),
        ("a.*", "b.{{sliceFromRight(1,2)}}", "a.hello", "b.h.el.lo"),
        ("a.*", "b.{{sliceFromLeft(1,5)}}", "a.hello", "b.hello"),
        ("a.*", "b.{{sliceFromLeft(1,0)}}", "a.hello", "b.hello"),
        ("a.*", "b.{{split(1,-)}}", "a.-x--y-", "b.x.y"),
        ("a.*", "b.{{split(1,-)}}", "a.--", "b.--"),
        ("a.*", "b.{{left(1,3)}}.{{right(1,3)}}", "a.hello", "b.hel.llo"),
        ("a.*", "b.{{random(1)}}", "a.x", "b.0"),
        ("a", "b.{{random(0)}}", "a", "b.0"),
        ("a.*", "b.{{partition(0,1)}}", "a.x", "b.0"),
        ("a.*", "$x.$", "a.y", "$x.$"),
        # As nats-server 2.15 answers a publish to a stream with this transform.
        ("a.*", "b.{{partition(10,1)}}", "a.foo", "b.3"),
        ("a.*.*", "b.{{partition(10,1,2)}}", "a.foo.bar", "b.0"),
        ("a.>", "b.{{partition(5)}}.>", "a.foo.bar", "b.1.foo.bar"),
    ],
)
def test_a_subject_becomes_another(
    source: str, destination: str, subject: str, result: str | None
) -> None:
    assert SubjectTransform(source, destination).apply(subject) == result


@pytest.mark.parametrize(
    ("source", "destination", "text"),
    [
        ("a b", "c", "invalid subject"),
        ("a", "", "invalid subject"),
        ("a.*", "b.*", "invalid subject"),
        ("a.>", "b", "invalid subject"),
        ("a", "b.>", "invalid subject"),
        ("a", "b..c", "invalid subject"),
        ("a.*", "b.$2", "wildcard index out of range in $2: [2]"),
        ("a.*", "b.$0", "wildcard index out of range in $0: [0]"),
        ("a", "b.{{wildcard(1)}}", "wildcard index out of range in {{wildcard(1)}}: [1]"),
        ("a.*", "{{foo(1)}}", "unknown function in {{foo(1)}}"),
        ("a.*", "{{wildcard}}", "unknown function in {{wildcard}}"),
        ("a.*", "{{split(1)}}", "not enough arguments passed to the function in {{split(1)}}"),
        ("a.*", "{{wildcard()}}", "not enough arguments passed to the function in {{wildcard()}}"),
        ("a.*", "{{left(1,2,3)}}", "too many arguments passed to the function in {{left(1,2,3)}}"),
        ("a.*", "{{left(1,x)}}", "invalid or in the wrong format in {{left(1,x)}}"),
        ("a.*", "{{partition(x,1)}}", "invalid or in the wrong format in {{partition(x,1)}}"),
        ("a.*", "{{partition(9999999999,1)}}", "invalid or in the wrong format"),
        ("a.*", "{{split(1, )}}", "invalid or in the wrong format"),
    ],
)
def test_what_is_no_transform_is_refused_with_the_reason(
    source: str, destination: str, text: str
) -> None:
    with pytest.raises(TransformError) as caught:
        SubjectTransform(source, destination)
    assert text in str(caught.value)


_TOKENS = st.sampled_from(["a", "*", ">", "$1", "{{left(1,2)}}", "{{split(1,-)}}", "{{(", ""])


@given(st.lists(_TOKENS, max_size=4), st.lists(_TOKENS, max_size=4), st.sampled_from(["a", "a.b"]))
def test_noise_is_a_transform_or_an_error(one: list[str], two: list[str], subject: str) -> None:
    try:
        transform = SubjectTransform(".".join(one), ".".join(two))
    except TransformError:
        return
    assert isinstance(transform.apply(subject), str | None)
