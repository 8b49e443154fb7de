"""Ack subjects and acks, as clients send them and as strangers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api.acks import (
    AckKind,
    AckSubject,
    ConsumerAck,
    ack_prefix,
    ack_subject,
    parse_ack,
    parse_ack_subject,
)
from holdfast.gateway.jetstream.api.times import HOUR, SECOND

NUMBERS = "1.22.33.1795309323456000000.4"
PARSED = AckSubject("S", "C", 1, 22, 33, 1_795_309_323_456_000_000, 4)


def test_the_subject_of_a_delivery_has_nine_tokens() -> None:
    subject = ack_subject(ack_prefix("S", "C"), 1, 22, 33, 1_795_309_323_456_000_000, 4)
    assert subject == f"$JS.ACK.S.C.{NUMBERS}"
    assert parse_ack_subject(subject) == PARSED


@pytest.mark.parametrize(
    "subject", [f"$JS.ACK._.hash.S.C.{NUMBERS}", f"$JS.ACK.hub.hash.S.C.{NUMBERS}.random.more"]
)
def test_subjects_with_a_domain_are_understood(subject: str) -> None:
    assert parse_ack_subject(subject) == PARSED


@pytest.mark.parametrize(
    "subject",
    [
        *("", "$JS.ACK.S.C", f"$JS.ACK.S.C.{NUMBERS}.more", f"$JS.FC.S.C.{NUMBERS}", "........"),
        *("$JS.ACK.S.C.1.x.3.4.5", "$JS.ACK.S.C.1.-2.3.4.5", "$JS.ACK.S.C.1..3.4.5"),
        *("$JS.ACK.S.C.1.+2.3.4.5", "$JS.ACK.S.C.1. 2.3.4.5", "$JS.ACK.S.C.1.٢.3.4.5"),
        *(
            "$JS.ACK.S.C.1.²." + "3.4.5",
            f"$JS.ACK.S.C.1.{'9' * 21}.3.4.5",
            "$JS.ACK.S.C.1.1_0.3.4.5",
        ),
        f"$JS.ACK.S.C.1.{'9' * 100_000}.3.4.5",
    ],
)
def test_other_subjects_are_none(subject: str) -> None:
    assert parse_ack_subject(subject) is None


@pytest.mark.parametrize(
    ("payload", "ack"),
    [
        (b"", ConsumerAck(AckKind.ACK)),
        (b"+ACK", ConsumerAck(AckKind.ACK)),
        (b"+OK", ConsumerAck(AckKind.ACK)),
        (b"-NAK", ConsumerAck(AckKind.NAK)),
        (b'-NAK {"delay": 5000}', ConsumerAck(AckKind.NAK, delay_ns=5_000)),
        (b'-NAK{"delay":5000,"more":1}', ConsumerAck(AckKind.NAK, delay_ns=5_000)),
        (b"-NAK 1h", ConsumerAck(AckKind.NAK, delay_ns=HOUR)),
        (b"-NAK  1.5s ", ConsumerAck(AckKind.NAK, delay_ns=3 * SECOND // 2)),
        (b"-NAK -5s", ConsumerAck(AckKind.NAK)),
        (b'-NAK {"delay":"5"}', ConsumerAck(AckKind.NAK)),
        (b"-NAK {", ConsumerAck(AckKind.NAK)),
        (b"-NAK \xff", ConsumerAck(AckKind.NAK)),
        (b"-NAK " + b'{"a":' * 100_000, ConsumerAck(AckKind.NAK)),
        (b"+WPI", ConsumerAck(AckKind.PROGRESS)),
        (b"+WPI ", ConsumerAck(AckKind.UNKNOWN)),
        (b"+TERM", ConsumerAck(AckKind.TERM)),
        (b"+TERM  bad input \xff", ConsumerAck(AckKind.TERM, reason="bad input \ufffd")),
        (b"+NXT", ConsumerAck(AckKind.NEXT)),
        (b"+NXT 5", ConsumerAck(AckKind.NEXT, request=b" 5")),
        (b'+NXT {"batch":5}', ConsumerAck(AckKind.NEXT, request=b' {"batch":5}')),
        (b"+ack", ConsumerAck(AckKind.UNKNOWN)),
        (b"hello", ConsumerAck(AckKind.UNKNOWN)),
    ],
)
def test_the_payload_says_what_is_asked(payload: bytes, ack: ConsumerAck) -> None:
    assert parse_ack(payload) == ack


@given(
    st.lists(st.integers(0, (1 << 63) - 1), min_size=5, max_size=5),
    st.text(st.characters(exclude_characters="."), min_size=1, max_size=5),
)
def test_ack_subjects_are_read_as_they_were_written(numbers: list[int], name: str) -> None:
    subject = ack_subject(ack_prefix(name, "C"), *numbers)
    assert parse_ack_subject(subject) == AckSubject(name, "C", *numbers)


@given(st.binary(max_size=30), st.sampled_from([b"", b"-NAK", b"+NXT", b"+TERM", b"-NAK {"]))
def test_noise_raises_nothing(noise: bytes, start: bytes) -> None:
    assert isinstance(parse_ack(start + noise), ConsumerAck)
    parse_ack_subject("$JS.ACK." + noise.decode(errors="replace"))
