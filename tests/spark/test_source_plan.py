"""What the data source and the sink decide without Spark and without a cluster."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError
from holdfast.protocol.names import StoreKind
from holdfast.spark.columns import asked_columns
from holdfast.spark.options import (
    READ_NAMES,
    WRITE_NAMES,
    NamePattern,
    read_options,
    write_options,
)
from holdfast.spark.sink.chunks import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    BatchId,
    Chunker,
    ChunkMark,
    OutputRow,
    RowChunk,
)
from holdfast.spark.sink.sink import BatchSink, _rows
from holdfast.spark.sink.stream_output import _messages
from holdfast.spark.source.offsets import Loss, Offsets, advance, between, bounded, losses
from holdfast.spark.source.pushdown import wanted_of
from holdfast.spark.source.ranges import StoreExtent, limited, tasks
from tests.support.effort import examples

NATS = {"nats": "nats://127.0.0.1:4222"}


def extent(name: str, first_seq: int, last_seq: int, size_bytes: int = 0) -> StoreExtent:
    return StoreExtent(
        StoreKind.STREAM, name, first_seq, last_seq, last_seq - first_seq + 1, size_bytes
    )


# Options
@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("project.*.patches", "project.42.patches", True),
        ("project.*.patches", "project.42.7.patches", False),
        ("project.>", "project.42.patches", True),
        ("project.>", "project", False),
        (">", "anything.at.all", True),
        ("a, b.*", "b.c", True),
        ("a,b.*", "a.c", False),
        ("a+b", "aab", False),
    ],
)
def test_a_pattern_matches_whole_tokens(pattern: str, name: str, expected: bool) -> None:
    assert NamePattern(pattern).matches(name) is expected


def test_a_pattern_is_asked_for_by_the_starts_of_names() -> None:
    assert NamePattern("p.1.>,p.*.x,q").prefixes == ["p.", "q"]
    assert NamePattern(">,p.1").prefixes == [""]


@pytest.mark.parametrize("pattern", ["a.>.b", "a..b", "", "a b", "x*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidNameError):
        NamePattern(pattern)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({}, "nats"),
        ({**NATS, "bucket": "file:///b"}, "nats"),
        ({**NATS, "start_seq": "0"}, "start_seq"),
        ({**NATS, "end_seq": "last"}, "end_seq"),
        ({**NATS, "maxRowsPerTrigger": "-1"}, "maxRowsPerTrigger"),
        ({**NATS, "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({**NATS, "start_time": "2026-11-21T10:00:00"}, "start_time"),
        ({**NATS, "kv": "settings", "start_seq": "3"}, "start_seq"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_options(options)
    assert caught.value.fields["argument"] == argument


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("strem", "'stream'"),
        ("starttime", "'start_time'"),
        ("maxRowPerTrigger", "'maxRowsPerTrigger'"),
        ("buckt", "'bucket'"),
        ("path", "only bucket, end_seq"),
        ("durability", "is not an option for reading"),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_the_one_that_was_meant(
    name: str, meant: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=meant) as caught:
        read_options({**NATS, name: "x"})
    assert caught.value.fields["argument"] == name


def test_a_writer_refuses_options_of_readers_and_takes_what_spark_adds() -> None:
    with pytest.raises(InvalidArgumentError, match="not an option for writing"):
        write_options({**NATS, "bucket": "s3://acme"})
    assert write_options({**NATS, "checkpointLocation": "/c", "queryName": "q"}).store is None
    assert read_options({**NATS, "STREAM": "x"}).connection is not None


def test_a_start_time_is_a_number_or_iso_8601() -> None:
    for text in ("1795255200000", "2026-11-21T10:00:00+00:00", "2026-11-21T12:00:00+02:00"):
        assert read_options({**NATS, "start_time": text}).start_time == 1_795_255_200_000


def test_a_writer_wants_a_level_that_there_is() -> None:
    with pytest.raises(InvalidArgumentError):
        write_options({**NATS, "durability": "eventual"})


def test_a_column_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        asked_columns(StructType([StructField("offset", LongType())]))


class Noting(dict[str, str]):
    """Options that note which of them are asked for."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


def test_the_documented_options_are_those_that_there_are() -> None:
    document = (Path(__file__).parents[2] / "docs" / "analytics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (yes)? ?\| (yes)? ?\| ", document, re.MULTILINE)
    reading, writing = Noting(NATS), Noting(NATS)
    read_options(reading)
    write_options(writing)
    assert (reading.asked, writing.asked) == (READ_NAMES, WRITE_NAMES)
    assert reading.asked == {name for name, read, _ in rows if read}
    assert writing.asked == {name for name, _, written in rows if written}


