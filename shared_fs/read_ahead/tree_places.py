"""Where in a store's file its messages are, told by the upper pages of their table. Pure.

SQLite keeps a table as a tree of pages (sqlite.org/fileformat2.html, "B-tree Pages"). An interior
page has the numbers of the pages below it, with the last seq of each, so about one page in a
hundred tells where all the others are. That is exact also where a file is out of order, and costs
a few reads for each MiB. Two limits:

- The pages that continue a long value are not in the tree. They are taken to lie between its leaf
  and the next one, or the one before if it is the first of its leaf: SQLite puts them there while a
  stream is only appended to. Where a leaf has no neighbour, `continued_values` tells.
- The file lacks what is still in the WAL, and a checkpoint may write it meanwhile. So what is
  found is a hint of where to read ahead, and is never used to answer anything. Any bytes are
  safe here: what makes no sense raises NotATreeError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from holdfast.protocol.limits import KIB, MIB
from holdfast.shared_fs.store_file.schema import CHECKSUM_BYTES

#: The last seq of a span that reaches the end of the table.
END: Final = (1 << 63) - 1
_INTERIOR, _LEAF = 0x05, 0x0D
_HEADER: Final = struct.Struct(">BHHHBI")
_CHILD: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")
_LEAF_HEADER_BYTES: Final = 8
#: A table of 2^63 rows is not as deep.
_MAX_DEPTH: Final = 20
#: How far apart neighbouring leaves may be for what lies between them to be theirs: the largest
#: value that is kept in its row.
_NEAR_BYTES: Final = MIB
#: So many pages of another table may lie among the leaves of one page without a closer look, if
#: all of them have not more than so many bytes: those of a page of 1 KiB never have.
_STRAY_PAGES: Final = 64
_WHOLE_BYTES: Final = 256 * KIB


class NotATreeError(Exception):
    """The pages that were read are not those of a table."""


class FileSpan(NamedTuple):
    """A run of bytes with the messages from `first_seq` to `last_seq`."""

    first_seq: int
    last_seq: int
    offset: int
    size_bytes: int


class _Child(NamedTuple):
    page: int
    last_seq: int


def spans(
    read_page: Callable[[int], bytes],
    page_bytes: int,
    root: int,
    start_seq: int,
    *,
    leaf_by_leaf: bool = False,
) -> Iterator[FileSpan]:
    """Yield, in order of seqs, where the messages from `start_seq` on are: a span for about a
    hundred leaves, or for each, which takes longer. The pages of the tree, each of `page_bytes`,
    are read one by one, as the caller goes on. `root` is the number of the table's first page.

    Raises NotATreeError, and what `read_page` raises.
    """
    walk = _Walk(read_page, page_bytes, leaf_by_leaf)
    yield from walk.under(_Child(root, END), start_seq, 0, is_first=True)


def continued_values(leaf: bytes) -> Iterator[tuple[int, int]]:
    """Yield for each long value of a leaf the number of the page where it goes on, and how many
    pages follow each other from there, each with the number of the next in its first four bytes.

    Raises NotATreeError.
    """
    page_bytes = len(leaf)
    if _kind_of(leaf, page_bytes) != _LEAF:
        raise NotATreeError("no leaf")
    # What of a row is in its leaf if it does not fit there, and in each page that follows.
    usable_bytes = page_bytes - CHECKSUM_BYTES
    largest_local = usable_bytes - 35
    least_local = (usable_bytes - 12) * 32 // 255 - 23
    continued_bytes = usable_bytes - 4
    (count,) = _COUNT.unpack_from(leaf, 3)
    for index in range(min(count, (page_bytes - _LEAF_HEADER_BYTES) // 2)):
        (at,) = _COUNT.unpack_from(leaf, _LEAF_HEADER_BYTES + 2 * index)
        payload_bytes, at = _varint(leaf, at)
        _, at = _varint(leaf, at)
        if payload_bytes <= largest_local:
            continue
        local = least_local + (payload_bytes - least_local) % continued_bytes
        if local > largest_local:
            local = least_local
        if at + local + 4 > page_bytes:
            raise NotATreeError("a value beyond its page")
        (first,) = _CHILD.unpack_from(leaf, at + local)
        yield first, -(-(payload_bytes - local) // continued_bytes)


class _Walk(NamedTuple):
    read_page: Callable[[int], bytes]
    page_bytes: int
    leaf_by_leaf: bool

    def under(
        self, top: _Child, start_seq: int, depth: int, *, is_first: bool
    ) -> Iterator[FileSpan]:
        """Yield the spans of a page and all below it."""
        if depth == _MAX_DEPTH:
            raise NotATreeError("too deep")
        page = self.read_page(top.page)
        if _kind_of(page, self.page_bytes) == _LEAF:
            yield self._span(start_seq, top.last_seq, top.page, 1)
            return
        count, right = _header(page)
        index = _first_from(page, count, start_seq)
        first = _child(page, index) if index < count else right
        if _kind_of(self.read_page(first), self.page_bytes) == _LEAF:
            whole = None
            if not self.leaf_by_leaf:
                whole = self._whole(page, index, top.last_seq, start_seq)
            if whole is not None:
                yield whole
            else:
                yield from self._leaves(page, index, top.last_seq, start_seq, is_first=is_first)
            return
        for number in range(index, count + 1):
            child = _Child(right, top.last_seq)
            if number < count:
                child = _Child(_child(page, number), _key(page, number))
            yield from self.under(child, start_seq, depth + 1, is_first=is_first)
            start_seq, is_first = child.last_seq + 1, False

    def _whole(self, page: bytes, index: int, last_seq: int, start_seq: int) -> FileSpan | None:
        """Return one span for the leaves of one page, from that at `index` on, if they are one
        after the other and have no long values, as nearly all pages of nearly all files."""
        count, right = _header(page)
        first = _child(page, index) if index < count else right
        leaf_count = count + 1 - index
        page_count = right - first + 1
        is_small = page_count * self.page_bytes <= _WHOLE_BYTES
        if is_small and leaf_count <= page_count <= leaf_count + _STRAY_PAGES:
            return self._span(start_seq, last_seq, first, page_count)
        return None

    def _leaves(
        self, page: bytes, index: int, last_seq: int, start_seq: int, *, is_first: bool
    ) -> Iterator[FileSpan]:
        """Yield the spans of the leaves of one page, from that at `index` on."""
        near_pages = max(1, _NEAR_BYTES // self.page_bytes)
        count, right = _header(page)
        first = _child(page, index) if index < count else right
        leaf_count = count + 1 - index
        leaves = [
            _Child(_child(page, number), _key(page, number)) for number in range(index, count)
        ]
        leaves.append(_Child(right, last_seq))
        # A long value that no longer fits into a leaf is there before the leaf that begins with it.
        before = 0
        if is_first and index:
            before = first - _child(page, index - 1) - 1
        elif is_first:
            before = min(2 * (right - first) // leaf_count, first - 1)
        if not 0 < before <= near_pages:
            before = 0
        for number, leaf in enumerate(leaves):
            page_count = 1
            if number + 1 < len(leaves) and 0 < leaves[number + 1].page - leaf.page <= near_pages:
                page_count = leaves[number + 1].page - leaf.page
            yield self._span(start_seq, leaf.last_seq, leaf.page - before, page_count + before)
            start_seq, before = leaf.last_seq + 1, 0

    def _span(self, first_seq: int, last_seq: int, page: int, page_count: int) -> FileSpan:
        if last_seq < first_seq:
            raise NotATreeError("seqs out of order")
        size = self.page_bytes
        return FileSpan(first_seq, last_seq, (page - 1) * size, page_count * size)


def _kind_of(page: bytes, page_bytes: int) -> int:
    if len(page) != page_bytes or page[0] not in (_INTERIOR, _LEAF):
        raise NotATreeError("no page of a table")
    return page[0]


def _header(page: bytes) -> tuple[int, int]:
    """Return the number of cells of an interior page, and the page below that is behind all."""
    _, _, count, _, _, right = _HEADER.unpack_from(page)
    if not right or _HEADER.size + 2 * count > len(page):
        raise NotATreeError("impossible counts")
    return count, right


def _first_from(page: bytes, count: int, seq: int) -> int:
    """Return the index of the first cell whose last seq is `seq` or later; `count` if none is."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _key(page, middle) < seq:
            low = middle + 1
        else:
            high = middle
    return low


def _cell(page: bytes, index: int) -> int:
    at = int.from_bytes(page[_HEADER.size + 2 * index : _HEADER.size + 2 * index + 2], "big")
    # A child and at least a byte of its last seq.
    if at + 5 > len(page):
        raise NotATreeError("a cell beyond its page")
    return at


def _child(page: bytes, index: int) -> int:
    child: int = _CHILD.unpack_from(page, _cell(page, index))[0]
    if not child:
        raise NotATreeError("no such page")
    return child


def _key(page: bytes, index: int) -> int:
    """Return the last seq of a cell."""
    return _varint(page, _cell(page, index) + 4)[0]


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where the next thing begins."""
    value = 0
    for count, byte in enumerate(page[at : at + 9], 1):
        if count == 9:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count
    raise NotATreeError("a number beyond its page")
