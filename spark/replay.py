"""Import: writes the content of a table, or of Parquet files, into the stores of a cluster.

    target = Target("nats://127.0.0.1:4222")
    import_table(spark, "s3://bucket/tables/changes", target, time=noon)

Use it for restores, for moves between clusters, and for computed results. Executors share the
stores; one task writes each store, in order, through its owner. Invariants:

- A message is stored once, however often a task or the whole import is repeated. A task resumes at
  the last seq of its target, each write expects that seq, and existing messages are compared first.
- Seqs stay as they were. Empty messages fill gaps and are deleted at the end; with `renumber` the
  gaps are closed up instead.

Keys of a kv that the table does not have stay as they are.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as columns

from holdfast.client import Client, connect
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.errors import InvalidArgumentError, RequestError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import KIB, MAX_DELETE_COUNT, MAX_FRAME_OPERATIONS
from holdfast.protocol.messages import Headers
from holdfast.protocol.subject_filters import is_literal
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import NoTableError
from holdfast.spark.event_loop import EventLoop, running_loop
from holdfast.spark.failures import failing
from holdfast.spark.jobs import parallelism
from holdfast.spark.state import read_table, state_sql
from holdfast.spark.tables.table import ChangesTable

#: Bytes of the values in one write, which must fit into a frame.
_BATCH_BYTES: Final = 512 * KIB
_ROW_COLUMNS: Final = ("tenant", "kind", "store", "seq", "key", "headers", "value", "subject")
_RESULT: Final = (
    "tenant string, kind string, store string, written bigint, present bigint, bytes bigint"
)


class TargetDiffersError(RequestError):
    """A stream that an import writes to has other messages at the same seqs."""

    code = "target_differs"
    template = "stream {store!r} of tenant {tenant!r} holds something else at seq {seq}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where an import writes. `nats` and `prefix` are those of the cluster. `tenant` replaces the
    tenant of every row, and `store_prefix` is put before every store name. With `renumber`,
    missing seqs are closed up; otherwise messages keep their seqs. `login` is a `NatsLogin` of
    `holdfast.protocol.bus.login`, with files at the same paths on every machine.
    """

    #: It may contain a password.
    nats: str = field(repr=False)
    prefix: str = DEFAULT_PREFIX
    tenant: str | None = None
    store_prefix: str = ""
    renumber: bool = False
    login: NatsLogin = field(default_factory=NatsLogin)
    inbox_prefix: str | None = None


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    source: str
    stores: int = 0
    #: Rows that were written.
    rows: int = 0
    #: Rows that were already there from an earlier try.
    present: int = 0
    #: Bytes of the values that were written.
    bytes: int = 0
    seconds: float = 0.0

    @property
    def rows_per_second(self) -> float:
        """Rows for each second; 0 if it took no time."""
        return self.rows / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_second": round(self.rows_per_second)}


def import_table(
    spark: SparkSession,
    source: str,
    target: Target,
    *,
    tenant: str | None = None,
    store: str = "*",
    version: int | None = None,
    time: datetime | None = None,
) -> ImportReport:
    """Write rows to the stores of a cluster.

    - `source` is the URL of a table of changes, or the path of Parquet files with the columns
      `store` and `value` and any of `tenant`, `kind`, `seq`, `key`, `headers` and `subject`.
    - `version` or `time` selects an earlier state of a table.
    - `tenant` and `store` restrict which stores are written; `*` in `store` matches anything.

    Each message is stored once, however often a task or the whole import is repeated. If it is
    interrupted, call it again to resume. Keys of a kv that `source` does not have stay as they are.

    Raises InvalidArgumentError, and SparkFailedError with the cause: a stream has other messages
    already (TargetDiffersError), for example, or an error of the client.

        target = Target("nats://127.0.0.1:4222", tenant="restored")
        report = import_table(spark, "s3://acme/holdfast/tables/changes", target, tenant="acme")
    """
    begun = clock.monotonic()
    frame = _rows(spark, source, version, time)
    if tenant is not None:
        frame = frame.where(columns.col("tenant") == tenant)
    if store != "*":
        frame = frame.where(columns.col("store").like(_like(store)))
    ordered = frame.repartition(parallelism(spark), "tenant", "kind", "store").sortWithinPartitions(
        "tenant", "kind", "store", "seq", "key"
    )

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_rows(target, batches)

    report = ImportReport(source)
    with failing("holdfast import"):
        results = ordered.mapInArrow(write, _RESULT).collect()
    for row in results:
        report.stores += 1
        report.rows += row["written"]
        report.present += row["present"]
        report.bytes += row["bytes"]
    report.seconds = round(clock.monotonic() - begun, 3)
    return report