# Tasks
@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 5000), st.integers(0, 10_000_000)), max_size=20
    ),
    st.integers(1, 2000),
)
def test_tasks_read_every_seq_once_and_in_order(
    stores: list[tuple[int, int, int]], rows_per_task: int
) -> None:
    extents = [
        extent(f"s{index}", first, first + length, size_bytes)
        for index, (first, length, size_bytes) in enumerate(stores)
    ]
    ranges = [found for one in extents if (found := limited(one, 1, None)) is not None]
    read = [
        (piece.name, seq)
        for group in tasks(ranges, rows_per_task)
        for piece in group
        for seq in range(piece.start_seq, piece.end_seq + 1)
    ]
    assert read == [
        (one.name, seq) for one in extents for seq in range(one.first_seq, one.last_seq + 1)
    ]


def test_many_small_stores_share_a_task_and_a_large_one_has_several() -> None:
    small = [limited(extent(f"s{n}", 1, 10), 1, None) for n in range(100)]
    large = limited(extent("large", 1, 100_000), 1, None)
    assert len(tasks(filter(None, small), 100_000)) == 1
    assert len(tasks(filter(None, [large]), 10_000)) == 10


def test_what_lies_outside_of_the_wanted_seqs_is_not_read() -> None:
    one = limited(extent("s", 11, 100), 5, 20)
    assert one is not None and (one.start_seq, one.end_seq) == (11, 20)
    assert limited(extent("s", 11, 100), 101, None) is None
    assert limited(extent("s", 11, 100), 1, 10) is None


# Offsets
@settings(deadline=None, max_examples=examples(60))
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 300)),
    st.integers(1, 100),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 300)),
)
def test_batches_read_everything_once_whatever_appears(
    at_first: dict[str, int], max_rows: int, later: dict[str, int]
) -> None:
    read: dict[str, list[int]] = {}
    offsets: Offsets = {}
    lengths = dict(at_first)
    for step in range(5000):
        if step == 3:
            for name, more in later.items():
                lengths[name] = lengths.get(name, 0) + more
        extents = [extent(name, 1, length) for name, length in lengths.items() if length]
        end = advance(offsets, extents, max_rows)
        ranges = between(offsets, end)
        assert sum(one.end_seq - one.start_seq + 1 for one in ranges) <= max_rows
        for one in ranges:
            read.setdefault(one.name, []).extend(range(one.start_seq, one.end_seq + 1))
        if step > 3 and end == offsets:
            break
        offsets = end
    assert read == {name: list(range(1, length + 1)) for name, length in lengths.items() if length}


def test_a_long_queue_does_not_keep_the_others_from_being_read() -> None:
    extents = [extent("long", 1, 1_000_000), extent("a", 1, 10), extent("b", 1, 400)]
    assert advance({}, extents, 300) == {"a": [1, 11], "b": [1, 146], "long": [1, 146]}


def test_with_fewer_rows_than_streams_each_has_its_turn() -> None:
    extents = [extent(name, 1, 3) for name in "abcd"]
    offsets: Offsets = {}
    for _ in range(12):
        offsets = advance(offsets, extents, 1)
    assert offsets == {name: [1, 4] for name in "abcd"}


def test_a_stream_that_was_trimmed_beyond_what_was_read_is_a_loss() -> None:
    start: Offsets = {"s": [1, 11]}
    assert losses(start, [extent("s", 11, 20)]) == []
    assert losses(start, [extent("s", 11, 10)]) == []
    assert losses(start, [extent("s", 12, 20)]) == [Loss("s", 11, 12, 20)]
    assert losses({}, [extent("s", 12, 20)]) == []


def test_a_stream_that_is_behind_where_it_was_is_a_loss_and_read_anew() -> None:
    start: Offsets = {"s": [1, 11]}
    restored = [extent("s", 1, 5)]
    assert losses(start, restored) == [Loss("s", 11, 1, 5)]
    end = advance(start, restored, None)
    assert between(start, end) == []
    again = advance(end, restored, None)
    assert [(one.start_seq, one.end_seq) for one in between(end, again)] == [(1, 5)]


def test_bounds_hold_for_what_is_not_read_yet() -> None:
    start: Offsets = {"known": [1, 8]}
    found = bounded(start, [extent("known", 1, 20), extent("new", 1, 20)], 5, 6)
    assert [(one.name, one.first_seq, one.last_seq) for one in found] == [
        ("known", 1, 7),
        ("new", 5, 6),
    ]
    assert advance(start, found, None) == {"known": [1, 8], "new": [5, 7]}


