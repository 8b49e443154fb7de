"""How large the pages of a store file are, and how a file is marked that has other than the usual.

SQLite writes a page of the WAL with two calls of the system, and moves it to the file with two
more. With pages of 16 KiB instead of 1 KiB, what is large takes a third less of a server's
processor time, but every small change writes 16 times as many bytes. So the content decides, once:
when a file is made, or made anew while it is small.

`user_version` of a file with other pages than the usual ones is its format plus OTHER_PAGES.
Versions of holdfast from before refuse it: they took the first 1 KiB of its header's page for the
whole. Every reader takes the size of pages from the header, and the format by `format_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, Protocol

from holdfast.protocol import changes as wire_changes
from holdfast.protocol.frames import WireChange
from holdfast.protocol.limits import KIB
from holdfast.shared_fs.store_file import schema

#: What is added to the format of a file whose pages are not of PAGE_BYTES.
OTHER_PAGES: Final = 100
#: Of a file with large values or large messages. With 64 KiB, a put took no less processor time.
LARGE_PAGE_BYTES: Final = 16 * KIB
#: Content of this size with records of this size in the mean asks for them: the file of an empty
#: store has a dozen pages.
_LARGE_CONTENT_BYTES: Final = 64 * KIB
_LARGE_RECORD_BYTES: Final = 4 * KIB
#: sqlite.org/fileformat2.html, "The Database Header".
HEADER_BYTES: Final = 100
_PAGE_BYTES: Final = slice(16, 18)
_SMALLEST: Final = 512
_LARGEST: Final = 65536


def page_bytes_of(header: bytes) -> int | None:
    """Return the size of the pages of a database by its first bytes, whoever wrote them; None if
    that is no size that SQLite knows."""
    found = int.from_bytes(header[_PAGE_BYTES])
    if found == 1:
        return _LARGEST
    is_known = _SMALLEST <= found < _LARGEST and not found & (found - 1)
    return found if is_known else None


def format_of(user_version: int) -> int:
    """Return the format of a file, whatever its pages; a number above LATEST_FORMAT if this version
    does not know it."""
    base = user_version - OTHER_PAGES
    return base if 0 < base <= schema.LATEST_FORMAT else user_version


def user_version_of(number: int, page_bytes: int) -> int:
    """Return the `user_version` of a file of a format with pages of this size."""
    return number if page_bytes == schema.PAGE_BYTES else number + OTHER_PAGES


def read_format(execute: Callable[..., Any]) -> int:
    """Return the format of an open file, by a function that executes a statement."""
    return format_of(execute("PRAGMA user_version").get)


def raise_format(execute: Callable[..., Any], number: int) -> None:
    """Give an open file a later format. Its mark stays. No effect if it has a later one."""
    user_version = execute("PRAGMA user_version").get
    found = format_of(user_version)
    if number > found:
        execute(f"PRAGMA user_version = {user_version - found + number}")


class _Batch(Protocol):
    @property
    def changes(self) -> Sequence[WireChange]: ...


def may_be_large(size_bytes: int, count: int) -> bool:
    """Tell if `page_bytes_for` may return a larger size than usual for so many changes, which take
    so much memory. It looks at each of them, and this does not."""
    return size_bytes >= max(_LARGE_CONTENT_BYTES, count * _LARGE_RECORD_BYTES)


def page_bytes_for(batches: Iterable[_Batch]) -> int:
    """Return the size of pages for a file that is to hold what these changes set."""
    size_bytes = count = 0
    for change in chain.from_iterable(batch.changes for batch in batches):
        number = wire_changes.number_of(change)
        if number in wire_changes.SETS:
            value = wire_changes.set_value(change)
        elif number == wire_changes.CHANGE_PUT_CHUNK:
            value = wire_changes.chunk(change).data
        else:
            continue
        count += 1
        # Of a large value, its chunks count.
        size_bytes += len(value) if type(value) is bytes else 0
    return LARGE_PAGE_BYTES if may_be_large(size_bytes, count) else schema.PAGE_BYTES
