"""Reads tables of SQLite databases from their pages, of many databases at once.

To open a small image takes SQLite longer than to read its fifty rows, and Python makes an object of
each field that it returns. Here all rows of hundreds of images, or of thousands of pages of a large
one, are found and decoded by a few calls of numpy, and their values go to Arrow as they lie there.

It reads what sqlite.org/fileformat2.html describes in sections 1.6 and 2.1: the b-tree of a table
whose primary key is its rowid. The caller has compared an image with its sha256. All the same, a
number that leads out of its page or its database, or to a page twice, is a PageError, and no more
bytes are read than there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.protocol.limits import MIB

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_LEAF: Final = 13
_INTERIOR: Final = 5
_LEAF_HEADER: Final = 8
_INTERIOR_HEADER: Final = 12
#: SQLite makes no deeper tree: "Interior pages of a b-tree", BTCURSOR_MAX_DEPTH.
_MAX_DEPTH: Final = 20
#: Numbers are read as 8 bytes, whatever their length is.
_PADDING: Final = 16
#: Leaves, and bytes of their rows, that are decoded at once.
_LEAVES_BYTES: Final = 4 * MIB
_ROWS_BYTES: Final = 8 * MIB
#: The length of a field by its serial type, below `_FIRST_TEXT`; -1 of one that we do not write.
_LENGTHS: Final = np.array([0, 1, 2, 3, 4, 6, 8, -1, 0, 0, -1, -1], np.int64)
_NULL: Final = 0
_ONE: Final = 9
_FIRST_TEXT: Final = 12


class PageError(Exception):
    """A page is not as SQLite writes it."""


class Pages:
    """Pages of one size, of one database or of several, in memory or mapped to it."""

    def __init__(self, content: Any, page_bytes: int, reserved_bytes: int) -> None:
        """Raises PageError."""
        found = np.frombuffer(content, np.uint8)
        if len(found) % page_bytes or page_bytes - reserved_bytes < 480:
            raise PageError("it does not consist of pages")
        self.rows: _Bytes = found.reshape(-1, page_bytes)
        self.page_bytes = page_bytes
        #: The bytes of a page that SQLite uses.
        self.usable = page_bytes - reserved_bytes


class Trees(NamedTuple):
    """The b-trees of one table, one in each of some databases."""

    #: The first page of each database, among all pages, and the number of its pages.
    first: _Numbers
    pages: _Numbers
    #: The page number of each root; the first page has number 1.
    root: _Numbers

    def places(self, trees: _Numbers, numbers: _Numbers) -> _Numbers:
        """Return where pages are, among all pages. Raises PageError."""
        if np.any(numbers < 1) or np.any(numbers > self.pages[trees]):
            raise PageError("a page number is beyond the last page")
        found: _Numbers = self.first[trees] + numbers - 1
        return found


class Rows(NamedTuple):
    """Rows of a table, decoded as far as where their fields are."""

    #: The index of the database of each row.
    tree: _Numbers
    rowid: _Numbers
    #: What the fields are parts of.
    content: _Bytes
    #: Of each column: the serial types and the places of its fields. Without an entry: all NULL.
    types: tuple[_Numbers | None, ...]
    places: tuple[_Numbers | None, ...]

    def some(self, which: Any) -> Rows:
        """Return the rows that a mask selects."""
        types, places = (
            tuple(None if each is None else each[which] for each in every)
            for every in (self.types, self.places)
        )
        return Rows(self.tree[which], self.rowid[which], self.content, types, places)

    def are_null(self, column: int) -> bool:
        """Return whether all rows are known to have NULL."""
        return self.types[column] is None

    def nulls(self, column: int) -> Any:
        """Return for each row whether it has NULL."""
        types = self.types[column]
        return np.ones(len(self.tree), bool) if types is None else types == _NULL

    def integers(self, column: int) -> _Numbers:
        """Return the integers of a column, 0 in place of NULL. Raises PageError."""
        types, places = self.types[column], self.places[column]
        if types is None or places is None:
            return np.zeros(len(self.tree), np.int64)
        if np.any(types > _ONE):
            raise PageError("a field has another type")
        lengths = _LENGTHS[types]
        found: _Numbers = _view(self.content, ">i8")[places].astype(np.int64)
        found >>= np.minimum(64 - 8 * lengths, 63)
        if not lengths.all():
            # NULL, 0 and 1 have no byte.
            found = np.where(lengths == 0, (types == _ONE).astype(np.int64), found)
        return found

    def binaries(self, column: int, *, is_text: bool = False) -> pa.Array:
        """Return the blobs, or texts, of a column. Raises PageError."""
        types, places = self.types[column], self.places[column]
        kind = pa.string() if is_text else pa.binary()
        if types is None or places is None:
            return pa.nulls(len(self.tree), kind)
        null = types == _NULL
        if np.any(((types < _FIRST_TEXT) | (types % 2 != is_text)) & ~null):
            raise PageError("a field has another type")
        lengths = (types - _FIRST_TEXT) >> 1
        has_null = bool(null.any())
        if has_null:
            lengths[null] = 0
        found = gathered(self.content, places, lengths)
        if has_null:
            found = pa.Array.from_buffers(
                pa.binary(),
                len(found),
                [pa.py_buffer(np.packbits(~null, bitorder="little")), *found.buffers()[1:]],
            )
        if is_text:
            try:
                found = found.cast(kind)
            except pa.ArrowInvalid as error:
                raise PageError("a text is not UTF-8") from error
        return found


def read_rows(
    pages: Pages, trees: Trees, columns: int, first: int | None = None, last: int | None = None
) -> Iterator[Rows]:
    """Yield the rows of a table with so many columns, database by database, by rowid; with `first`
    and `last`, of the only database the rows from one rowid to another.

    Raises PageError.
    """
    try:
        at, owners = _leaves(pages, trees, first, last)
        step = max(1, _LEAVES_BYTES // pages.page_bytes)
        for start in range(0, len(at), step):
            some = slice(start, start + step)
            yield from _rows(pages, trees, at[some], owners[some], columns, first, last)
    except IndexError as error:
        raise PageError("a number leads out of the pages") from error


def gathered(content: _Bytes, places: _Numbers, lengths: _Numbers) -> pa.Array:
    """Return parts of `content`, which do not overlap, as an array of blobs. Raises PageError."""
    count = len(places)
    if count == 0:
        return pa.array([], pa.binary())
    if len(content) >= 1 << 31:
        raise PageError("a record is too long")
    # As an array of all parts, and of what is between them, of which Arrow takes every other one.
    order = np.argsort(2 * places + (lengths > 0), kind="stable")
    begins = places[order]
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0] = 0
    bounds[1::2] = begins
    bounds[2::2] = begins + lengths[order]
    if bounds[-1] > len(content) or np.any(bounds[1:] < bounds[:-1]):
        raise PageError("fields overlap")
    every = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    )
    wanted = np.empty(count, np.int64)
    wanted[order] = np.arange(1, 2 * count, 2)
    return every.take(pa.array(wanted))


# Pages
def _leaves(
    pages: Pages, trees: Trees, first: int | None, last: int | None
) -> tuple[_Numbers, _Numbers]:
    """Return the places of all leaves in order, and the tree of each."""
    owners = np.arange(len(trees.root))
    at = trees.places(owners, trees.root)
    for _ in range(_MAX_DEPTH):
        kinds = pages.rows[at, 0]
        inner = kinds == _INTERIOR
        if not np.all(inner | (kinds == _LEAF)):
            raise PageError("a page of the tree is none of a table")
        if not inner.any():
            return at, owners
        at, owners = _children(pages, trees, at, owners, inner, first, last)
        if len(at) > len(pages.rows):
            raise PageError("a page is in the tree twice")
    raise PageError("the tree is too deep")


def _children(
    pages: Pages,
    trees: Trees,
    at: _Numbers,
    owners: _Numbers,
    inner: Any,
    first: int | None,
    last: int | None,
) -> tuple[_Numbers, _Numbers]:
    """Return the pages below the interior ones among these, with the others in their places."""
    flat = pages.rows.reshape(-1)
    begins = at * pages.page_bytes
    cells = np.where(inner, _view(flat, ">u2")[begins + 3].astype(np.int64), 0)
    if np.any(_INTERIOR_HEADER + 2 * cells > pages.usable):
        raise PageError("a page has too many cells")
    counts = np.where(inner, cells + 1, 1)
    if counts.sum() > len(pages.rows):
        raise PageError("a page is in the tree twice")
    parent, index = _spread(counts)
    is_below = inner[parent]
    is_last = index == cells[parent]
    # Of the last one the header has the number.
    slot = np.where(is_below & ~is_last, _INTERIOR_HEADER + 2 * index, 0)
    offsets = np.where(is_last, 8, _view(flat, ">u2")[begins[parent] + slot].astype(np.int64))
    if np.any(offsets[is_below] > pages.usable - 4):
        raise PageError("a cell is beyond its page")
    below = np.flatnonzero(is_below)
    places = begins[parent[below]] + offsets[below]
    numbers = _view(flat, ">u4")[places].astype(np.int64)
    found = at[parent]
    found[below] = trees.places(owners[parent[below]], numbers)
    if first is None or last is None:
        return found, owners[parent]
    # A child has the rowids up to that of its cell, from after that of the cell before.
    keyed = np.flatnonzero(is_below & ~is_last)
    upto = np.full(len(parent), np.iinfo(np.int64).max)
    upto[keyed] = _varints(flat, begins[parent[keyed]] + offsets[keyed] + 4)[0]
    after = np.full(len(parent), np.iinfo(np.int64).min)
    after[1:] = np.where(is_below[1:] & (index[1:] > 0), upto[:-1], after[1:])
    kept = (upto >= first) & (after < last)
    return found[kept], owners[parent][kept]


class _Cells(NamedTuple):
    """Cells of leaves, whose content is in `flat`."""

    flat: _Bytes
    tree: _Numbers
    rowid: _Numbers
    #: Where the record of each begins, its length, and how much of it is in the leaf.
    at: _Numbers
    length: _Numbers
    local: _Numbers


def _rows(
    pages: Pages,
    trees: Trees,
    at: _Numbers,
    owners: _Numbers,
    columns: int,
    first: int | None,
    last: int | None,
) -> Iterator[Rows]:
    cells = _cells(pages, at, owners)
    if first is not None and last is not None:
        cells = _some(cells, (cells.rowid >= first) & (cells.rowid <= last))
    if cells.length.sum() > len(pages.rows) * pages.page_bytes:
        raise PageError("a page is in the tree twice")
    # As many rows as have so many bytes, or one that has more.
    pieces = np.cumsum(cells.length) // _ROWS_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(pieces)]
    for start, end in pairwise(bounds):
        if start < end:
            some = _some(cells, slice(start, end))
            yield _decoded(_whole(pages, trees, some), columns)


def _some(cells: _Cells, which: Any) -> _Cells:
    return _Cells(cells.flat, *(each[which] for each in cells[1:]))


def _cells(pages: Pages, at: _Numbers, owners: _Numbers) -> _Cells:
    """Return the cells of leaves. Raises PageError."""
    page_bytes, usable = pages.page_bytes, pages.usable
    flat = np.zeros(len(at) * page_bytes + _PADDING, np.uint8)
    np.take(pages.rows, at, axis=0, out=flat[:-_PADDING].reshape(-1, page_bytes))
    begins = np.arange(len(at)) * page_bytes
    counts = _view(flat, ">u2")[begins + 3].astype(np.int64)
    if np.any(_LEAF_HEADER + 2 * counts > usable):
        raise PageError("a page has too many cells")
    page, index = _spread(counts)
    begin = begins[page]
    offset = _view(flat, ">u2")[begin + _LEAF_HEADER + 2 * index].astype(np.int64)
    length, rowid_at = _varints(flat, begin + offset)
    rowid, record_at = _varints(flat, rowid_at)
    if np.any(length < 0) or np.any(length > len(pages.rows) * page_bytes):
        raise PageError("a record is longer than its database")
    # Sections 1.6: how much of a record is in the leaf.
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    local = np.where(local <= usable - 35, local, least)
    spills = length > usable - 35
    local = np.where(spills, local, length)
    if np.any(offset >= usable) or np.any(record_at + local + 4 * spills > begin + usable):
        raise PageError("a cell is beyond its page")
    return _Cells(flat, owners[page], rowid, record_at, length, local)


def _whole(pages: Pages, trees: Trees, cells: _Cells) -> _Cells:
    """Return cells whose records are whole: what is on other pages is brought behind the leaves."""
    long = np.flatnonzero(cells.local < cells.length)
    if not len(long):
        return cells
    rest_bytes = pages.usable - 4
    rest = (cells.length - cells.local)[long]
    counts = -(-rest // rest_bytes)
    places = _overflow_pages(pages, trees, cells, long, counts)
    more = np.ascontiguousarray(pages.rows[places, 4 : pages.usable]).reshape(-1)
    # Each record: its part in the leaf, then all of each page but what is left of the last one.
    row, index = _spread(counts + 1)
    flat_bytes = len(cells.flat)
    number = np.arange(len(row)) - row - 1
    begins = np.where(index == 0, cells.at[long][row], flat_bytes + number * rest_bytes)
    left = rest[row] - (index - 1) * rest_bytes
    lengths = np.where(index == 0, cells.local[long][row], np.minimum(left, rest_bytes))
    parts = gathered(np.concatenate([cells.flat, more]), begins, lengths)
    joined = np.frombuffer(parts.buffers()[2], np.uint8, int(lengths.sum()))
    at, local = cells.at.copy(), cells.local.copy()
    ends = np.cumsum(cells.length[long])
    at[long] = flat_bytes + ends - cells.length[long]
    local[long] = cells.length[long]
    flat = np.concatenate([cells.flat, joined, np.zeros(_PADDING, np.uint8)])
    return cells._replace(flat=flat, at=at, local=local)


def _overflow_pages(
    pages: Pages, trees: Trees, cells: _Cells, long: _Numbers, counts: _Numbers
) -> _Numbers:
    """Return where the overflow pages of records are, record by record."""
    if counts.sum() > len(pages.rows):
        raise PageError("a page is in the tree twice")
    owners = cells.tree[long]
    begins = np.cumsum(counts) - counts
    found = np.empty(int(counts.sum()), np.int64)
    follow = cells.at[long] + cells.local[long]
    numbers = _view(cells.flat, ">u4")[follow].astype(np.int64)
    firsts = _view(pages.rows.reshape(-1), ">u4")
    active = np.arange(len(long))
    for index in range(int(counts.max())):
        places = trees.places(owners[active], numbers)
        found[begins[active] + index] = places
        going = counts[active] > index + 1
        active, places = active[going], places[going]
        numbers = firsts[places * pages.page_bytes].astype(np.int64)
    return found


def _decoded(cells: _Cells, columns: int) -> Rows:
    """Find the fields of records. Raises PageError."""
    flat = cells.flat
    header, at = _varints(flat, cells.at)
    if np.any(header < 1) or np.any(header > cells.length):
        raise PageError("the header of a record is longer than the record")
    ends = cells.at + header
    types: list[_Numbers | None] = []
    for _ in range(columns):
        # A record ends earlier if a column was added later.
        here = at < ends
        if here.all():
            found, at = _varints(flat, at)
        else:
            found, some = np.zeros(len(at), np.int64), np.flatnonzero(here)
            found[some], at[some] = _varints(flat, at[some])
        types.append(found if found.any() else None)
    if np.any(at != ends):
        raise PageError("a record has other fields")
    places: list[_Numbers | None] = []
    place = ends
    for each in types:
        places.append(None if each is None else place)
        if each is not None:
            if np.any(each < 0):
                raise PageError("a field has another type")
            short = _LENGTHS[np.minimum(each, _FIRST_TEXT - 1)]
            length = np.where(each < _FIRST_TEXT, short, (each - _FIRST_TEXT) >> 1)
            if np.any(length < 0) or np.any(length > cells.length):
                raise PageError("a field has another type")
            place = place + length
    if np.any(place != cells.at + cells.length):
        raise PageError("a record has another length")
    return Rows(cells.tree, cells.rowid, flat, tuple(types), tuple(places))


# Bytes
def _view(flat: _Bytes, kind: str) -> Any:
    """Return the numbers that begin at each byte."""
    size = np.dtype(kind).itemsize
    return np.ndarray((max(0, len(flat) - size + 1),), kind, flat, strides=(1,))


def _varints(flat: _Bytes, at: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return the numbers that begin at these places, and the places after them."""
    byte = flat[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    more = np.flatnonzero(byte >= 0x80)
    for step in range(1, 9):
        if not len(more):
            break
        byte = flat[after[more]]
        after[more] += 1
        if step == 8:
            # The ninth byte has eight bits of the number.
            value[more] = value[more] << 8 | byte
            break
        value[more] = value[more] << 7 | (byte & 0x7F)
        more = more[byte >= 0x80]
    return value, after


def _spread(counts: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return for each of `counts[i]` items the number `i`, and its number among them."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
