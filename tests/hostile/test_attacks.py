"""What the attacks are made of: valid operations of every kind, mutations, volleys."""

from __future__ import annotations

import random

import pytest

from holdfast.coordinator.answering import parsing
from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS, MIN_PAYLOAD_BYTES
from tests.hostile import mutation, templates
from tests.hostile.attacks import attacks
from tests.hostile.templates import World
from tests.support.raw_nats import Arrived, publication, published


def world() -> World:
    return World("evil", "victim", incarnations={"s1": "a", "s2": "b"})


def test_there_is_a_template_for_every_operation_and_verb() -> None:
    assert set(templates.OPERATIONS) == set(frames.OPERATION_NAMES)
    assert set(templates.VERBS) == set(parsing._CLIENT_VERBS)
    forged = set(parsing._CLUSTER_VERBS) | set(parsing._OPERATOR_VERBS)
    assert set(templates.FORGED_VERBS) == forged


@pytest.mark.parametrize("number", templates.OPERATIONS)
def test_templates_are_valid_frames(number: int) -> None:
    rng = random.Random(number)
    operations = [templates.operation(number, rng, world()) for _ in range(20)]
    payload = frames.encode_request(b"w", [[1, "s1", 1, 1, 0, operations]])
    _, [group] = frames.decode_request(payload)
    assert len(group.operations) == 20


def test_mutations_differ_from_what_they_were_made_of_and_leave_it_alone() -> None:
    rng = random.Random(1)
    valid = [b"w", [[1, "s1", 1, 1, 0, [[frames.APPEND, b"x", {"a": "b"}]]]]]
    packed = frames.pack(valid)
    mutated = {mutation.pack(mutation.mutate(valid, rng)) for _ in range(300)}
    assert frames.pack(valid) == packed
    assert len(mutated - {packed}) > 250


def test_packed_bytes_go_into_a_frame_as_they_are() -> None:
    body = [1, mutation.Packed(b"\xc1"), {"a": [mutation.Packed(b"\xd4\x05\x00")]}, b"end"]
    assert mutation.pack(body) == b"\x94\x01\xc1\x81\xa1a\x91\xd4\x05\x00\xc4\x03end"


def test_publications_hold_any_bytes() -> None:
    assert publication(b"a.\xff\x0b1", b"\x00", b"r") == b"PUB a.\xff\x0b1 r 1\r\n\x00\r\n"
    assert publication(b"a", b"xy", b"", b"H\r\n") == b"HPUB a 3 5\r\nH\r\nxy\r\n"


def test_what_was_published_is_read_back() -> None:
    data = (
        publication(b"a", b"\x00\r\n", b"r")
        + b"SUB x 1\r\n"
        + publication(b"b\xff", b"", b"", b"H\r\n")
    )
    assert list(published(data)) == [
        Arrived(b"a", b"r", b"", b"\x00\r\n"),
        Arrived(b"b\xff", b"", b"H\r\n", b""),
    ]


@pytest.mark.parametrize("name", attacks())
def test_attacks_come_from_their_seed_and_fit_into_messages(name: str) -> None:
    attack, weight = attacks()[name]
    assert weight > 0
    volley = attack(random.Random(7), world(), b"_INBOX.evil.1")
    assert volley == attack(random.Random(7), world(), b"_INBOX.evil.1")
    assert volley.operations > 0
    assert len(volley.data) < 20 * MIN_PAYLOAD_BYTES


def test_floods_are_as_full_as_frames_may_be() -> None:
    attack, _ = attacks()["flood_of_appends"]
    volley = attack(random.Random(1), world(), b"_INBOX.evil.1")
    assert volley.operations >= MAX_FRAME_OPERATIONS
