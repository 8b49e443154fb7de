"""Records of SQLite, and their fields as columns: thousands by a few calls of numpy.

`pages.py` finds the records. sqlite.org/fileformat2.html describes them in section 2.1.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: Numbers are read as 8 bytes, whatever their length is: so many bytes at least follow the records.
PADDING: Final = 16
#: The length of a field by its serial type, below `_FIRST_TEXT`; -1 of one that we do not write.
_LENGTHS: Final = np.array([0, 1, 2, 3, 4, 6, 8, -1, 0, 0, -1, -1], np.int64)
_NULL: Final = 0
_ONE: Final = 9
_FIRST_TEXT: Final = 12


class PageError(Exception):
    """A page, or a record in it, is not as SQLite writes it."""


class Rows(NamedTuple):
    """Rows of a table, decoded as far as where their fields are."""

    #: The index of the database of each row.
    tree: Numbers
    rowid: Numbers
    #: What the fields are parts of.
    content: Bytes
    #: Of each column: the serial types and the places of its fields. Without an entry: all NULL.
    types: tuple[Numbers | None, ...]
    places: tuple[Numbers | None, ...]

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

    def integers(self, column: int) -> Numbers:
        """Return the integers of a column, 0 in place of NULL. Raises PageError."""
        types, places = self.types[column], self.places[column]
        if types is None or places is None:
            return np.zeros(len(self.tree), np.int64)
        if np.any(types > _ONE):
            raise PageError("a field has another type")
        lengths = _LENGTHS[types]
        found: Numbers = numbers_at(self.content, ">i8")[places].astype(np.int64)
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


def gathered(content: Bytes, places: Numbers, lengths: Numbers) -> pa.Array:
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


def decoded(
    tree: Numbers, rowid: Numbers, content: Bytes, begins: Numbers, length: Numbers, columns: int
) -> Rows:
    """Find the fields of records, each of which is at `begins` in `content`. Raises PageError."""
    header, at = varints(content, begins)
    if np.any(header < 1) or np.any(header > length):
        raise PageError("the header of a record is longer than the record")
    ends = begins + header
    types: list[Numbers | None] = []
    for _ in range(columns):
        # A record ends earlier if a column was added later.
        here = at < ends
        if here.all():
            found, at = varints(content, at)
        else:
            found, some = np.zeros(len(at), np.int64), np.flatnonzero(here)
            found[some], at[some] = varints(content, at[some])
        types.append(found if found.any() else None)
    if np.any(at != ends):
        raise PageError("a record has other fields")
    places: list[Numbers | None] = []
    place = ends
    for each in types:
        places.append(None if each is None else place)
        if each is not None:
            if np.any(each < 0):
                raise PageError("a field has another type")
            short = _LENGTHS[np.minimum(each, _FIRST_TEXT - 1)]
            size = np.where(each < _FIRST_TEXT, short, (each - _FIRST_TEXT) >> 1)
            if np.any(size < 0) or np.any(size > length):
                raise PageError("a field has another type")
            place = place + size
    if np.any(place != begins + length):
        raise PageError("a record has another length")
    return Rows(tree, rowid, content, tuple(types), tuple(places))


# Bytes
def numbers_at(flat: Bytes, kind: str) -> Any:
    """Return the numbers that begin at each byte."""
    size = np.dtype(kind).itemsize
    return np.ndarray((max(0, len(flat) - size + 1),), kind, flat, strides=(1,))


def varints(flat: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
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


def spread(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return for each of `counts[i]` items the number `i`, and its number among them."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
