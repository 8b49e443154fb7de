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

from holdfast.shared_fs.store_file.schema import CHECKSUM_BYTES, PAGE_BYTES

#: The last seq of a span that reaches the end of the table.
END: Final = (1 << 63) - 1
_INTERIOR, _LEAF = 0x05, 0x0D
_HEADER: Final = struct.Struct(">BHHHBI")
_CHILD: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")
_LEAF_HEADER_BYTES: Final = 8
#: What of a row is in its leaf if it does not fit there, and in each page that follows.
_USABLE_BYTES: Final = PAGE_BYTES - CHECKSUM_BYTES
_LARGEST_LOCAL: Final = _USABLE_BYTES - 35
_LEAST_LOCAL: Final = (_USABLE_BYTES - 12) * 32 // 255 - 23
_CONTINUED_BYTES: Final = _USABLE_BYTES - 4
#: A table of 2^63 rows is not as deep.
_MAX_DEPTH: Final = 20
#: How far apart neighbouring leaves may be for what lies between them to be theirs: the pages of
#: values up to the largest one that is kept in its row.
_NEAR_PAGES: Final = 1024
#: So many pages of another table may lie among the leaves of one page without a closer look.
_STRAY_PAGES: Final = 64


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
    read_page: Callable[[int], bytes], root: int, start_seq: int, *, leaf_by_leaf: bool = False
) -> Iterator[FileSpan]:
    """Yield, in order of seqs, where the messages from `start_seq` on are: a span for about a
    hundred leaves, or for each, which takes longer. The pages of the tree are read one by one, as
    the caller goes on. `root` is the number of the table's first page.

    Raises NotATreeError, and what `read_page` raises.
    """
    walk = _Walk(read_page, leaf_by_leaf)
    yield from _under(walk, _Child(root, END), start_seq, 0, is_first=True)


class _Walk(NamedTuple):
    read_page: Callable[[int], bytes]
    leaf_by_leaf: bool


def continued_values(leaf: bytes) -> Iterator[tuple[int, int]]:
    """Yield for each long value of a leaf the number of the page where it goes on, and how many
    pages follow each other from there, each with the number of the next in its first four bytes.

    Raises NotATreeError.
    """
    if _kind_of(leaf) != _LEAF:
        raise NotATreeError("no leaf")
    (count,) = _COUNT.unpack_from(leaf, 3)
    for index in range(min(count, (PAGE_BYTES - _LEAF_HEADER_BYTES) // 2)):
        (at,) = _COUNT.unpack_from(leaf, _LEAF_HEADER_BYTES + 2 * index)
        payload_bytes, at = _varint(leaf, at)
        _, at = _varint(leaf, at)
        if payload_bytes <= _LARGEST_LOCAL:
            continue
        local = _LEAST_LOCAL + (payload_bytes - _LEAST_LOCAL) % _CONTINUED_BYTES
        if local > _LARGEST_LOCAL:
            local = _LEAST_LOCAL
        if at + local + 4 > PAGE_BYTES:
            raise NotATreeError("a value beyond its page")
        (first,) = _CHILD.unpack_from(leaf, at + local)
        yield first, -(-(payload_bytes - local) // _CONTINUED_BYTES)


def _under(
    walk: _Walk, top: _Child, start_seq: int, depth: int, *, is_first: bool
) -> Iterator[FileSpan]:
    if depth == _MAX_DEPTH:
        raise NotATreeError("too deep")
    page = walk.read_page(top.page)
    if _kind_of(page) == _LEAF:
        yield _span(start_seq, top.last_seq, top.page, 1)
        return
    count, right = _header(page)
    index = _first_from(page, count, start_seq)
    first = _child(page, index) if index < count else right
    if _kind_of(walk.read_page(first)) == _LEAF:
        if not walk.leaf_by_leaf and (whole := _whole(page, index, top.last_seq, start_seq)):
            yield whole
        else:
            yield from _leaves(page, index, top.last_seq, start_seq, is_first=is_first)
        return
    for number in range(index, count + 1):
        child = _Child(right, top.last_seq)
        if number < count:
            child = _Child(_child(page, number), _key(page, number))
        yield from _under(walk, child, start_seq, depth + 1, is_first=is_first)
        start_seq, is_first = child.last_seq + 1, False


def _whole(page: bytes, index: int, last_seq: int, start_seq: int) -> FileSpan | None:
    """Return one span for the leaves of one page, from that at `index` on, if they are one after
    the other and have no long values, as nearly all pages of nearly all files."""
    count, right = _header(page)
    first = _child(page, index) if index < count else right
    leaf_count = count + 1 - index
    if leaf_count <= right - first + 1 <= leaf_count + _STRAY_PAGES:
        return _span(start_seq, last_seq, first, right - first + 1)
    return None


def _leaves(
    page: bytes, index: int, last_seq: int, start_seq: int, *, is_first: bool
) -> Iterator[FileSpan]:
    """Yield the spans of the leaves of one page, from that at `index` on."""
    count, right = _header(page)
    first = _child(page, index) if index < count else right
    leaf_count = count + 1 - index
    leaves = [_Child(_child(page, number), _key(page, number)) for number in range(index, count)]
    leaves.append(_Child(right, last_seq))
    # A long value that no longer fits into a leaf is there before the leaf that begins with it.
    before = 0
    if is_first and index:
        before = first - _child(page, index - 1) - 1
    elif is_first:
        before = min(2 * (right - first) // leaf_count, first - 1)
    if not 0 < before <= _NEAR_PAGES:
        before = 0
    for number, leaf in enumerate(leaves):
        page_count = 1
        if number + 1 < len(leaves) and 0 < leaves[number + 1].page - leaf.page <= _NEAR_PAGES:
            page_count = leaves[number + 1].page - leaf.page
        yield _span(start_seq, leaf.last_seq, leaf.page - before, page_count + before)
        start_seq, before = leaf.last_seq + 1, 0


def _span(first_seq: int, last_seq: int, page: int, page_count: int) -> FileSpan:
    if last_seq < first_seq:
        raise NotATreeError("seqs out of order")
    return FileSpan(first_seq, last_seq, (page - 1) * PAGE_BYTES, page_count * PAGE_BYTES)


def _kind_of(page: bytes) -> int:
    if len(page) != PAGE_BYTES or page[0] not in (_INTERIOR, _LEAF):
        raise NotATreeError("no page of a table")
    return page[0]


def _header(page: bytes) -> tuple[int, int]:
    """Return the number of cells of an interior page, and the page below that is behind all."""
    _, _, count, _, _, right = _HEADER.unpack_from(page)
    if not right or _HEADER.size + 2 * count > PAGE_BYTES:
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
    if at + 5 > PAGE_BYTES:
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
