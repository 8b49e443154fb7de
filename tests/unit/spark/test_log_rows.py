"""What an export takes from log objects of an ephemeral store: its configuration alone."""

from __future__ import annotations

import json

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_CONFIGURE, CHANGE_RESERVE
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import BY_TENANT
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.spark.rows.log_rows import LogRows, read_coverage
from holdfast.spark.rows.planning import LogRange, LogWork

STORE = StoreId("acme", StoreKind.STREAM, "cursors")
CONFIG = {"ephemeral": True}


def test_a_reservation_advances_the_watermark_to_where_its_record_ends() -> None:
    bucket = Bucket(MemoryBackend())
    log = BucketLog(bucket, "s1", "i1")
    log.begin()
    steps = [(0, 1, [CHANGE_CONFIGURE, CONFIG]), (1, 1000, [CHANGE_RESERVE, CONFIG, 1000, 999])]
    records = [
        LogRecord(STORE, 1, before, end, [frames.encode_changes(1, before, 5, [change])], [])
        for before, end, change in steps
    ]
    log.put(log.prepare(records))
    coverage, damaged = read_coverage(bucket)
    assert damaged == []
    [covered] = coverage[STORE]
    assert (covered.previous_revision, covered.revision) == (0, 1000)
    work = LogWork(covered.key, covered.size_bytes, {STORE: [LogRange(1, 0, 1000)]})
    found = LogRows(bucket, [work], BY_TENANT)
    # Otherwise each later export would read the object again.
    assert found.marks()[STORE].revision == 1000
    rows = [row for piece in found.pieces(1) for row in piece.rows]
    assert [(row.revision, json.loads(row.value or b"")) for row in rows] == [
        (1, CONFIG),
        (2, CONFIG),
    ]
