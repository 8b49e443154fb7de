"""What is refused before anything is sent, and how the rest is packed."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.client.wire import operations
from holdfast.client.wire.link import Link
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    TooLargeError,
    WrongLastSeqError,
)
from holdfast.protocol.frames import APPEND, BATCH, SET_ENTRY, pack, unpack
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import (
    MAX_DELETE_COUNT,
    MAX_FRAME_OPERATIONS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_MESSAGE_SUBJECT_BYTES,
    MAX_MSG_ID_BYTES,
    MAX_VALUE_BYTES,
)
from holdfast.protocol.messages import Durability

append: Callable[..., Any] = operations.append_operation


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *(
            (partial(append, *arguments), InvalidArgumentError)
            for arguments in (
                *(("text",), (None,)),
                *((b"", headers) for headers in ({"a": 1}, {1: "a"}, ["a"], {"a": "\ud800"})),
                *((b"", None, ""), (b"", None, 7), (b"", None, None, -1), (b"", None, None, True)),
            )
        ),
        *(
            (partial(append, b"", subject=subject), InvalidArgumentError)
            for subject in ("", "a..b", "a.", "a.*", ">", "a b", 7, ["a"], b"a", "\ud800")
        ),
        (lambda: append(b"", subject="x" * (MAX_MESSAGE_SUBJECT_BYTES + 1)), TooLargeError),
        (lambda: append(b"", HeaderBlock(b"no block")), InvalidArgumentError),
        (lambda: append(b"", HeaderBlock(b"NATS/1.0\r\n" + bytes(1 << 16))), TooLargeError),
        (lambda: operations.append_options(-1, None, None), InvalidArgumentError),
        (lambda: operations.append_options(None, "a.*", None), InvalidArgumentError),
        (lambda: operations.append_options(0, "a.>.b", None), InvalidArgumentError),
        (lambda: operations.append_options(None, None, "some"), InvalidArgumentError),
        (lambda: operations.split_value((b"", None, "a", "b")), InvalidArgumentError),
        (lambda: append(b"x" * (MAX_VALUE_BYTES + 1)), TooLargeError),
        (lambda: append(b"", {"a": "x" * MAX_HEADERS_BYTES}), TooLargeError),
        (lambda: append(b"", None, "x" * (MAX_MSG_ID_BYTES + 1)), TooLargeError),
        (lambda: operations.set_message_operation(0, b""), InvalidArgumentError),
        (lambda: operations.set_message_operation(True, b""), InvalidArgumentError),
        (lambda: operations.set_message_operation(1 << 63, b""), InvalidArgumentError),
        (lambda: operations.set_entry_operation("x" * (MAX_KEY_BYTES + 1), b""), InvalidNameError),
        (lambda: operations.set_entry_operation("k", b"", None, -1), InvalidArgumentError),
        (lambda: operations.range_start("start_seq", True), InvalidArgumentError),
        (lambda: operations.range_end("end_seq", 1 << 63), InvalidArgumentError),
        (lambda: operations.delete_messages_operation([1, 0]), InvalidArgumentError),
        (
            lambda: operations.delete_messages_operation(range(1, MAX_DELETE_COUNT + 2)),
            TooLargeError,
        ),
        (lambda: operations.pack_batch([], 1000), InvalidArgumentError),
        (lambda: operations.pack_batch([[APPEND, b"x" * 900]] * 2, 1000), TooLargeError),
        (lambda: operations.pack_batch([[1]] * (MAX_FRAME_OPERATIONS + 1), 10**9), TooLargeError),
        (lambda: operations.checked_durability("soon"), InvalidArgumentError),
        (lambda: operations.time_ms(datetime.datetime(2026, 1, 1)), InvalidArgumentError),
    ],
)
def test_a_wrong_argument_is_refused(call: Callable[[], Any], error: type[HoldfastError]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_any_bytes_are_taken(value: operations.Value) -> None:
    assert operations.append_operation(value) == [APPEND, b"abc"]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_a_packed_append_is_what_packing_gives(size: int) -> None:
    value = bytes(size)
    assert operations.packed_append(value) == pack(operations.append_operation(value))
    assert operations.packed_append(memoryview(value)) == pack(operations.append_operation(value))
    others = ({"a": "b"}, "id", 3)
    assert operations.packed_append(value, *others) == pack(
        operations.append_operation(value, *others)
    )


def test_what_is_not_given_is_not_sent() -> None:
    assert append(b"v") == [APPEND, b"v"]
    assert append(b"v", {}) == [APPEND, b"v"]
    assert append(b"v", {"a": "b"}) == [APPEND, b"v", {"a": "b"}]
    assert append(b"v", None, "id") == [APPEND, b"v", None, "id"]
    assert append(b"v", None, None, 0) == [APPEND, b"v", None, None, 0]


def test_a_subject_and_what_is_expected_of_it_follow_the_rest() -> None:
    packed = operations.packed_append(b"v", None, None, None, None, "a.b")
    assert unpack(packed) == [APPEND, b"v", None, None, None, None, "a.b"]
    options = operations.append_options(3, "a.*", "sub")
    assert append(b"v", {"h": "x"}, "id", 1, 2.5, "a.b", options) == [
        *(APPEND, b"v", {"h": "x"}, "id", 1, 2.5, "a.b", None),
        {"expected_last_subject_seq": 3, "expected_subject": "a.*", "rollup": "sub"},
    ]
    assert operations.append_options(None, None, None) is None
    # KV clients of JetStream purge many keys with one message.
    assert append(b"", subject="a.*", options={"rollup": "sub"})[6] == "a.*"
    with pytest.raises(InvalidArgumentError):
        append(b"", subject="a.*", options={"rollup": "all"})


def test_a_header_block_is_sent_byte_for_byte_and_a_kv_gets_what_is_in_it() -> None:
    block = HeaderBlock(b"NATS/1.0\r\na: 1\r\na: 2\r\nb: 3\r\n\r\n")
    assert append(b"v", block) == [APPEND, b"v", block.block]
    assert operations.set_entry_operation("k", b"v", block)[3] == {"a": "1, 2", "b": "3"}
    assert operations.checked_map(block) == {"a": "1, 2", "b": "3"}


def test_an_item_of_a_batch_may_have_headers_and_a_subject() -> None:
    assert operations.split_value(b"v") == (b"v", None, None)
    assert operations.split_value((b"v", {"a": "b"})) == (b"v", {"a": "b"}, None)
    assert operations.split_value((b"v", None, "a.b")) == (b"v", None, "a.b")


def test_a_batch_is_one_operation() -> None:
    members = [operations.set_entry_operation("k", b"v"), operations.set_entry_operation("l", b"")]
    assert unpack(operations.pack_batch(members, 1000)) == [BATCH, members]
    assert members[0][0] == SET_ENTRY


def test_durability_is_given_as_such_or_by_its_word() -> None:
    assert operations.checked_durability(None) == 0
    assert operations.checked_durability("applied") == 1
    assert operations.checked_durability(Durability.SYNCED) == 2
    # As a number it would be the weakest level.
    with pytest.raises(InvalidArgumentError):
        operations.checked_durability(True)  # type: ignore[arg-type]


def test_times_are_milliseconds_since_the_epoch() -> None:
    zoned = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert operations.time_ms(zoned) == 1_767_225_600_000
    assert operations.time_ms(5) == 5
    assert operations.time_ms(-5) == 0, "before all messages"


def test_an_entry_is_not_taken_for_an_error_though_both_start_with_text() -> None:
    entry = ["too_large", 1, 2, b"value"]
    assert Link.unwrap((entry, 0, Durability.SYNCED))[0] is entry
    with pytest.raises(WrongLastSeqError) as caught:
        Link.unwrap((["wrong_last_seq", {"expected": 1, "actual": 2}], 0, Durability.SYNCED))
    assert caught.value.actual == 2


def test_a_wait_is_a_number_and_may_be_over_or_endless() -> None:
    for seconds in (0, -1.5, 0.1, 10**9, math.inf):
        operations.check_wait("max_wait_seconds", seconds)
    for wrong in (math.nan, "1", None, True):
        with pytest.raises(InvalidArgumentError) as caught:
            operations.check_wait("max_wait_seconds", wrong)  # type: ignore[arg-type]
        assert caught.value.fields["argument"] == "max_wait_seconds"


def test_a_number_beyond_64_bits_is_told_so() -> None:
    with pytest.raises(InvalidArgumentError, match=r"below 2\*\*63"):
        operations.check_seq("seq", 1 << 63)
    with pytest.raises(InvalidArgumentError, match="64 bits"):
        operations.range_start("start_seq", 1 << 63)
