"""`spark.readStream.format("holdfast")`: micro-batches of messages in the order of each stream.

What each part of a query does:

- The driver follows the extents of the streams (`survey.py`), decides how far the next batch reads
  (`offsets.py`), and cuts it into tasks. Streams may appear at any time.
- A task reads fixed ranges of seqs from the owners. It may run again, also after a restart from the
  checkpoint, and then returns the same rows, except messages that were overwritten or deleted in
  the meantime.

Invariant: the query returns every message of a stream once, from where it began to read, in the
order of seqs; or it fails with MessagesLostError, unless `failOnDataLoss` is `false`. It does not
return a message again that is changed after it was read.

With the trigger `availableNow` it stops at the last seqs of the streams at its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.client import Client
from holdfast.protocol.names import StoreKind
from holdfast.spark.columns import asked_columns
from holdfast.spark.errors import MessagesLostError
from holdfast.spark.event_loop import run_connected
from holdfast.spark.failures import briefly, briefly_each
from holdfast.spark.options import Connection, NamePattern, ReadOptions
from holdfast.spark.rows.batches import BatchMaker
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.source import live
from holdfast.spark.source.offsets import Offsets, advance, between, bounded, losses
from holdfast.spark.source.ranges import SeqRange, StoreExtent, tasks
from holdfast.spark.source.survey import StoreSurvey

_NOWHERE: Final = StoreExtent(StoreKind.STREAM, "", 1, 0, 0, 0)


class RangesPartition(InputPartition):
    """The ranges that a task reads."""

    def __init__(self, ranges: Sequence[SeqRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a streaming query. It lives in a process beside the driver as long as the query; only
    `read` runs in the tasks."""

    def __init__(
        self,
        options: ReadOptions,
        connection: Connection,
        streams: NamePattern,
        schema: StructType,
    ) -> None:
        self._options = options
        self._connection = connection
        self._schema = schema
        #: With `availableNow`: the last seq to read of each stream.
        self._last_seqs: dict[str, int] | None = None
        self._survey = StoreSurvey(connection, streams)
        #: The extents of the streams, for the size of tasks.
        self._extents: dict[str, StoreExtent] = {}
        #: With `start_time`: where streams that were not read yet begin.
        self._begins: dict[str, StoreExtent] = {}
        asked_columns(schema, options.value_format)

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @briefly
    def prepareForTriggerAvailableNow(self) -> None:
        self._last_seqs = {extent.name: extent.last_seq for extent in self._survey.look()}

    @briefly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found = self._look(start)
        if self._options.fail_on_data_loss:
            for loss in losses(start, found):
                raise MessagesLostError(**loss._asdict())
        return advance(start, found, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    @briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        names = [one.name for one in between(start, end)]
        if not names:
            return []
        if not self._extents.keys() >= set(names):
            # The batch was planned by an earlier process.
            found = run_connected(self._connection, partial(_extents_of, names))
            self._extents = {extent.name: extent for extent in found}
        ranges = between(start, end, self._extents)
        return [RangesPartition(group) for group in tasks(ranges, self._options.rows_per_partition)]

    @briefly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        columns = asked_columns(self._schema, self._options.value_format)
        return live.batches(
            Gathering(BatchMaker(*columns)),
            self._connection,
            partition.ranges,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def stop(self) -> None:
        self._survey.close()

    def _look(self, start: Offsets) -> list[StoreExtent]:
        """Return the parts of the streams that may be read now."""
        options = self._options
        found = self._survey.look()
        self._extents = {extent.name: extent for extent in found}
        if options.start_time is not None:
            found = self._since(start, found, options.start_time)
        found = bounded(start, found, options.start_seq, options.end_seq)
        if self._last_seqs is None:
            return found
        ends = self._last_seqs
        return [bounded(start, [one], 1, ends.get(one.name, 0))[0] for one in found]

    def _since(
        self, start: Offsets, found: list[StoreExtent], start_time: int
    ) -> list[StoreExtent]:
        """Leave out messages before `start_time` of streams that were not read yet. A stream that
        has grown is asked again."""
        unknown = [
            extent
            for extent in found
            if extent.name not in start
            and self._begins.get(extent.name, _NOWHERE).last_seq != extent.last_seq
        ]
        for extent in self._survey.since(unknown, start_time) if unknown else ():
            self._begins[extent.name] = extent
        return [
            one
            if one.name in start
            else one._replace(first_seq=max(one.first_seq, self._begins[one.name].first_seq))
            for one in found
        ]


async def _extents_of(names: list[str], client: Client) -> list[StoreExtent]:
    return await live.extents_of(client, StoreKind.STREAM, names)
