"""`df.write.format("holdfast")` and `df.writeStream.format("holdfast")`: appends rows to streams,
or sets the keys of kvs.

`options.py` says which stores. The columns are `value` (binary or string, required); `store`,
unless an option names one store for all rows; if there is such, `headers` (map<string, string>);
for streams, if there is such, `subject` (string); for kvs `key` (string, required) and, if there is
such, `ttl_seconds` (double). Of a kv, a null `value` deletes the key. Nothing else may be null but
headers, subject and ttl. Other columns of the source are ignored, so that what was read can be
written.

Exactly once: each partition of each batch is in the stores once, however often its task is retried
or the batch is run again; `stream_output.py` and `kv_output.py` describe how. The identity of a
batch is:

- in a streaming query, the query's id, which its checkpoint keeps, and the number of the batch;
- in a batch write, the option `query`: repeating the name completes the first write, and writes
  nothing if that was complete. A write without a name is new each time.

A batch that runs again must have the same rows in the same order in each partition. Files, tables
and streams give the same order; after a shuffle use `sortWithinPartitions`. Otherwise
RowsChangedError is raised.

Rows of one partition keep their order within a store, so of several rows with one key the last one
stays. Rows of several partitions have no order. A failed batch may have written some of its rows:
stores show each chunk at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.client import Client
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import StoreKind, check_key, check_store
from holdfast.spark.columns import COLUMNS
from holdfast.spark.event_loop import connecting, run_connected, running_loop
from holdfast.spark.failures import briefly
from holdfast.spark.options import WriteOptions
from holdfast.spark.sink.chunks import BatchId, Chunker, EntryRow, OutputRow, RowChunk
from holdfast.spark.sink.ledger import MARKS, Ledger
from holdfast.spark.sink.output import Output

#: Local properties in which Spark names a task's query and batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_TYPES: Final = {
    "value": ("binary", "string"),
    "store": ("string",),
    "headers": ("map<string,string>",),
}
#: The columns of one kind of store alone, and those that must be there.
_TYPES_OF: Final = {
    StoreKind.STREAM: {"subject": ("string",)},
    StoreKind.KV: {"key": ("string",), "ttl_seconds": ("double",)},
}
_REQUIRED: Final = {StoreKind.STREAM: {"value"}, StoreKind.KV: {"value", "key"}}
#: How long the ledger keeps the record of a write without a name, for tasks that still run.
_UNNAMED_SECONDS: Final = 86_400.0
#: How many chunks are written together, so that the streams of a task do not wait for each other.
_CHUNKS_AT_ONCE: Final = 32


@dataclass
class Written(WriterCommitMessage):
    """The result of a task. `rows` includes rows that the stores had already."""

    query: str
    rows: int


class BatchSink(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check(options, schema)
        self._options = options
        self._query = options.query or f"write-{secrets.token_hex(8)}"

    @briefly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._options, BatchId(self._query, 0, _context().partitionId()), iterator)

    @briefly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        query = self._query
        ttl_seconds = _UNNAMED_SECONDS if self._options.query is None else None

        async def commit(client: Client) -> None:
            await Ledger(client).commit(query, 0, ttl_seconds)

        run_connected(self._options.connection, commit)

    @briefly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # A write with a name may be tried again, and needs its notes then. One without a name is
        # over.
        if self._options.query is None:
            self.commit(messages)


class StreamSink(DataSourceStreamArrowWriter):
    """The writes of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check(options, schema)
        if options.query is not None:
            raise InvalidArgumentError(
                argument="query",
                reason="cannot be set: a streaming query has its own, which its checkpoint keeps",
            )
        self._options = options

    @briefly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None and batch is not None, "Spark names a streaming query's batches"
        return _write(self._options, BatchId(query, int(batch), context.partitionId()), iterator)

    @briefly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {one.query for one in messages if isinstance(one, Written)}

        async def commit(client: Client) -> None:
            for query in queries:
                await Ledger(client).commit(query, batchId)

        if queries:
            run_connected(self._options.connection, commit)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keep all notes, because the batch runs again."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    return context