# Filters
def test_filters_narrow_what_is_read() -> None:
    wanted = wanted_of(
        [
            GreaterThan(("seq",), 10),
            LessThanOrEqual(("seq",), 90),
            LessThan(("seq",), 80),
            StringStartsWith(("store",), "p."),
            In(("store",), ("p.1", "p.2", "q")),
            EqualTo(("tenant",), "acme"),
        ]
    )
    assert (wanted.start_seq, wanted.end_seq) == (11, 79)
    assert wanted.store(StoreKind.STREAM, "p.1")
    assert not wanted.store(StoreKind.STREAM, "p.3")
    assert not wanted.store(StoreKind.STREAM, "q")
    assert not wanted.store(StoreKind.KV, "p.1"), "entries have no seq"
    assert wanted.tenants == frozenset(["acme"])


def test_filters_that_exclude_each_other_leave_nothing() -> None:
    wanted = wanted_of([EqualTo(("seq",), 5), GreaterThanOrEqual(("seq",), 7)])
    assert limited(extent("s", 1, 100), wanted.start_seq, wanted.end_seq) is None


def test_filters_of_which_nothing_follows_are_left_to_spark() -> None:
    time = datetime(2026, 11, 21, 10, tzinfo=UTC)
    wanted = wanted_of([EqualTo(("value",), b"x"), In(("seq",), ()), GreaterThan(("time",), time)])
    assert (wanted.start_seq, wanted.end_seq, wanted.stores) == (1, None, None)
    assert wanted.since == 1_795_255_200_000


# Chunks
BATCH = BatchId("q/1", 7, 3)


def chunks_of(rows: list[tuple[str, bytes]]) -> list[RowChunk[OutputRow]]:
    chunker: Chunker[OutputRow] = Chunker(BATCH)
    found = [chunk for stream, value in rows for chunk in chunker.add(stream, OutputRow(value, {}))]
    return [*found, *chunker.rest()]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=4)), max_size=50))
def test_chunks_have_every_row_in_the_order_of_its_stream(rows: list[tuple[str, bytes]]) -> None:
    chunks = chunks_of(rows)
    for stream in ("a", "b"):
        mine = [chunk for chunk in chunks if chunk.store == stream]
        assert [chunk.mark.number for chunk in mine] == list(range(len(mine)))
        values = [row.value for chunk in mine for row in chunk.rows]
        assert values == [value for name, value in rows if name == stream]


def test_chunks_are_bounded_by_rows_and_by_bytes() -> None:
    assert [len(one.rows) for one in chunks_of([("s", b"x")] * (CHUNK_ROWS + 1))] == [CHUNK_ROWS, 1]
    large = bytes(CHUNK_BYTES // 2)
    assert [len(one.rows) for one in chunks_of([("s", large)] * 3)] == [1, 1, 1]


def test_a_chunk_is_known_by_the_headers_of_its_first_message() -> None:
    (chunk,) = chunks_of([("s", b"one"), ("s", b"two")])
    (_, first, _), (_, second, subject) = _messages(chunk)
    assert subject is None
    assert ChunkMark.of(first) == chunk.mark
    assert ChunkMark.of(second) is None
    assert ChunkMark.of({"holdfast-chunk": "what/is/this"}) is None


def test_other_rows_or_another_order_make_another_mark() -> None:
    def mark(*rows: OutputRow) -> ChunkMark:
        chunker: Chunker[OutputRow] = Chunker(BATCH)
        for row in rows:
            assert not list(chunker.add("s", row))
        return next(chunker.rest()).mark

    about = OutputRow(b"1", {}, "a.b")
    assert mark(about) != mark(OutputRow(b"1", {}))
    assert mark(about) != mark(OutputRow(b"1", {}, "a.c"))
    one, two = OutputRow(b"1", {}), OutputRow(b"2", {"a": "b"})
    assert mark(one, two) == mark(one, two)
    assert len({mark(one, two), mark(two, one), mark(one), mark(OutputRow(b"12", {}), one)}) == 4


# What can be written
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"store": StringType()}, "value"),
        ({"value": LongType(), "store": StringType()}, "value"),
        ({"value": StringType()}, "store"),
        ({"value": StringType(), "store": StringType(), "offset": LongType()}, "offset"),
    ],
)
def test_columns_that_streams_have_not_are_refused(columns: dict[str, DataType], told: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(InvalidArgumentError, match=told):
        BatchSink(write_options({"nats": "nats://127.0.0.1:9"}), schema)


def test_a_row_without_a_value_or_with_a_bad_name_is_refused() -> None:
    options = write_options({"nats": "nats://127.0.0.1:9"})
    for row, error in (
        ({"value": None, "store": "a"}, InvalidArgumentError),
        ({"value": "x", "store": None}, InvalidArgumentError),
        ({"value": "x", "store": "a b"}, InvalidNameError),
    ):
        with pytest.raises(error):
            list(_rows(options, iter([pa.RecordBatch.from_pylist([row])])))
