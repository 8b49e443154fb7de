"""What may be appended, and what rows become."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import frames
from holdfast.protocol.compression import ENCODING_HEADER, compressed_always
from holdfast.protocol.errors import (
    InvalidArgumentError,
    TooLargeError,
    ValueUnreadableError,
)
from holdfast.protocol.limits import MAX_HEADERS_BYTES, MAX_VALUE_BYTES
from holdfast.stream_library.records import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    RECORD_BYTES,
    checked_batch,
    record_from_row,
)


def test_a_batch_is_one_append_for_each_record() -> None:
    batch = checked_batch([b"one", (b"two", {"user": "ada"}), (b"three", {})])
    assert batch.operations == [
        [frames.APPEND, b"one"],
        [frames.APPEND, b"two", {"user": "ada"}],
        [frames.APPEND, b"three"],
    ]
    assert batch.size_bytes == 3 * RECORD_BYTES + len(b"onetwothree" b"userada")
    assert not batch.is_plain
    assert checked_batch([b"one"]).is_plain
    assert checked_batch([bytearray(b"one")]).operations == [[frames.APPEND, b"one"]]


@pytest.mark.parametrize(
    "records",
    [
        [],
        b"one",
        "one",
        ["one"],
        [None],
        [(b"one", "headers")],
        [(b"one", {"user": 1})],
        [(b"one", {"user": "\ud800"})],
        [(b"one", {ENCODING_HEADER: "zstd"})],
    ],
)
def test_what_is_no_batch_is_refused(records: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        checked_batch(records)


@pytest.mark.parametrize(
    "records",
    [
        [b"x" * (MAX_VALUE_BYTES + 1)],
        [b""] * (MAX_BATCH_RECORDS + 1),
        [b"x" * MAX_VALUE_BYTES] * (MAX_BATCH_BYTES // MAX_VALUE_BYTES + 1),
        [(b"one", {"user": "x" * MAX_HEADERS_BYTES})],
    ],
)
def test_what_is_too_large_is_refused(records: Any) -> None:
    with pytest.raises(TooLargeError):
        checked_batch(records)


def test_a_value_that_a_client_has_compressed_is_read() -> None:
    value, headers = compressed_always(b"x" * 5000, {"user": "ada"})
    record = record_from_row([7, 9, 1234, value, headers], "events")
    assert record == (7, b"x" * 5000, {"user": "ada"}, 1234)
    with pytest.raises(ValueUnreadableError, match="offset 7 of events"):
        record_from_row([7, 9, 1234, value[:-1], headers], "events")
