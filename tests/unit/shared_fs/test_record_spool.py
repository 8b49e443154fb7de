"""Records that are more than memory should hold wait in a file, and are the same when they come
back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.record_spool import RecordSpool

STORE = StoreId("acme", StoreKind.STREAM, "notes")


@given(st.lists(st.lists(st.binary(max_size=9), max_size=3), max_size=8), st.integers(0, 40))
def test_records_come_back_as_they_were(contents: list[list[bytes]], held_bytes: int) -> None:
    with RecordSpool(held_bytes) as spool:
        kept = [
            spool.keep(LogRecord(STORE, 1, number, number + 1, payloads, []))
            for number, payloads in enumerate(contents)
        ]
        for record, payloads in reversed(list(zip(kept, contents, strict=True))):
            assert list(record.payloads) == payloads
            assert len(record.payloads) == len(payloads)
            assert [record.payloads[index] for index in range(len(payloads))] == payloads
            assert list(record.payloads[1:]) == payloads[1:]


def test_what_waits_in_the_file_is_gone_with_the_spool() -> None:
    with RecordSpool(3) as spool:
        small, large = (
            spool.keep(LogRecord(STORE, 1, 0, 1, [payload], [])) for payload in (b"abc", b"d")
        )
    assert list(small.payloads) == [b"abc"]
    with pytest.raises(ValueError, match="closed"):
        list(large.payloads)
