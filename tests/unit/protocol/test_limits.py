"""Limits: what the largest of everything adds up to on the wire and in file names."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_DELETE_ENTRIES
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    MAX_DELETE_COUNT,
    MAX_FRAME_OPERATIONS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_MSG_ID_BYTES,
    MAX_NAME_BYTES,
    MAX_VALUE_BYTES,
    MIN_PAYLOAD_BYTES,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.layout import Layout

_HUGE = (1 << 63) - 1
_HEADERS = {"h": "x" * (MAX_HEADERS_BYTES - 16)}
_NAME = "n" * MAX_NAME_BYTES


def test_the_largest_message_fits_in_one_frame_both_ways() -> None:
    append = [frames.APPEND, bytes(MAX_VALUE_BYTES), _HEADERS, "m" * MAX_MSG_ID_BYTES, _HUGE]
    request = frames.encode_request(bytes(32), [[1, _NAME, _HUGE, _HUGE, 1, [append]]])
    change = [1, _HUGE, bytes(MAX_VALUE_BYTES), _HEADERS, "m" * MAX_MSG_ID_BYTES]
    changes = frames.encode_changes(_HUGE, _HUGE, _HUGE, [change])
    assert max(len(request), len(changes)) < MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


def test_the_largest_entry_fits_in_one_frame_both_ways() -> None:
    entry = [frames.SET_ENTRY, "k" * MAX_KEY_BYTES, bytes(MAX_VALUE_BYTES), _HEADERS, _HUGE]
    request = frames.encode_request(bytes(32), [[2, _NAME, _HUGE, _HUGE, 1, [entry]]])
    row = [entry[1], _HUGE, _HUGE, entry[2], _HEADERS]
    outcome = frames.encode_outcome(_HUGE, _HUGE, 3, [[[row], None]])
    reply = frames.encode([[_HUGE, 0, outcome]])
    assert max(len(request), len(reply)) < MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


def test_the_largest_delete_fits_in_one_broadcast() -> None:
    key_bytes = MAX_VALUE_BYTES // MAX_DELETE_COUNT
    keys = [f"{number:0{key_bytes}d}" for number in range(MAX_DELETE_COUNT)]
    changes = frames.encode_changes(_HUGE, _HUGE, _HUGE, [[CHANGE_DELETE_ENTRIES, keys]])
    assert len(changes) < MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


def test_the_answers_to_a_full_frame_of_writes_fit_in_one_frame() -> None:
    results = [[_HUGE, _HUGE, _HUGE, True]] * MAX_FRAME_OPERATIONS
    assert len(frames.encode_outcome(_HUGE, _HUGE, 3, results)) < MIN_PAYLOAD_BYTES // 2


def test_the_longest_store_name_makes_a_file_name_that_every_file_system_takes() -> None:
    for kind in StoreKind:
        path = Layout(Path("/")).store(StoreId("t", kind, _NAME), generation=99_999_999)
        assert len(f"{path.name}-wal") <= 255
