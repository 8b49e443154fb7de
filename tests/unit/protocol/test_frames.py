"""Frames: every encoder round-trips, and no bytes whatever make a decoder fail in another way than
by the protocol's own errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.protocol import changes, frames
from holdfast.protocol.errors import (
    HoldfastError,
    MalformedFrameError,
    ProtocolError,
    StoreDamagedError,
    UnsupportedVersionError,
    WrongLastSeqError,
)
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS, MAX_NESTING
from holdfast.protocol.messages import Ack, ChangeKind, Durability, LargeValue
from tests.support.effort import examples

NUMBERS = st.integers(0, (1 << 63) - 1)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=8)
    | st.binary(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
OPERATIONS = st.lists(VALUES, max_size=4).map(lambda rest: [77, *rest])
GROUPS = st.tuples(
    st.integers(), st.text(max_size=8), NUMBERS, NUMBERS, st.integers(),
    st.lists(OPERATIONS, min_size=1, max_size=4),
).filter(lambda group: abs(group[0]) < 1 << 63 and abs(group[4]) < 1 << 63)  # fmt: skip
CHANGES = st.lists(st.lists(VALUES, min_size=1, max_size=4), max_size=4)
SOME_GROUP = (1, "a.b", 3, 2, 0, [[1, b"value"]])
DECODERS: list[Callable[[bytes], Any]] = [
    frames.decode,
    frames.decode_request,
    frames.decode_outcome,
    frames.decode_changes,
    frames.unpack,
]


@given(st.binary(min_size=1, max_size=32), st.lists(GROUPS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=examples(150))
def test_a_request_comes_back_as_it_was(writer: bytes, groups: list[tuple[Any, ...]]) -> None:
    groups = [(*group[:2], max(group[2:4]), min(group[2:4]), *group[4:]) for group in groups]
    decoded_writer, decoded = frames.decode_request(frames.encode_request(writer, groups))
    assert decoded_writer == writer
    assert [tuple(group) for group in decoded] == groups


@given(NUMBERS, NUMBERS, st.integers(0, 3), st.lists(VALUES, max_size=5))
@settings(deadline=None, max_examples=examples(100))
def test_an_outcome_comes_back_as_it_was(
    epoch: int, time: int, durability: int, results: list[Any]
) -> None:
    outcome = frames.encode_outcome(epoch, time, durability, results)
    assert frames.decode_outcome(outcome) == (epoch, time, durability, results)


@given(NUMBERS, NUMBERS, NUMBERS, CHANGES)
@settings(deadline=None, max_examples=examples(100))
def test_changes_come_back_as_they_were(
    epoch: int, previous_revision: int, time: int, changes: list[Any]
) -> None:
    payload = frames.encode_changes(epoch, previous_revision, time, changes)
    assert frames.decode_changes(payload) == (epoch, previous_revision, time, changes, None)


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "error"), VALUES))
@settings(deadline=None, max_examples=examples(100))
def test_a_control_message_comes_back_as_it_was(fields: dict[str, Any]) -> None:
    assert frames.decode_control(frames.encode_control(**fields)) == fields


def test_a_refusal_is_raised_on_the_other_side() -> None:
    error = StoreDamagedError(store="s", reason="r")
    with pytest.raises(StoreDamagedError) as caught:
        frames.decode_control(frames.encode_control_error(error))
    assert caught.value.fields == error.fields


@pytest.mark.parametrize("fields", [[], [1], 5, "x", {1: 2}, {"self": 1}, None])
def test_a_refusal_of_any_shape_is_still_one_of_our_errors(fields: object) -> None:
    with pytest.raises(HoldfastError):
        frames.decode_control(frames.encode({"error": "wrong_last_seq", "fields": fields}))


def test_the_element_of_a_reply_that_refuses_carries_code_and_fields() -> None:
    error = WrongLastSeqError(expected=1, actual=2)
    assert frames.error_result(4, error) == [4, 1, "wrong_last_seq", {"expected": 1, "actual": 2}]


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@given(data=st.binary(max_size=60) | VALUES.map(frames.encode) | VALUES.map(frames.pack))
@example(data=b"\x01" + b"\x91" * 5000)
@example(data=frames.encode({b"k": 1}))
@example(data=b"\x01\x81\x91\x01\x02")
@example(data=b"\x01\xdd\xff\xff\xff\xff")
@example(data=b"\x01\xd9\x02\xff\xfe")
@settings(deadline=None, max_examples=examples(150))
def test_no_bytes_make_a_decoder_fail_in_its_own_way(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    try:
        decode(data)
    except ProtocolError:
        return


@given(st.data())
@settings(deadline=None, max_examples=examples(200))
def test_a_request_with_flipped_bytes_is_a_request_or_refused(data: st.DataObject) -> None:
    payload = bytearray(frames.encode_request(b"writer", [SOME_GROUP, SOME_GROUP]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, groups = frames.decode_request(bytes(payload))
    except ProtocolError:
        return
    for group in groups:
        assert 0 <= group.first_unacked <= group.counter < 1 << 63
        assert all(type(operation[0]) is int for operation in group.operations)


@given(st.binary(max_size=40) | VALUES.map(frames.encode))
@settings(deadline=None, max_examples=examples(150))
def test_no_bytes_make_a_control_message_fail_in_its_own_way(data: bytes) -> None:
    try:
        frames.decode_control(data)
    except HoldfastError:
        return


@given(st.lists(VALUES, max_size=5) | VALUES)
@settings(deadline=None, max_examples=examples(150))
def test_no_change_of_a_wrong_shape_passes_for_one(wire: Any) -> None:
    try:
        change = changes.change_from_wire(wire, 5, 6)
    except ProtocolError:
        return
    assert change.kind in ChangeKind


def test_an_empty_payload_and_another_version_are_told_apart() -> None:
    with pytest.raises(MalformedFrameError):
        frames.decode(b"")
    for version in (0, 2, 255):
        with pytest.raises(UnsupportedVersionError) as caught:
            frames.decode(bytes([version]) + frames.pack([]))
        assert (caught.value.found, caught.value.known) == (version, frames.PROTOCOL_VERSION)


@pytest.mark.parametrize(
    "group",
    [
        *((True, "a", 1, 1, 0, [[1]]), (1, b"a", 1, 1, 0, [[1]]), (1, "a", "1", 1, 0, [[1]])),
        *((1, "a", 1, -1, 0, [[1]]), (1, "a", 1, 2, 0, [[1]]), (1, "a", 1 << 63, 1, 0, [[1]])),
        *((1, "a", -1, -1, 0, [[1]]), (1, "a", 1, 1, None, [[1]]), (1, "a", 1, 1, 0)),
        *(
            (1, "a", 1, 1, 0, operations)
            for operations in ([], [[]], [["1"]], [[True]], [1], {"x": 1})
        ),
        *(None, {}),
    ],
)
def test_a_group_of_a_wrong_shape_is_refused(group: object) -> None:
    with pytest.raises(MalformedFrameError):
        frames.decode_request(frames.encode([b"w", [group]]))


@pytest.mark.parametrize("writer", [b"", bytes(33), "text", 5, None])
def test_a_writer_is_1_to_32_bytes(writer: object) -> None:
    with pytest.raises(MalformedFrameError):
        frames.decode_request(frames.encode([writer, [SOME_GROUP]]))


def test_a_frame_holds_a_bounded_number_of_operations_also_inside_batches() -> None:
    append = [frames.APPEND, b""]
    batch = [frames.BATCH, [append] * (MAX_FRAME_OPERATIONS // 2)]
    empty = [frames.BATCH, []]

    def decode(*operations: Any) -> None:
        frames.decode_request(frames.encode([b"w", [(1, "a", 1, 1, 0, operations)]]))

    decode(*[append] * MAX_FRAME_OPERATIONS)
    decode(batch, batch)
    most = MAX_FRAME_OPERATIONS
    for operations in ([append] * (most + 1), [batch, batch, append], [empty] * (most + 1)):
        with pytest.raises(MalformedFrameError):
            decode(*operations)


def test_what_a_later_version_adds_at_the_end_is_ignored() -> None:
    request = frames.encode([b"w", [[*SOME_GROUP, "later"]], "later"])
    assert frames.decode_request(request)[1] == [SOME_GROUP]
    assert frames.decode_outcome(frames.pack([1, 2, 3, [], "later"])) == (1, 2, 3, [])
    assert frames.decode_changes(frames.encode([1, 2, 3, [], None, "later"])) == (1, 2, 3, [], None)


def test_chains_come_back_as_they_were_and_malformed_ones_are_refused() -> None:
    one, other = bytes(32), b"c" * 32
    run = frames.Run(7, 9, 2, one + other)
    outcome = frames.decode_outcome(frames.encode_outcome(1, 5, 2, run))
    assert outcome.results == run
    acks = run.acks(5, Durability.SYNCED)
    assert [(ack.seq, ack.chain) for ack in acks] == [(7, one), (8, other)]
    assert run.part(1, 1).acks(5, Durability.SYNCED) == acks[1:]
    assert frames.decode_changes(frames.encode_changes(1, 2, 3, [], one)).chain == one
    for chains in (one, b"", [], 7, "text", one + other + b"x"):
        packed = frames.pack([1, 5, 2, None, 7, 9, 2, chains])
        if not chains:
            assert frames.decode_outcome(packed).results == frames.Run(7, 9, 2)
            continue
        with pytest.raises(MalformedFrameError):
            frames.decode_outcome(packed)
    for chain in (b"short", [], 7, "text"):
        with pytest.raises(MalformedFrameError):
            frames.decode_changes(frames.encode([1, 2, 3, [], chain]))


def test_each_change_becomes_what_applications_see() -> None:
    def seen(*wire: Any) -> Any:
        return changes.change_from_wire(list(wire), 9, 1000)

    message = seen(changes.CHANGE_SET_MESSAGE, 4, b"v", {"h": "x"}, "id").message
    assert message == (4, b"v", {"h": "x"}, 1000, 9, None, None)
    assert seen(changes.CHANGE_SET_MESSAGE, 4, b"v", None, "id").message.headers == {}
    assert seen(changes.CHANGE_SET_ENTRY, "k", b"v").entry == ("k", b"v", {}, 9, 1000, None)
    assert seen(changes.CHANGE_DELETE_MESSAGES, [1, 2]).seqs == (1, 2)
    assert seen(changes.CHANGE_DELETE_ENTRIES, ["a"]).keys == ("a",)
    assert seen(changes.CHANGE_TRIM, 7).end_seq == 7
    assert seen(changes.CHANGE_CLEAR).kind is ChangeKind.TRIM
    large = LargeValue(bytes(16), 5 << 20, bytes(32), 7)
    for wire in (
        [changes.CHANGE_SET_MESSAGE, 4, list(large)],
        [changes.CHANGE_SET_ENTRY, "k", list(large)],
    ):
        change = seen(*wire)
        row = change.message or change.entry
        assert (row.value, row.large, row.size_bytes) == (b"", large, 5 << 20)


@pytest.mark.parametrize(
    "wire",
    [
        None, [], [bytes(16), 1, bytes(32)], [bytes(15), 1, bytes(32), 0], ["", 1, bytes(32), 0],
        [bytes(16), 0, bytes(32), 0], [bytes(16), 1 << 60, bytes(32), 0], [bytes(16), 1, b"", 0],
        [bytes(16), 1, bytes(32), -1], [bytes(16), 1, bytes(32), 1 << 32], [bytes(16), 1.0,
        bytes(32), 0],
    ],
)  # fmt: skip
def test_what_cannot_stand_for_a_large_value_is_malformed(wire: Any) -> None:
    with pytest.raises(MalformedFrameError):
        frames.large_value_from_wire(wire)
    with pytest.raises(MalformedFrameError):
        changes.change_from_wire([changes.CHANGE_SET_MESSAGE, 1, wire], 1, 1)


def test_operation_numbers_say_if_they_read_or_write() -> None:
    reads = {number for number in frames.OPERATION_NAMES if number >= frames.FIRST_READ}
    assert {frames.OPERATION_NAMES[number] for number in reads} == {
        "get", "get_all", "head", "changes", "config", "upload", "read_chunk", "consumers",
        "get_lasts", "subjects", "count", "gaps", "cursors", "history", "chain",
    }  # fmt: skip


def test_a_run_stands_for_consecutive_results() -> None:
    outcome = frames.decode_outcome(frames.encode_outcome(3, 1000, 2, frames.Run(7, 9, 3)))
    assert outcome == (3, 1000, 2, frames.Run(7, 9, 3))
    acks = frames.Run(7, 9, 2).acks(1000, Durability.SYNCED)
    assert acks == [Ack(7, 9, 1000, Durability.SYNCED), Ack(8, 10, 1000, Durability.SYNCED)]
    assert all(type(ack) is Ack for ack in acks)
    assert [ack.seq for ack in frames.Run(0, 9, 2).acks(1000, Durability.SYNCED)] == [None, None]


@pytest.mark.parametrize("run", [[], [1, 2], [1, 2, 0], [1, 2, 1 << 40], [1, "2", 3], [1, 2, None]])
def test_a_run_that_makes_no_sense_is_malformed(run: list[object]) -> None:
    with pytest.raises(MalformedFrameError):
        frames.decode_outcome(frames.pack([1, 2, 3, None, *run]))


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\xd4\x05x", id="extension"),
        pytest.param(b"\xc7\x00\x07", id="empty extension"),
        pytest.param(b"\xd6\xff\x00\x00\x00\x01", id="timestamp"),
        pytest.param(b"\x81\x01\x02", id="int key"),
        pytest.param(b"\x81\x91\x01\x02", id="list key"),
        pytest.param(b"\xa3\xed\xa0\x80", id="surrogate"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="announced"),
        pytest.param(b"\x91" * 2000 + b"\xc0", id="2000 deep"),
        pytest.param(b"\xc1", id="no msgpack"),
    ],
)
def test_what_no_peer_of_ours_sends_is_malformed(packed: bytes) -> None:
    for whole in (packed, b"\x92\xa1w" + packed):
        with pytest.raises(MalformedFrameError):
            frames.decode(b"\x01" + whole)


def test_arrays_and_maps_within_each_other_are_counted_to_a_depth() -> None:
    value: Any = None
    for depth in range(1, 2000):
        value = [value] if depth % 2 else {"k": value}
        if depth <= MAX_NESTING:
            assert frames.check_nesting(value) == depth + depth // 2
        elif depth in (MAX_NESTING + 1, 500, 1999):
            with pytest.raises(MalformedFrameError):
                frames.check_nesting(value)


def test_arrays_of_plain_values_are_counted_together_and_not_deeper_than_allowed() -> None:
    members = [[1, b"v", None], ["a"], []]
    assert frames.check_nesting(members) == 7
    assert frames.check_nesting([40, members]) == 9
    assert frames.check_nesting([40, [*members, [{"k": [1]}]]]) == 14
    assert frames.check_nesting([], 1) == 0
    assert frames.check_nesting(members, 2) == 7
    for value in (members, [[]]):
        with pytest.raises(MalformedFrameError):
            frames.check_nesting(value, 1)


def test_a_server_makes_no_room_for_more_than_a_frame_may_hold() -> None:
    announced = b"\xdd" + (1 << 20).to_bytes(4, "big")
    with pytest.raises(MalformedFrameError, match="exceeds max_array_len"):
        frames.decode_request(b"\x01\x92\xc4\x01w" + announced + bytes(1 << 20))


def test_a_control_message_nested_a_thousand_deep_is_malformed() -> None:
    payload = b"\x01\x81\xa6server" + b"\x91" * 1000 + b"\xc0"
    with pytest.raises(MalformedFrameError, match="too deep"):
        frames.decode_control(payload)


@pytest.mark.parametrize("size", [0, 1, 0xFF, 0x100, 0xFFFF, 0x1_0000, 0x1_0001])
def test_bytes_in_parts_are_packed_as_ever(size: int) -> None:
    value = bytes(size)
    assert b"".join(frames.packed_in_parts(value)) == frames.pack(value)


@pytest.mark.parametrize("chain", [None, bytes(32)])
@pytest.mark.parametrize("size", [0, frames.MAX_COPIED_BYTES - 1, frames.MAX_COPIED_BYTES, 300_000])
def test_large_changes_are_the_same_bytes(size: int, chain: bytes | None) -> None:
    changes = [[10, bytes(16), 1 << 40, bytes(size), 7], [1, 2, b"v", {"h": "x"}, None]] * 2
    arguments = (1 << 40, 300, 1 << 41, changes, chain)
    assert frames.encode_large_changes(*arguments) == frames.encode_changes(*arguments)


def test_a_part_of_a_file_is_packed_without_a_copy_of_its_own() -> None:
    whole = bytes(300_000)
    row = (10, b"id", 0, memoryview(whole)[1000:])
    assert b"".join(frames.row_in_parts(row)) == frames.pack(row)
