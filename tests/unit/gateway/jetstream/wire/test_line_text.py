"""What may stand in a line: nothing that adds a field or a line to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.jetstream.wire.line_text import (
    all_answerable,
    answerable,
    decoded,
    delivery_fields,
    is_reply_subject,
    is_wire_subject,
    subject_fields,
)
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_PORT_SUBJECTS_BYTES
from tests.support.effort import examples

ACK = "$JS.ACK.S.C.1.2.3.4.5"
TEXTS = st.text(max_size=12) | st.text("a.*> \t\r\n\x0b\x1c\x85\xa0\u2028", max_size=8)


@given(TEXTS, TEXTS, TEXTS, st.lists(st.sampled_from(("q", "r")), max_size=2, unique=True))
@settings(deadline=None, max_examples=examples(400))
def test_fields_are_as_many_as_were_given_or_an_error(
    inbox: str, reply: str, subject: str, groups: list[str]
) -> None:
    try:
        fields = delivery_fields(inbox, ACK + reply, subject, groups)
    except InvalidArgumentError:
        return
    assert not set(fields.decode()) & set("\t\r\n\x0b\x1c\x85\xa0\u2028")
    parts = fields.split(b" ")
    assert len(parts) == 2 + (1 + len(groups) if groups else 0)
    assert is_reply_subject(parts[0].decode())


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB b 0", "a\tb", "\x7f"]
)
def test_what_is_no_subject_goes_nowhere(text: str) -> None:
    assert not is_wire_subject(text)
    with pytest.raises(InvalidArgumentError):
        subject_fields(text, "")
    with pytest.raises(InvalidArgumentError):
        delivery_fields("inbox", ACK, text or " ", ())


@pytest.mark.parametrize("text", ["a", "a.*", ">", "a.>b", "$KV.b.k", "größe.ü", "a@b"])
def test_a_subject_may_have_wildcards_and_any_letters(text: str) -> None:
    assert subject_fields(text, "") == text.encode()
    assert decoded(text.encode()) == text


def test_a_subject_of_a_delivery_needs_the_reply_of_an_ack() -> None:
    assert delivery_fields("i", ACK, "a", ()) == f"i {ACK}@a".encode()
    assert delivery_fields("i", "", "", ("q",)) == b"i | q"
    with pytest.raises(InvalidArgumentError):
        delivery_fields("i", "other", "a", ())
    with pytest.raises(InvalidArgumentError):
        delivery_fields("i", "", "a", ())


def test_subjects_that_make_a_line_too_long_for_nats_server_are_refused() -> None:
    half = "a" * (MAX_PORT_SUBJECTS_BYTES // 2)
    assert subject_fields(half, half[:-1])
    with pytest.raises(InvalidArgumentError):
        subject_fields(half, half)
    assert decoded(b"\xff") == ""


@given(
    st.lists(
        TEXTS.map(str.encode)
        | st.binary(max_size=4)
        | st.sampled_from((b"_INBOX.a.1", b"r", b"a.", b".a", b"a" * MAX_PORT_SUBJECTS_BYTES)),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=None, max_examples=examples(600))
def test_reply_subjects_in_one_piece_are_looked_at_as_each_by_itself(fields: list[bytes]) -> None:
    each = [answerable(field) for field in fields]
    assert all_answerable(fields) == (each if all(each) else None)


def test_many_reply_subjects_are_answerable_and_one_that_is_too_long_is_not() -> None:
    fields = [b"_INBOX.%d.%d" % (number, number) for number in range(500)]
    assert all_answerable(fields) == [field.decode() for field in fields]
    longest = b"a" * MAX_PORT_SUBJECTS_BYTES
    assert all_answerable([*fields, longest]) is not None
    assert all_answerable([*fields, longest + b"a"]) is None
