"""Gets the next messages of a stream from the disk into this host's memory. For threads.

It reads the tree of the messages' table (`tree_places.py`) and then what that tells of, in pieces
of about a MiB, until there is as much as was wanted. Linux reads ahead by itself as well, on some
disks many MiB, so what one read got from the disk may be what the next ones find in memory. Such a
surplus is credited to the pieces that follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from holdfast.protocol.limits import KIB, MIB
from holdfast.shared_fs.read_ahead.host_cache import CachedFile
from holdfast.shared_fs.read_ahead.tree_places import (
    FileSpan,
    NotATreeError,
    continued_values,
    spans,
)
from holdfast.shared_fs.store_file.pages.page_sizes import HEADER_BYTES, page_bytes_of

#: Spans that follow each other become one piece up to this size.
_PIECE_BYTES: Final = MIB
#: Less than this is looked for leaf by leaf, so that not much more is read.
_EXACT_BYTES: Final = 256 * KIB
#: What continues the values of one leaf, at most.
_CONTINUED_BYTES: Final = MIB
#: What lies between two such spans is taken to be theirs: pages that continue long values.
_NEAR_BYTES: Final = MIB


class CachedPiece(NamedTuple):
    """A run of bytes of a file that is in memory, and what it is good for."""

    first_seq: int
    last_seq: int
    offset: int
    size_bytes: int
    #: How much of it was not in memory before.
    disk_bytes: int = 0


class Bringing(NamedTuple):
    """What was brought, in order, and what was read from the disk beyond it."""

    pieces: list[CachedPiece]
    surplus_bytes: int


def bring(
    file: CachedFile,
    root: int,
    start_seq: int,
    size_bytes: int,
    surplus_bytes: int = 0,
    most_pieces: int | None = None,
) -> Bringing:
    """Get messages from `start_seq` on into memory, about as many as have `size_bytes`, in
    `most_pieces` at most. `root` is the number of the first page of their table, `surplus_bytes`
    that of the bringing that ended before `start_seq`.

    Raises NotATreeError, OSError.
    """

    page_bytes = page_bytes_of(file.read(0, HEADER_BYTES))
    if page_bytes is None:
        raise NotATreeError("no header of a database")

    def read_page(number: int) -> bytes:
        return file.read((number - 1) * page_bytes, page_bytes)

    brought: list[CachedPiece] = []
    counted_bytes = file.disk_bytes()
    parts = spans(read_page, page_bytes, root, start_seq, leaf_by_leaf=size_bytes < _EXACT_BYTES)
    for span, is_apart in _joined(parts, min(size_bytes, _PIECE_BYTES)):
        file.bring(span.offset, span.size_bytes)
        if is_apart:
            # What continues its first and its last values may be anywhere.
            first, last = span.offset, span.offset + span.size_bytes - page_bytes
            for leaf in {first, last}:
                _bring_continued(read_page, leaf // page_bytes + 1, page_bytes)
        now_bytes = file.disk_bytes()
        surplus_bytes, counted_bytes = surplus_bytes + now_bytes - counted_bytes, now_bytes
        disk_bytes = min(surplus_bytes, span.size_bytes)
        surplus_bytes -= disk_bytes
        brought.append(CachedPiece(*span, disk_bytes))
        size_bytes -= span.size_bytes
        if size_bytes <= 0 or len(brought) == most_pieces:
            break
    return Bringing(brought, surplus_bytes)


def _bring_continued(read_page: Callable[[int], bytes], leaf: int, page_bytes: int) -> None:
    """Read the pages that continue the values of what may be a leaf."""
    left = _CONTINUED_BYTES // page_bytes
    with contextlib.suppress(NotATreeError):
        for page, count in continued_values(read_page(leaf)):
            for _ in range(count):
                if not page or not left:
                    return
                page, left = int.from_bytes(read_page(page)[:4], "big"), left - 1


def _joined(parts: Iterator[FileSpan], piece_bytes: int) -> Iterator[tuple[FileSpan, bool]]:
    """Yield spans with what lies between them, each up to about the size of a piece, and whether
    it is apart from the one before or behind."""
    held: FileSpan | None = None
    was_apart = False
    for span in parts:
        if held is None:
            held = span
            continue
        gap = span.offset - held.offset - held.size_bytes
        is_near = 0 <= gap <= _NEAR_BYTES
        through = gap + held.size_bytes if is_near else held.size_bytes
        if is_near and held.size_bytes < piece_bytes and through + span.size_bytes <= _PIECE_BYTES:
            held = FileSpan(held.first_seq, span.last_seq, held.offset, through + span.size_bytes)
            continue
        yield held._replace(size_bytes=through), was_apart or not is_near
        held, was_apart = span, not is_near
    if held is not None:
        yield held, was_apart
