"""What becomes of the messages of an origin, and how far a source is said to be copied."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.headers import build
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.origins.copying import CopyBatch, Copying
from holdfast.gateway.jetstream.origins.position import (
    OriginId,
    Position,
    cursor_name,
    is_of_source,
)
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import MAX_VALUE_BYTES

NOW_MS = 1_000_000


def copying(**config: Any) -> Copying:
    checked = check_create(ApiStreamConfig.parse({"name": "S", **config}))
    return Copying(checked, checked.origins[0], lambda: NOW_MS)


def message(seq: int, block: bytes = b"", value: bytes = b"v") -> ServedMessage:
    return ServedMessage(seq, "a.b", NOW_MS - 5000, block, value)


MIRROR = {"mirror": {"name": "O"}}
SOURCED = {"sources": [{"name": "O"}]}


def test_a_mirror_keeps_headers_byte_for_byte_but_for_what_speaks_to_a_publish() -> None:
    block = b"NATS/1.0\r\nX:  1\r\nNats-Expected-Stream: O\r\nx: 2\r\nNats-Batch-Id: b\r\n\r\n"
    copy = copying(**MIRROR).copy(message(3, block))
    assert copy.headers == b"NATS/1.0\r\nX:  1\r\nx: 2\r\n\r\n"
    assert (copy.subject, copy.value, copy.msg_id) == ("a.b", b"v", None)
    assert copy.options == {"time_ms": NOW_MS - 5000}


def test_a_sourced_message_has_the_header_of_its_last_origin_alone() -> None:
    copy = copying(**SOURCED).copy(message(3, build({"Nats-Stream-Source": "P 9 > > p"})))
    assert copy.headers == build({"Nats-Stream-Source": "O 3 > > a.b"})
    assert copy.options is None


def test_lifetimes_rollups_and_ids_count_where_the_stream_allows_them() -> None:
    block = build({"Nats-TTL": "20", "Nats-Rollup": "sub", "Nats-Msg-Id": "i"})
    plain = copying(**SOURCED).copy(message(1, block))
    assert (plain.ttl_seconds, plain.msg_id, plain.options) == (None, None, None)
    allowed = {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "duplicate_window": 10**9}
    copy = copying(**SOURCED, **allowed).copy(message(1, block))
    assert (copy.ttl_seconds, copy.msg_id, copy.options) == (20.0, "i", {"rollup": "sub"})
    # A mirror's message goes when its original does.
    mirrored = copying(**MIRROR, **allowed).copy(message(1, block))
    assert (mirrored.ttl_seconds, mirrored.msg_id) == (15.0, None)


@given(
    st.lists(st.integers(1, 5000), unique=True, min_size=1, max_size=50).map(sorted),
    st.integers(1, 40),
)
def test_a_mirrors_batches_fill_each_gap_and_nothing_else(seqs: list[int], next_seq: int) -> None:
    batches = list(copying(**MIRROR).batches([message(seq) for seq in seqs], next_seq))
    stored = [seq for batch in batches for seq in batch.originals]
    filled = [seq for batch in batches for seq in batch.filled]
    wanted = [seq for seq in seqs if seq >= next_seq]
    assert stored == list(range(next_seq, wanted[-1] + 1) if wanted else ())
    assert set(stored) - set(filled) == set(wanted)
    for batch in batches:
        assert 1 <= len(batch.messages) == len(batch.originals) <= 1000
        assert set(batch.filled) <= set(batch.originals)
        assert [each.subject == "" for each in batch.messages] == [
            seq in batch.filled for seq in batch.originals
        ]


def test_batches_are_bounded_and_a_large_value_is_alone() -> None:
    values = [b"x" * 100_000] * 7 + [b"l" * (MAX_VALUE_BYTES + 1)] + [b"y"]
    batches = list(
        copying(**SOURCED).batches(
            [message(seq, value=value) for seq, value in enumerate(values, 1)], 1
        )
    )
    assert [batch.originals for batch in batches] == [[1, 2, 3], [4, 5, 6], [7], [8], [9]]
    assert [batch.end_seq for batch in batches] == [3, 6, 7, 8, 9]


def test_a_batch_can_be_stored_one_by_one() -> None:
    (batch,) = copying(**MIRROR).batches([message(3), message(4)], 2)
    singles = list(batch.singly())
    assert [(each.originals, each.filled) for each in singles] == [
        *(([2], [2]), ([3], []), ([4], [])),
    ]
    assert all(isinstance(each, CopyBatch) and len(each.messages) == 1 for each in singles)


def test_a_position_is_read_as_the_released_format_has_it() -> None:
    literal = b'{"store":"ORDERS.2","created_ms":1700000000000,"seq":42}'
    position = Position(OriginId("ORDERS.2", 1_700_000_000_000), 42)
    assert position.to_bytes() == literal
    assert Position.from_bytes(literal) == position
    for damaged in (b"", b"[]", b"{}", literal.replace(b"42", b'"42"'), literal[:-1]):
        with pytest.raises(MalformedFrameError):
            Position.from_bytes(damaged)


def test_the_cursor_of_a_source_is_its_own_and_no_consumers() -> None:
    sources = [
        {"name": "O"},
        {"name": "O", "filter_subject": "a"},
        {"name": "O", "subject_transforms": [{"src": "a", "dest": "b"}]},
        {"name": "P"},
    ]
    checked = check_create(ApiStreamConfig.parse({"name": "S", "sources": sources}))
    names = {cursor_name(each) for each in checked.sources}
    assert len(names) == len(sources)
    assert all(map(is_of_source, names))
    assert not is_of_source("source")
