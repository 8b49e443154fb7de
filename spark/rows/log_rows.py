"""Reads the log in the bucket for an export: what each object covers, and the changes in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Final

from holdfast.protocol import changes, frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, slot_key
from holdfast.shared_fs.bucket_log.log_object import (
    TAIL_BYTES,
    decode_index,
    decode_slot,
    index_bytes,
)
from holdfast.spark.rows.chained_rows import LoggedChain, leaf_of_exported, linked
from holdfast.spark.rows.planning import Coverage, LogRange, LogWork, order_of
from holdfast.spark.rows.rows import (
    BATCH_ROWS,
    SET,
    ExportedRow,
    Piece,
    RowOrigin,
    Shape,
    rows_of_change,
)
from holdfast.spark.tables.watermarks import OTHER_CONFIG, Watermark

_CONFIGURING: Final = frozenset([changes.CHANGE_CONFIGURE, changes.CHANGE_RESERVE])
#: How many indexes are read at once. S3 takes 25 ms for each.
_PARALLEL: Final = 16


def read_coverage(bucket: Bucket) -> tuple[dict[StoreId, list[Coverage]], list[str]]:
    """Return what the existing log objects cover of each store, and which objects are damaged.

    Raises BucketError.
    """
    keys = [
        slot_key(log.server, log.incarnation, slot)
        for log in list_logs(bucket)
        for slot in log.slots
    ]
    found: dict[StoreId, list[Coverage]] = {}
    damaged: list[str] = []
    with ThreadPoolExecutor(_PARALLEL, "holdfast.index") as threads:
        covers = threads.map(lambda key: _covered(bucket, key), keys)
        for key, covered in zip(keys, covers, strict=True):
            if covered is None:
                damaged.append(key)
                continue
            for store, one in covered:
                found.setdefault(store, []).append(one)
    return found, damaged


def _covered(bucket: Bucket, key: str) -> list[tuple[StoreId, Coverage]] | None:
    try:
        tail = bucket.get_tail(key, TAIL_BYTES)
        needed = index_bytes(key, tail.body, tail.size_bytes)
        if needed > len(tail.body):
            tail = bucket.get_tail(key, needed)
        index = decode_index(key, tail.body, tail.size_bytes)
    except ObjectMissingError:
        # The object was retired since the list was made.
        return []
    except ObjectDamagedError:
        return None
    return [
        (one.store, Coverage(key, tail.size_bytes, *one[1:]))
        for block in index
        for one in block.covered
    ]


class LogRows:
    """The changes of some stores in some log objects, sorted like the table."""

    def __init__(self, bucket: Bucket, works: Sequence[LogWork], layout: TableLayout) -> None:
        """Read all the objects. Raises ObjectMissingError if one was retired,
        ObjectDamagedError, BucketError."""
        self._rows: dict[StoreId, list[tuple[int, str, ExportedRow]]] = {}
        self._marks: dict[StoreId, Watermark] = {}
        #: The ranges that were read of each store that keeps a chain.
        self._chained: dict[StoreId, set[LogRange]] = {}
        self._layout = layout
        for work in works:
            self._read(bucket, work)
        for store, ranges in self._chained.items():
            self._fill(store, ranges)

    def marks(self) -> dict[StoreId, Watermark]:
        """Return how far the changes go in each store. `last_seq` is 0 if nothing was appended, and
        `config` if none configured it."""
        return self._marks

    def pieces(self, run: int) -> Iterator[Piece]:
        """Yield the changes by store, in the order of revisions."""
        for store in sorted(self._rows, key=lambda each: order_of(each, self._layout)):
            # This also sorts by epoch: ranges of an earlier epoch end where the next epoch begins.
            rows = sorted(self._rows[store], key=lambda each: each[2].revision)
            start = 0
            for end in range(1, len(rows) + 1):
                if (
                    end == len(rows)
                    or rows[end][:2] != rows[start][:2]
                    or end - start == BATCH_ROWS
                ):
                    epoch, key, _ = rows[start]
                    origin = RowOrigin(store, epoch, run, key)
                    found = [row for _, _, row in rows[start:end]]
                    yield Piece(origin, Shape.CHANGES, found)
                    start = end

    def _read(self, bucket: Bucket, work: LogWork) -> None:
        _, records = decode_slot(work.key, bucket.get(work.key).body)
        for record in records:
            for wanted in work.ranges.get(record.store, ()):
                if record.epoch != wanted.epoch:
                    continue
                rows = self._rows.setdefault(record.store, [])
                batches = [frames.decode_changes(payload) for payload in record.payloads]
                has_chain = any(batch.chain is not None for batch in batches)
                if has_chain:
                    self._chained.setdefault(record.store, set()).add(wanted)
                for batch in batches:
                    first = len(rows)
                    for number, change in enumerate(batch.changes, batch.previous_revision + 1):
                        if wanted.after < number <= wanted.upto:
                            found = rows_of_change(change, number, batch.time)
                            rows.extend((wanted.epoch, work.key, row) for row in found)
                            # An ephemeral store's record ends at the revision that it reserves.
                            reached = changes.end_of(number - 1, [change])
                            self._note(record.store, wanted.epoch, reached, batch.time, change)
                    if has_chain:
                        self._link(record.store, rows, first, batch, wanted)

    def _link(
        self,
        store: StoreId,
        rows: list[tuple[int, str, ExportedRow]],
        first: int,
        batch: frames.ChangeBatch,
        wanted: LogRange,
    ) -> None:
        """Give the rows of a batch their leaves, and the last one the chain that is told."""
        is_kv = store.kind == StoreKind.KV
        last = None
        for index in range(first, len(rows)):
            epoch, key, row = rows[index]
            if row.operation == SET:
                leaf = leaf_of_exported(row, is_kv=is_kv)
                rows[index] = (epoch, key, linked(row, leaf, None))
                last = index
        end = batch.previous_revision + len(batch.changes)
        if batch.chain is None or end > wanted.upto:
            return
        if last is not None:
            epoch, key, row = rows[last]
            rows[last] = (epoch, key, row._replace(chain=batch.chain))
        mark = self._marks.get(store)
        if not wanted.lacks_chain and mark is not None and mark.revision == end:
            self._marks[store] = mark._replace(chain=batch.chain)

    def _fill(self, store: StoreId, ranges: Iterable[LogRange]) -> None:
        """Find the chain after each row. Raises ObjectDamagedError."""
        rows = sorted(self._rows[store], key=lambda each: each[2].revision)
        filled: list[tuple[int, str, ExportedRow]] = []
        before: LogRange | None = None
        chain: LoggedChain | None = None
        at = 0
        for wanted in sorted(ranges, key=attrgetter("after")):
            if chain is None or before is None or before.upto != wanted.after:
                chain = LoggedChain(wanted.chain, is_beginning=wanted.after == 0)
            before = wanted
            while at < len(rows) and rows[at][2].revision <= wanted.upto:
                epoch, key, row = rows[at]
                filled.append((epoch, key, chain.filled(row, key)))
                at += 1
        # What follows is of records that tell no chain.
        self._rows[store] = filled + rows[at:]

    def _note(
        self, store: StoreId, epoch: int, revision: int, time: int, change: frames.WireChange
    ) -> None:
        before = self._marks.get(store, Watermark(0, 0))
        number = changes.number_of(change)
        is_message = number == changes.CHANGE_SET_MESSAGE
        seq = changes.message_set(change).seq if is_message else 0
        if revision > before.revision:
            self._marks[store] = Watermark(
                *(epoch, revision, max(seq, before.last_seq), max(time, before.time)),
                config=OTHER_CONFIG if number in _CONFIGURING else before.config,
            )