def _rows(
    spark: SparkSession, source: str, version: int | None, time: datetime | None
) -> DataFrame:
    if source.startswith(("file://", "s3://")) and ChangesTable(TableLocation(source)).exists:
        changes = read_table(spark, source, version=version)
        condition = "true"
        if time is not None:
            moment = time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            condition = f"changes.time <= TIMESTAMP '{moment} UTC'"
        sql = state_sql("{changes}", condition=condition, columns=_ROW_COLUMNS)
        return spark.sql(sql, changes=changes)
    if version is not None or time is not None:
        raise InvalidArgumentError(argument="source", reason=f"{source} has only one state")
    if source.startswith("s3://"):
        # Spark itself reads no S3 without packages for the JVM.
        raise NoTableError(table=source)
    try:
        found = spark.read.parquet(source)
    except AnalysisException as error:
        reason = f"no table and no Parquet files at {source}: {str(error).splitlines()[0]}"
        raise InvalidArgumentError(argument="source", reason=reason) from error
    missing = {"store", "value"} - set(found.columns)
    if missing:
        raise InvalidArgumentError(argument="source", reason=f"no column {min(missing)!r}")
    defaults = {
        "tenant": columns.lit("default"),
        "kind": columns.lit("stream"),
        "seq": columns.lit(None).cast("bigint"),
        "key": columns.lit(None).cast("string"),
        "headers": columns.lit(None).cast("map<string,string>"),
        "subject": columns.lit(None).cast("string"),
    }
    for name, value in defaults.items():
        if name not in found.columns:
            found = found.withColumn(name, value)
    return found.select(*_ROW_COLUMNS)


def _like(pattern: str) -> str:
    quoted = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return quoted.replace("*", "%")


class _Row(NamedTuple):
    tenant: str
    kind: str
    store: str
    seq: int | None
    key: str | None
    headers: dict[str, str] | None
    value: bytes
    subject: str | None

    @property
    def size_bytes(self) -> int:
        headers = sum(len(name) + len(text) for name, text in (self.headers or {}).items())
        return len(self.value) + headers + len(self.key or "") + len(self.subject or "") + 16

    def stored_headers(self) -> Headers | None:
        """Return the headers as they are written. Those of a message with a subject were a header
        block, most likely, and become one again."""
        if self.subject is None or not self.headers:
            return self.headers
        try:
            return HeaderBlock.of(self.headers)
        except InvalidArgumentError:
            return self.headers

    def stored_subject(self) -> str | None:
        """Return the subject that is written: none in place of a filter, which only the marker of
        a roll-up has."""
        return self.subject if self.subject is None or is_literal(self.subject) else None


def _checked(row: _Row) -> _Row:
    if row.value is None:
        at = f"seq {row.seq}" if row.key is None else f"key {row.key!r}"
        reason = f"no value at {at} of {row.store}: tables leave large values in their stores"
        raise InvalidArgumentError(argument="source", reason=reason)
    return row


class _Written(NamedTuple):
    tenant: str
    kind: str
    store: str
    written: int
    present: int
    size_bytes: int


