"""Rows that are read from pages are those that SQLite reads, and bad pages are an error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import apsw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.spark.sqlite_pages.pages import DatabasePages, Trees, read_rows
from holdfast.spark.sqlite_pages.records import PageError, gathered

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_NUMBER = st.one_of(st.none(), st.integers(-2, 2), st.integers(-(1 << 33), 1 << 33), _INT64)
_SIZE = st.one_of(st.integers(0, 20), st.integers(0, 3000))
_ROW = st.tuples(
    st.one_of(st.integers(-5, 300), _INT64),
    _NUMBER,
    st.one_of(st.none(), _SIZE),
    st.one_of(st.none(), st.text(max_size=30)),
    _NUMBER,
)
_INSERT = "INSERT OR REPLACE INTO t(id, number, data, name{}) VALUES (?, ?, ?, ?{})"
_SELECT = "SELECT id, number, data, name, {} FROM t WHERE id BETWEEN ? AND ? ORDER BY id"
_RANGE = (-(1 << 63), (1 << 63) - 1)


def database(
    rows: Sequence[Any], page_bytes: int, reserved: int, *, later: bool
) -> apsw.Connection:
    """Return a database with a table `t`. With `later`, half of its rows lack the last column."""
    made = apsw.Connection(":memory:")
    made.pragma("page_size", page_bytes)
    made.reserve_bytes("main", reserved)
    made.execute("CREATE TABLE other(a)")
    made.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, number INTEGER, data BLOB, name TEXT)")
    half = len(rows) // 2
    with made:
        for index, (rowid, number, size, name, more) in enumerate(rows):
            data = None if size is None else (b"%d." % rowid * size)[:size]
            if later and index == half:
                made.execute("ALTER TABLE t ADD COLUMN more INTEGER")
            if later and index >= half:
                made.execute(_INSERT.format(", more", ", ?"), (rowid, number, data, name, more))
            else:
                made.execute(_INSERT.format("", ""), (rowid, number, data, name))
    return made


def columns_of(made: apsw.Connection) -> int:
    return len(list(made.execute("PRAGMA table_info(t)")))


def expected(made: apsw.Connection, first: int, last: int) -> list[tuple[Any, ...]]:
    more = "more" if columns_of(made) == 5 else "NULL"
    return list(made.execute(_SELECT.format(more), (first, last)))


def rows_from(
    made: Sequence[apsw.Connection], page_bytes: int, reserved: int, *ends: int
) -> list[list[tuple[Any, ...]]]:
    """Return the rows of the table of each database as they are in the pages."""
    images = [one.serialize("main") for one in made]
    counts = [len(image) // page_bytes for image in images]
    roots: list[Any] = [
        one.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get for one in made
    ]
    firsts = [0, *accumulate(counts)][:-1]
    trees = Trees(*(np.array(each, np.int64) for each in (firsts, counts, roots)))
    pages = DatabasePages(b"".join(images), page_bytes, reserved)
    columns = columns_of(made[0])
    found: list[list[tuple[Any, ...]]] = [[] for _ in made]
    for rows in read_rows(pages, trees, columns, *ends):
        numbers: list[list[Any]] = [
            [None if is_null else number for is_null, number in zip(*pair, strict=True)]
            for pair in (
                (rows.nulls(place), rows.integers(place).tolist())
                for place in (1, 4)
                if place < columns
            )
        ]
        more = numbers[1] if columns == 5 else [None] * len(rows.tree)
        data = rows.binaries(2).to_pylist()
        names = rows.binaries(3, is_text=True).to_pylist()
        rowids = rows.rowid.tolist()
        for tree, *row in zip(
            rows.tree.tolist(), rowids, numbers[0], data, names, more, strict=True
        ):
            found[tree].append(tuple(row))
    return found


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(_ROW, max_size=60), min_size=1, max_size=3),
    st.sampled_from([512, 1024, 4096, 65536]),
    st.sampled_from([0, 8]),
)
def test_pages_of_several_databases_have_the_rows_that_sqlite_reads(
    tables: list[list[Any]], page_bytes: int, reserved: int
) -> None:
    made = [database(rows, page_bytes, reserved, later=False) for rows in tables]
    found = rows_from(made, page_bytes, reserved)
    assert found == [expected(one, *_RANGE) for one in made]


@settings(max_examples=25, deadline=None)
@given(st.lists(_ROW, max_size=120), st.integers(-5, 300), st.integers(-5, 300))
def test_a_range_of_rows_is_read_and_columns_that_came_later_are_null_before(
    rows: list[Any], first: int, last: int
) -> None:
    made = database(rows, 512, 8, later=True)
    assert rows_from([made], 512, 8, first, last) == [expected(made, first, last)]


def test_long_tables_and_values_of_many_pages_are_read_in_pieces() -> None:
    rows: list[Any] = [(rowid, rowid, 40, "x", None) for rowid in range(1, 9000)]
    rows[5000:5006] = [(rowid, None, 4_000_000, "long", 1) for rowid in range(5001, 5007)]
    made = database(rows, 1024, 8, later=False)
    for ends in ((), (4999, 5010), (1, 1), (8999, 20_000), (9000, 9001)):
        first, last = ends or _RANGE
        assert rows_from([made], 1024, 8, *ends) == [expected(made, first, last)]


def test_any_byte_may_be_wrong_and_nothing_but_a_page_error_comes_of_it() -> None:
    rows = [(rowid, rowid * 99, 700 * (rowid % 3), "name", 1) for rowid in range(1, 200)]
    made = database(rows, 512, 8, later=False)
    image = bytearray(made.serialize("main"))
    root: Any = made.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get
    trees = Trees(np.array([0]), np.array([len(image) // 512]), np.array([root]))
    random = np.random.default_rng(7)
    refused = 0
    for _ in range(200):
        bad = bytearray(image)
        # Most bytes of a page are those of values: look at what leads to them.
        page = int(random.integers(1, len(image) // 512))
        for place in random.integers(0, 40, 2):
            bad[512 * page + int(place)] = int(random.integers(256))
        try:
            for found in read_rows(DatabasePages(bytes(bad), 512, 8), trees, 4):
                found.integers(1)
                found.binaries(2)
                found.binaries(3, is_text=True)
        except PageError:
            refused += 1
    assert refused > 15
    with pytest.raises(PageError):
        list(read_rows(DatabasePages(bytes(image[:-512]), 512, 8), trees, 4))
    with pytest.raises(PageError):
        DatabasePages(bytes(image[:-1]), 512, 8)


def test_parts_that_overlap_are_refused() -> None:
    content = np.arange(100, dtype=np.uint8)
    places, lengths = np.array([50, 0, 20]), np.array([10, 20, 0])
    assert gathered(content, places, lengths).to_pylist() == [
        bytes(range(50, 60)), bytes(range(20)), b"",
    ]  # fmt: skip
    with pytest.raises(PageError):
        gathered(content, places, np.array([10, 51, 0]))
    with pytest.raises(PageError):
        gathered(content, places, np.array([51, 1, 0]))
