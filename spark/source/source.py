"""`format("holdfast")`: streams and kvs as a Spark data source and sink, over NATS or from
a bucket.

    spark.read.format("holdfast").options(nats=..., tenant="acme", stream="project.>").load()
    spark.read.format("holdfast").options(bucket=..., tenant="acme").load()
    spark.read.format("holdfast").options(table="s3://...").load()    table_reader.py
    spark.readStream.format("holdfast")...      stream_reader.py
    df.write.format("holdfast")...              sink.py

`options.py` describes the options, `columns.py` the columns. A batch read returns one row for each
existing message or entry. From a live cluster it returns what the owners have while the tasks run,
up to the last seqs at the time of planning; from a bucket it returns the newest snapshots.
Overwritten and deleted messages are only in the table that `holdfast export` writes.

Options, the columns of `.schema(...)`, and filters with the option `pushdown` restrict what is
read. `pushdown` is off by default, because Spark refuses every reader that takes filters unless its
setting `spark.sql.python.filterPushdown.enabled` is on. That setting is off by default;
`holdfast.spark.session` turns it on. A DataFrame with `pushdown` is for one use: PySpark 4.3 calls
`pushFilters` and `partitions` for the first one alone, and reads these partitions for all others,
whatever their filters are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from holdfast.client import Client
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.spark.columns import SCHEMA, asked_columns
from holdfast.spark.event_loop import run_connected
from holdfast.spark.failures import briefly, briefly_each
from holdfast.spark.options import ReadOptions, read_options, write_options
from holdfast.spark.rows.batches import BatchMaker
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.sink.sink import BatchSink, StreamSink
from holdfast.spark.source import live, snapshot_rows
from holdfast.spark.source.pushdown import PushedFilters, wanted_of
from holdfast.spark.source.ranges import SeqRange, limited, tasks
from holdfast.spark.source.stream_reader import StreamReader
from holdfast.spark.source.table_reader import SCHEMA as TABLE_SCHEMA
from holdfast.spark.source.table_reader import table_reader
from holdfast.spark.typed_values import schema_with


class HoldfastSource(DataSource):
    """The data source behind `format("holdfast")`. `options.py` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType | str:
        names = TABLE_SCHEMA if "table" in self.options else SCHEMA
        return schema_with(names, self.options.get("value_schema"))

    @briefly
    def reader(self, schema: StructType) -> DataSourceReader:
        if "table" in self.options:
            return table_reader(self.options, schema)
        options = read_options(self.options)
        return FilteringReader(options, schema) if options.pushdown else Reader(options, schema)

    @briefly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options)
        if options.connection is None or options.streams is None or options.kvs is not None:
            raise InvalidArgumentError(
                argument="stream", reason="a streaming query can only read streams, over NATS"
            )
        return StreamReader(options, options.connection, options.streams, schema)

    @briefly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise InvalidArgumentError(argument="mode", reason="must be append")
        return BatchSink(write_options(self.options), schema)

    @briefly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamSink(write_options(self.options), schema)


class LivePartition(InputPartition):
    """Ranges that a task reads from the owners."""

    def __init__(self, ranges: Sequence[SeqRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class SnapshotPartition(InputPartition):
    """Snapshots, or parts of them, that a task reads."""

    def __init__(self, parts: Sequence[snapshot_rows.Part]) -> None:
        super().__init__(None)
        self.parts = parts


class Reader(DataSourceReader):
    """A batch read. It is sent to the tasks with all that they need."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = PushedFilters(options.start_seq, options.end_seq)
        # Looked at here, so that a wrong column raises before anything runs.
        asked_columns(schema, options.value_format)

    @briefly
    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self._wanted
        if wanted.tenants is not None and options.tenant not in wanted.tenants:
            return []
        if options.connection is not None:
            ranges = run_connected(options.connection, self._ranges)
            return [LivePartition(group) for group in tasks(ranges, options.rows_per_partition)]
        assert options.bucket is not None
        with snapshot_rows.opened_bucket(options.bucket) as bucket:
            found = snapshot_rows.newest_versions(bucket, options.tenant, options.patterns)
        versions = {
            store: version
            for store, version in found.items()
            if wanted.store(*store) and (wanted.since is None or version.time >= wanted.since)
        }
        parts = snapshot_rows.plan(
            versions, wanted.start_seq, wanted.end_seq, options.rows_per_partition
        )
        return [SnapshotPartition(group) for group in parts]

    @briefly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        gathering = Gathering(BatchMaker(*asked_columns(self._schema, options.value_format)))
        if isinstance(partition, LivePartition):
            assert options.connection is not None
            yield from live.batches(gathering, options.connection, partition.ranges)
        elif isinstance(partition, SnapshotPartition):
            assert options.bucket is not None
            with snapshot_rows.opened_bucket(options.bucket) as bucket:
                rows = snapshot_rows.read(
                    bucket, options.tenant, partition.parts, options.start_time
                )
                yield from gathering.batches(rows)

    async def _ranges(self, client: Client) -> list[SeqRange]:
        options, wanted = self._options, self._wanted
        found = await live.extents(client, options.patterns, wanted.store)
        if options.start_time is not None:
            found = await live.since_time(client, found, options.start_time)
        ranges = (limited(one, wanted.start_seq, wanted.end_seq) for one in found)
        return [one for one in ranges if one is not None]


class FilteringReader(Reader):
    """A batch read that leaves out the stores and seqs that the query's filters exclude."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        options = self._options
        self._wanted = wanted_of(filters).within(options.start_seq, options.end_seq)
        return filters