def _write(options: WriteOptions, batch: BatchId, batches: Iterator[pa.RecordBatch]) -> Written:
    count = 0
    with running_loop() as loop, loop.entered(connecting(options.connection)) as client:
        ledger = Ledger(client)
        if loop.run(ledger.is_committed(batch.query, batch.batch)):
            return Written(batch.query, sum(one.num_rows for one in batches))
        output = Output(client, ledger, batch, options.durability, options.kind)
        chunker: Chunker[Any] = Chunker(batch)
        ready: list[RowChunk[Any]] = []
        for store, row in _rows(options, batches):
            count += 1
            ready += chunker.add(store, row)
            if len(ready) >= _CHUNKS_AT_ONCE:
                loop.run(output.write(ready))
                ready = []
        loop.run(output.write([*ready, *chunker.rest()]))
    return Written(batch.query, count)


def _rows(
    options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, OutputRow | EntryRow]]:
    """Yield each row with its store."""
    for batch in batches:
        stores: list[str | None] = [options.store] * batch.num_rows
        if options.store is None:
            stores = batch.column("store").to_pylist()
        rows = _ROWS_OF[options.kind](batch)
        for store, row in zip(stores, rows, strict=True):
            yield check_store(_there(store, "store")), row


def _messages(batch: pa.RecordBatch) -> Iterator[OutputRow]:
    columns = (batch.column("value").to_pylist(), _list(batch, "headers"), _list(batch, "subject"))
    for value, pairs, subject in zip(*columns, strict=True):
        yield OutputRow(_body(_there(value, "value")), _headers(pairs), subject)


def _entries(batch: pa.RecordBatch) -> Iterator[EntryRow]:
    columns = (_list(batch, name) for name in ("key", "value", "headers", "ttl_seconds"))
    for key, value, pairs, ttl_seconds in zip(*columns, strict=True):
        if check_key(_there(key, "key")).startswith(MARKS):
            raise InvalidArgumentError(argument="key", reason=f"{MARKS} is for the sink's marks")
        body = None if value is None else _body(value)
        yield EntryRow(key, body, _headers(pairs), ttl_seconds)


_ROWS_OF: Final[dict[StoreKind, Callable[[pa.RecordBatch], Iterator[OutputRow | EntryRow]]]] = {
    StoreKind.STREAM: _messages,
    StoreKind.KV: _entries,
}


def _list(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column; nulls if there is none."""
    found: list[Any] = [None] * batch.num_rows
    return batch.column(name).to_pylist() if name in batch.schema.names else found


def _there(value: Any, column: str) -> Any:
    if value is None:
        raise InvalidArgumentError(argument=column, reason="must not be null")
    return value


def _body(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _headers(pairs: Mapping[str, str] | list[tuple[str, str]] | None) -> dict[str, str]:
    return dict(pairs or {})


def _check(options: WriteOptions, schema: StructType) -> None:
    """Check the columns. Raises InvalidArgumentError."""
    types: dict[str, Any] = {field.name: field.dataType for field in schema.fields}
    known = {**_TYPES, **_TYPES_OF[options.kind]}
    wanted = _REQUIRED[options.kind] | (set() if options.store is not None else {"store"})
    for name in sorted(wanted - types.keys()):
        raise InvalidArgumentError(argument=name, reason="there is no such column")
    for name, found in types.items():
        if name not in known and name not in COLUMNS:
            reason = f"{options.kind.word}s have no such column"
            raise InvalidArgumentError(argument=name, reason=reason)
        # Compared by name, because whether a type may contain nulls does not matter.
        if name in known and found.simpleString() not in known[name]:
            words = " or ".join(known[name])
            raise InvalidArgumentError(argument=name, reason=f"its type must be {words}")