def write_rows(target: Target, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows, which come grouped by store. Yield the result of each store."""
    rows = (_checked(_Row(*row)) for batch in batches for row in zip(*_lists(batch), strict=True))
    with running_loop() as loop:
        for tenant, of_tenant in groupby(rows, key=lambda row: row.tenant):
            connecting = connect(
                target.nats,
                tenant=target.tenant or tenant,
                prefix=target.prefix,
                name="holdfast-import",
                inbox_prefix=target.inbox_prefix,
                **target.login.connect_arguments(),
            )
            with loop.entered(connecting) as client:
                for (kind, name), found in groupby(of_tenant, key=lambda row: row[1:3]):
                    writer = _Writer(loop, client, target.store_prefix + name, target.renumber)
                    write = writer.write_stream if kind == "stream" else writer.write_kv
                    write(found)
                    result = _Written(
                        tenant, kind, name, writer.written, writer.present, writer.size_bytes
                    )
                    yield pa.RecordBatch.from_pylist(
                        [
                            dict(
                                zip(
                                    ("tenant", "kind", "store", "written", "present", "bytes"),
                                    result,
                                    strict=True,
                                )
                            )
                        ]
                    )


def _lists(batch: pa.RecordBatch) -> list[list[Any]]:
    lists = []
    for name in _ROW_COLUMNS:
        values = batch.column(batch.schema.get_field_index(name)).to_pylist()
        if name == "headers":
            values = [None if value is None else dict(value) for value in values]
        lists.append(values)
    return lists


class _Writer:
    """Writes one store."""

    def __init__(self, loop: EventLoop, client: Client, name: str, renumber: bool) -> None:
        self._loop = loop
        self._client = client
        self._name = name
        self._renumber = renumber
        self.written = 0
        self.present = 0
        self.size_bytes = 0

    def write_stream(self, rows: Iterator[_Row]) -> None:
        stream = self._client.stream(self._name)
        last_seq = self._loop.run(stream.head()).last_seq
        gaps: list[range] = []
        messages = self._numbered(rows, gaps)
        batch: list[_Row | None] = []
        batch_bytes = 0
        for seq, row in messages:
            if seq <= last_seq:
                self.present += row is not None
                if row is not None and seq == last_seq:
                    self._compare(seq, row)
                continue
            size_bytes = 16 if row is None else row.size_bytes
            if batch and (
                batch_bytes + size_bytes > _BATCH_BYTES or len(batch) == MAX_FRAME_OPERATIONS
            ):
                self._append(batch, last_seq)
                last_seq += len(batch)
                batch, batch_bytes = [], 0
            batch.append(row)
            batch_bytes += size_bytes
        if batch:
            self._append(batch, last_seq)
        self._delete(gaps)

    def write_kv(self, rows: Iterator[_Row]) -> None:
        entries = self._client.kv(self._name)

        async def put(batch: Sequence[_Row]) -> None:
            for pending in [
                await entries.set_async(row.key or "", row.value, headers=row.headers)
                for row in batch
            ]:
                await pending

        batch: list[_Row] = []
        batch_bytes = 0
        for row in rows:
            if batch and batch_bytes + row.size_bytes > _BATCH_BYTES:
                self._loop.run(put(batch))
                batch, batch_bytes = [], 0
            batch.append(row)
            batch_bytes += row.size_bytes
            self.written += 1
            self.size_bytes += len(row.value)
        if batch:
            self._loop.run(put(batch))

    def _numbered(
        self, rows: Iterator[_Row], gaps: list[range]
    ) -> Iterator[tuple[int, _Row | None]]:
        """Yield the messages with their new seqs, and None for a gap."""
        next_seq = 1
        for row in rows:
            if not self._renumber and row.seq is not None and row.seq > next_seq:
                gaps.append(range(next_seq, row.seq))
                for seq in range(next_seq, row.seq):
                    yield seq, None
                next_seq = row.seq
            yield next_seq, row
            next_seq += 1

    def _append(self, batch: Sequence[_Row | None], last_seq: int) -> None:
        values: list[Any] = [
            b"" if row is None else (row.value, row.stored_headers(), row.stored_subject())
            for row in batch
        ]
        stream = self._client.stream(self._name)
        self._loop.run(stream.append_many(values, expected_last_seq=last_seq))
        self.written += sum(row is not None for row in batch)
        self.size_bytes += sum(len(row.value) for row in batch if row is not None)

    def _compare(self, seq: int, row: _Row) -> None:
        stream = self._client.stream(self._name)
        found = self._loop.run(stream.get(seq))
        if found is None or found.value != row.value:
            raise TargetDiffersError(store=self._name, tenant=row.tenant, seq=seq)

    def _delete(self, gaps: Sequence[range]) -> None:
        stream = self._client.stream(self._name)
        for gap in gaps:
            if gap.start == 1:
                self._loop.run(stream.delete_all(end_seq=gap.stop - 1))
                continue
            for start in range(gap.start, gap.stop, MAX_DELETE_COUNT):
                seqs = list(range(start, min(start + MAX_DELETE_COUNT, gap.stop)))
                self._loop.run(stream.delete(seqs))
