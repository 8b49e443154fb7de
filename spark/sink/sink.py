"""`df.write.format("holdfast")` and `df.writeStream.format("holdfast")`: appends rows to streams.

The columns are `value` (binary or string, required); `store`, unless the option `stream` names one
stream for all rows; and, if there are such, `headers` (map<string, string>) and `subject` (string).
Other columns of the source are ignored, so that what was read can be written.

Exactly once: each partition of each batch is in the streams once, however often its task is retried
or the batch is run again; `output.py` describes how. The identity of a batch is:

- in a streaming query, the query's id, which its checkpoint keeps, and the number of the batch;
- in a batch write, the option `query`: repeating the name completes the first write, and writes
  nothing if that was complete. A write without a name is new each time.

A batch that runs again must have the same rows in the same order in each partition. Files, tables
and streams give the same order; after a shuffle use `sortWithinPartitions`. Otherwise
RowsChangedError is raised.

Rows of one partition keep their order within a stream. A failed batch may have written some of its
rows: streams show each append at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
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
from holdfast.protocol.names import check_store
from holdfast.spark.columns import COLUMNS
from holdfast.spark.event_loop import connecting, run_connected, running_loop
from holdfast.spark.failures import briefly
from holdfast.spark.options import WriteOptions
from holdfast.spark.sink.chunks import BatchId, Chunker, OutputRow, RowChunk
from holdfast.spark.sink.output import Ledger, Output

#: Local properties in which Spark names a task's query and batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_TYPES: Final = {
    "value": ("binary", "string"),
    "store": ("string",),
    "headers": ("map<string,string>",),
    "subject": ("string",),
}
#: How long the ledger keeps the record of a write without a name, for tasks that still run.
_UNNAMED_SECONDS: Final = 86_400.0
#: How many chunks are written together, so that the streams of a task do not wait for each other.
_CHUNKS_AT_ONCE: Final = 32


@dataclass
class Written(WriterCommitMessage):
    """The result of a task. `rows` includes rows that the streams had already."""

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
        output = Output(client, ledger, batch, options.durability)
        chunker = Chunker(batch)
        ready: list[RowChunk] = []
        for stream, row in _rows(options, batches):
            count += 1
            ready += chunker.add(stream, row)
            if len(ready) >= _CHUNKS_AT_ONCE:
                loop.run(output.write(ready))
                ready = []
        loop.run(output.write([*ready, *chunker.rest()]))
    return Written(batch.query, count)


def _rows(
    options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, OutputRow]]:
    for batch in batches:
        names = batch.schema.names
        values = batch.column("value").to_pylist()
        headers, subjects = (
            batch.column(name).to_pylist() if name in names else [None] * len(values)
            for name in ("headers", "subject")
        )
        streams: list[str | None] = [options.stream] * len(values)
        if options.stream is None:
            streams = batch.column("store").to_pylist()
        rows = zip(values, headers, subjects, streams, strict=True)
        for value, pairs, subject, stream in rows:
            if value is None or stream is None:
                column = "value" if value is None else "store"
                raise InvalidArgumentError(argument=column, reason="must not be null")
            body = value.encode() if isinstance(value, str) else value
            yield check_store(stream), OutputRow(body, _headers(pairs), subject)


def _headers(pairs: Mapping[str, str] | list[tuple[str, str]] | None) -> dict[str, str]:
    return dict(pairs or {})


def _check(options: WriteOptions, schema: StructType) -> None:
    """Check the columns. Raises InvalidArgumentError."""
    types: dict[str, Any] = {field.name: field.dataType for field in schema.fields}
    wanted = {"value"} if options.stream is not None else {"value", "store"}
    for name in sorted(wanted - types.keys()):
        raise InvalidArgumentError(argument=name, reason="there is no such column")
    for name, found in types.items():
        if name not in _TYPES and name not in COLUMNS:
            raise InvalidArgumentError(argument=name, reason="streams have no such column")
        # Compared by name, because whether a type may contain nulls does not matter.
        if name in _TYPES and found.simpleString() not in _TYPES[name]:
            words = " or ".join(_TYPES[name])
            raise InvalidArgumentError(argument=name, reason=f"its type must be {words}")
