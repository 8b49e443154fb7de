"""Log objects: what was encoded is read back, whole or one store of it; damage is never hidden."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.bucket_log import log_object
from holdfast.shared_fs.bucket_log.log_object import (
    Sort,
    decode_block,
    decode_header,
    decode_index,
    decode_slot,
    encode_fence,
    encode_slot,
    index_bytes,
)
from holdfast.shared_fs.disk.commit_log import LogRecord
from tests.support.effort import examples
from tests.support.log_records import NUMBERS, RECORDS


def record(name: str, revision: int, value: bytes = b"v", epoch: int = 1) -> LogRecord:
    return LogRecord(StoreId("acme", 1, name), epoch, revision - 1, revision, [value], [])


@given(st.lists(RECORDS, max_size=8), NUMBERS, st.text("0123456789abcdef", max_size=32))
@settings(max_examples=examples(100), deadline=None)
def test_every_record_comes_back_and_each_stores_are_in_order(
    records: list[LogRecord], slot: int, put_id: str
) -> None:
    header, found = decode_slot("k", encode_slot("s1", "i1", slot, put_id, records))
    assert header == (Sort.SLOT, "s1", "i1", slot, put_id)
    assert len(found) == len(records)
    for store in {each.store for each in records}:
        assert [each for each in found if each.store == store] == [
            each for each in records if each.store == store
        ]


def test_one_store_is_found_by_the_end_of_the_object_and_its_blocks_alone() -> None:
    records = [
        record(f"s{number}", revision, bytes([number, revision % 256]) * 4096)
        for revision in range(1, 40)
        for number in range(20)
    ]
    body = encode_slot("s1", "i1", 7, "p", records)
    tail = body[-index_bytes("k", body[-64:], len(body)) :]
    blocks = decode_index("k", tail, len(body))
    assert len(blocks) > 3
    wanted = StoreId("acme", 1, "s7")
    mine = [block for block in blocks if any(each.store == wanted for each in block.covered)]
    assert len(mine) < len(blocks)
    found = [
        each
        for block in mine
        for each in decode_block("k", block, body[block.offset : block.offset + block.length])
        if each.store == wanted
    ]
    assert [each.revision for each in found] == list(range(1, 40))
    covered = [each for block in mine for each in block.covered if each.store == wanted]
    assert (covered[0].previous_revision, covered[-1].revision) == (0, 39)


def test_a_store_of_two_epochs_is_covered_by_each() -> None:
    body = encode_slot("s1", "i1", 1, "p", [record("a", 5, epoch=1), record("a", 5, epoch=2)])
    [block] = decode_index("k", body, len(body))
    assert [(each.epoch, each.revision) for each in block.covered] == [(1, 5), (2, 5)]


def test_a_fence_says_whose_end_it_is_and_holds_nothing() -> None:
    header, records = decode_slot("k", encode_fence("s1", "i1", 9, "p"))
    assert header == (Sort.FENCE, "s1", "i1", 9, "p")
    assert records == []


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    body = encode_slot("s1", "i1", 3, "p", [record("a", 1), record("b", 1)])
    for place in range(len(body)):
        spoiled = bytearray(body)
        spoiled[place] ^= 1
        with pytest.raises(ObjectDamagedError):
            decode_slot("k", bytes(spoiled))
    for length in range(len(body)):
        with pytest.raises(ObjectDamagedError):
            decode_slot("k", body[:length])


def test_an_object_of_a_later_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_object, "FORMAT", log_object.FORMAT + 1)
    body = encode_fence("s1", "i1", 3, "p")
    monkeypatch.undo()
    with pytest.raises(ObjectDamagedError, match="later holdfast"):
        decode_header("k", body)
