"""Reads tables of SQLite databases from their pages, of many databases at once.

To open a small image takes SQLite longer than to read its fifty rows, and Python makes an object of
each field that it returns. Here all rows of hundreds of images, or of thousands of pages of a large
one, are found and decoded by a few calls of numpy, and their values go to Arrow as they lie there.

It reads what sqlite.org/fileformat2.html describes in section 1.6: the b-tree of a table
whose primary key is its rowid. The caller has compared an image with its sha256. All the same, a
number that leads out of its page or its database, or to a page twice, is a PageError, and no more
bytes are read than there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from holdfast.protocol.limits import MIB
from holdfast.spark.sqlite_pages.records import (
    PADDING,
    Bytes,
    Numbers,
    PageError,
    Rows,
    decoded,
    gathered,
    numbers_at,
    spread,
    varints,
)

_LEAF: Final = 13
_INTERIOR: Final = 5
_LEAF_HEADER: Final = 8
_INTERIOR_HEADER: Final = 12
#: Where an interior page has the number of its last child.
_LAST_CHILD: Final = 8
#: SQLite makes no deeper tree: "Interior pages of a b-tree", BTCURSOR_MAX_DEPTH.
_MAX_DEPTH: Final = 20
#: Leaves, and bytes of their rows, that are decoded at once.
_LEAVES_BYTES: Final = 4 * MIB
_ROWS_BYTES: Final = 8 * MIB


class DatabasePages:
    """Pages of one size, of one database or of several, in memory or mapped to it."""

    def __init__(self, content: Any, page_bytes: int, reserved_bytes: int) -> None:
        """Raises PageError."""
        found = np.frombuffer(content, np.uint8)
        if len(found) % page_bytes or page_bytes - reserved_bytes < 480:
            raise PageError("it does not consist of pages")
        self.rows: Bytes = found.reshape(-1, page_bytes)
        self.page_bytes = page_bytes
        #: The bytes of a page that SQLite uses.
        self.usable = page_bytes - reserved_bytes


class Trees(NamedTuple):
    """The b-trees of one table, one in each of some databases."""

    #: The first page of each database, among all pages, and the number of its pages.
    first: Numbers
    pages: Numbers
    #: The page number of each root; the first page has number 1.
    root: Numbers

    def places(self, trees: Numbers, numbers: Numbers) -> Numbers:
        """Return where pages are, among all pages. Raises PageError."""
        if np.any(numbers < 1) or np.any(numbers > self.pages[trees]):
            raise PageError("a page number is beyond the last page")
        found: Numbers = self.first[trees] + numbers - 1
        return found


def read_rows(
    pages: DatabasePages,
    trees: Trees,
    columns: int,
    first: int | None = None,
    last: int | None = None,
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


# Pages
def _leaves(
    pages: DatabasePages, trees: Trees, first: int | None, last: int | None
) -> tuple[Numbers, Numbers]:
    """Return the places of all leaves in order, and the tree of each."""
    owners = np.arange(len(trees.root))
    at = trees.places(owners, trees.root)
    for _ in range(_MAX_DEPTH):
        # All leaves of a tree are equally deep, so its first page here says what all are: not to
        # look at each keeps those of a large database out of memory. `_cells` looks.
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        kinds = np.zeros(len(trees.root), np.uint8)
        kinds[owners[firsts]] = pages.rows[at[firsts], 0]
        inner = kinds[owners] == _INTERIOR
        if not inner.any():
            return at, owners
        at, owners = _children(pages, trees, at, owners, inner, first, last)
        if len(at) > len(pages.rows):
            raise PageError("a page is in the tree twice")
    raise PageError("the tree is too deep")


def _children(
    pages: DatabasePages,
    trees: Trees,
    at: Numbers,
    owners: Numbers,
    inner: Any,
    first: int | None,
    last: int | None,
) -> tuple[Numbers, Numbers]:
    """Return the pages below the interior ones among these, with the others in their places."""
    flat = pages.rows.reshape(-1)
    begins = at * pages.page_bytes
    if np.any(flat[begins[inner]] != _INTERIOR):
        raise PageError("a page of the tree is none of a table")
    cells = np.zeros(len(at), np.int64)
    cells[inner] = numbers_at(flat, ">u2")[begins[inner] + 3]
    if np.any(_INTERIOR_HEADER + 2 * cells > pages.usable):
        raise PageError("a page has too many cells")
    counts = np.where(inner, cells + 1, 1)
    if counts.sum() > len(pages.rows):
        raise PageError("a page is in the tree twice")
    parent, index = spread(counts)
    is_below = inner[parent]
    is_last = index == cells[parent]
    # Of the last one the header has the number.
    slot = np.where(is_below & ~is_last, _INTERIOR_HEADER + 2 * index, 0)
    below = np.flatnonzero(is_below)
    offsets = np.zeros(len(parent), np.int64)
    offsets[below] = numbers_at(flat, ">u2")[begins[parent[below]] + slot[below]]
    offsets[is_last & is_below] = _LAST_CHILD
    if np.any(offsets > pages.usable - 4):
        raise PageError("a cell is beyond its page")
    places = begins[parent[below]] + offsets[below]
    numbers = numbers_at(flat, ">u4")[places].astype(np.int64)
    found = at[parent]
    found[below] = trees.places(owners[parent[below]], numbers)
    if first is None or last is None:
        return found, owners[parent]
    # A child has the rowids up to that of its cell, from after that of the cell before.
    keyed = np.flatnonzero(is_below & ~is_last)
    upto = np.full(len(parent), np.iinfo(np.int64).max)
    upto[keyed] = varints(flat, begins[parent[keyed]] + offsets[keyed] + 4)[0]
    after = np.full(len(parent), np.iinfo(np.int64).min)
    after[1:] = np.where(is_below[1:] & (index[1:] > 0), upto[:-1], after[1:])
    kept = (upto >= first) & (after < last)
    return found[kept], owners[parent][kept]


class _Cells(NamedTuple):
    """Cells of leaves, whose content is in `flat`."""

    flat: Bytes
    tree: Numbers
    rowid: Numbers
    #: Where the record of each begins, its length, and how much of it is in the leaf.
    at: Numbers
    length: Numbers
    local: Numbers


def _rows(
    pages: DatabasePages,
    trees: Trees,
    at: Numbers,
    owners: Numbers,
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
            yield _records(_whole(pages, trees, some), columns)


def _some(cells: _Cells, which: Any) -> _Cells:
    return _Cells(cells.flat, *(each[which] for each in cells[1:]))


def _cells(pages: DatabasePages, at: Numbers, owners: Numbers) -> _Cells:
    """Return the cells of leaves. Raises PageError."""
    page_bytes, usable = pages.page_bytes, pages.usable
    flat = np.zeros(len(at) * page_bytes + PADDING, np.uint8)
    np.take(pages.rows, at, axis=0, out=flat[:-PADDING].reshape(-1, page_bytes))
    begins = np.arange(len(at)) * page_bytes
    if np.any(flat[begins] != _LEAF):
        raise PageError("a page of the tree is none of a table")
    counts = numbers_at(flat, ">u2")[begins + 3].astype(np.int64)
    if np.any(_LEAF_HEADER + 2 * counts > usable):
        raise PageError("a page has too many cells")
    page, index = spread(counts)
    begin = begins[page]
    offset = numbers_at(flat, ">u2")[begin + _LEAF_HEADER + 2 * index].astype(np.int64)
    length, rowid_at = varints(flat, begin + offset)
    rowid, record_at = varints(flat, rowid_at)
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


def _whole(pages: DatabasePages, trees: Trees, cells: _Cells) -> _Cells:
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
    row, index = spread(counts + 1)
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
    flat = np.concatenate([cells.flat, joined, np.zeros(PADDING, np.uint8)])
    return cells._replace(flat=flat, at=at, local=local)


def _overflow_pages(
    pages: DatabasePages, trees: Trees, cells: _Cells, long: Numbers, counts: Numbers
) -> Numbers:
    """Return where the overflow pages of records are, record by record."""
    if counts.sum() > len(pages.rows):
        raise PageError("a page is in the tree twice")
    owners = cells.tree[long]
    begins = np.cumsum(counts) - counts
    found = np.empty(int(counts.sum()), np.int64)
    follow = cells.at[long] + cells.local[long]
    numbers = numbers_at(cells.flat, ">u4")[follow].astype(np.int64)
    firsts = numbers_at(pages.rows.reshape(-1), ">u4")
    active = np.arange(len(long))
    for index in range(int(counts.max())):
        places = trees.places(owners[active], numbers)
        found[begins[active] + index] = places
        going = counts[active] > index + 1
        active, places = active[going], places[going]
        numbers = firsts[places * pages.page_bytes].astype(np.int64)
    return found


def _records(cells: _Cells, columns: int) -> Rows:
    at, length = cells.at, cells.length
    return decoded(cells.tree, cells.rowid, cells.flat, at, length, columns)
