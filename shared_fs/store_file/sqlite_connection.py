"""SQLite connections of store files: how they are opened, and what their errors mean.

Every connection holds the file's lock for its whole life and verifies the checksum of each page it
reads. `configure_process` reduces the memory per connection, for processes with thousands of them.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import apsw
import apsw.sqlite_extra

from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.schema import CHECKSUM_BYTES, PAGE_BYTES

_CACHE_KIB: Final = 256
_MASK: Final = 0xFFFFFFFF
#: From this many zeros in a page on, skipping them is faster than adding them.
_LONG_GAP: Final = bytes(128)
_STATEMENTS: Final = 32
#: Small allocations of one connection that SQLite serves from a block of its own. The default takes
#: 38 kB per connection; with 5 kB, opening and applying were as fast.
_LOOKASIDE: Final = (128, 40)


def configure_process() -> bool:
    """Make every later connection of this process take about 30 kB less memory.

    Call it first: SQLite accepts such settings only while it is unused. If a connection is already
    open, changes nothing and returns False.
    """
    if apsw.connections():
        return False
    apsw.shutdown()
    try:
        apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, *_LOOKASIDE)
        # The statistics take a lock at each allocation, and nobody reads them.
        apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, False)
    finally:
        apsw.initialize()
        checksum_vfs.cache_clear()
    return True


@functools.cache
def checksum_vfs() -> str:
    """Load SQLite's checksum VFS (sqlite.org/cksumvfs.html) and return its name.

    It keeps a checksum in the last eight bytes of each page and verifies it at each read, in C.
    Inserting and scanning were as fast with it as without. Without it, SQLite accepts flipped bits
    in values, and so does quick_check.
    """
    try:
        apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
    except apsw.sqlite_extra.NotAvailable as error:
        raise StorageFailedError(
            reason="this build of apsw has no cksumvfs; the wheels on PyPI have it"
        ) from error
    return "cksmvfs"


def page_checksum(page: bytes) -> bytes:
    """Return the checksum that the VFS expects at the end of `page`.

    The algorithm is `cksmCompute` of SQLite's ext/misc/cksumvfs.c. Most pages of a small file are
    largely zeros between content at their start and at their end. These zeros are skipped, so a
    nearly empty page takes 9 µs instead of 40.
    """
    content_end = len(page) - CHECKSUM_BYTES
    gap_start, gap_end = _zeros(page, content_end)
    first, second = _add(0, 0, page[:gap_start])
    # For each eight zero bytes, `_add` multiplies by ((1, 1), (1, 2)).
    (a, b), (_, c) = _power((gap_end - gap_start) // 8)
    first, second = (a * first + b * second) & _MASK, (b * first + c * second) & _MASK
    return struct.pack("<2I", *_add(first, second, page[gap_end:content_end]))


def set_checksums(image: bytearray, page_bytes: int) -> None:
    """Set the checksum of each page of an image."""
    for end in range(page_bytes, len(image) + 1, page_bytes):
        page = bytes(image[end - page_bytes : end])
        image[end - CHECKSUM_BYTES : end] = page_checksum(page)


def _zeros(page: bytes, content_end: int) -> tuple[int, int]:
    """Return where the first long run of zeros begins and ends, in whole groups of eight bytes."""
    start = page.find(_LONG_GAP, 0, content_end)
    if start < 0:
        return content_end, content_end
    end = content_end - len(page[start:content_end].lstrip(b"\0"))
    return (start + 7) // 8 * 8, end // 8 * 8


def _add(first: int, second: int, content: bytes) -> tuple[int, int]:
    words = struct.unpack(f"<{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second


@functools.lru_cache(PAGE_BYTES // 8 + 1)
def _power(exponent: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return a power of ((1, 1), (1, 2)). The cache has all that usual pages need."""
    if not exponent:
        return (1, 0), (0, 1)
    # Such a matrix is symmetric, and so is its square.
    (a, b), (_, c) = _power(exponent // 2)
    a, b, c = a * a + b * b, a * b + b * c, b * b + c * c
    if exponent % 2:
        a, b, c = a + b, b + c, b + 2 * c
    a, b, c = a & _MASK, b & _MASK, c & _MASK
    return (a, b), (b, c)


def connect(path: str, flags: int, vfs: str | None) -> apsw.Connection:
    """Return a connection through which nothing was read or written yet."""
    connection = apsw.Connection(
        path, flags=flags, vfs=vfs or checksum_vfs(), statementcachesize=_STATEMENTS
    )
    try:
        # Before the first access, or WAL would need shared memory: sqlite.org/wal.html#noshm.
        connection.pragma("locking_mode", "exclusive")
        # This reads the schema, and has the lock from then on.
        connection.pragma("synchronous", "off")
    except BaseException:
        # The exception refers to the connection, so whoever keeps it would keep the lock.
        connection.close(True)
        raise
    return connection


def set_pragmas(connection: apsw.Connection) -> None:
    """Prepare a connection to a file that is known to be ours."""
    mode = connection.pragma("journal_mode", "wal")
    assert mode == "wal", mode
    connection.wal_autocheckpoint(0)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    set_cache(connection)


def integers(values: Iterable[int]) -> Any:
    """Return numbers as an array that a statement reads with `carray(?)`."""
    # SQLite refuses the address of an empty array. No seq and no id is negative.
    return apsw.carray(array("q", values) or array("q", (-1,)))


def set_cache(connection: apsw.Connection, kib: int = _CACHE_KIB) -> None:
    """Limit the page cache; without `kib`, to what an open file may keep."""
    connection.pragma("cache_size", -kib)


class _HasStore(Protocol):
    store: StoreId


_Owner = TypeVar("_Owner", bound=_HasStore)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def raises_ours(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Translate SQLite's errors that leave a method into ours (`our_error`).

    It is a decorator, since a context manager took longer than most of the reads inside it.
    """

    @functools.wraps(method)
    def call(owner: _Owner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return method(owner, *args, **kwargs)
        except apsw.Error as error:
            raise our_error(error, owner.store) from error

    return call


def our_error(error: apsw.Error, store: StoreId) -> HoldfastError:
    """Return our error for an error of SQLite on `store`."""
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return BusyError(what=f"the file lock of {store}")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return StoreDamagedError(store=str(store), reason=str(error))
    if isinstance(error, apsw.SQLError):
        # Our statements are fixed, so a missing table or column is the file's fault.
        return StoreDamagedError(store=str(store), reason=str(error))
    if isinstance(error, apsw.IOError):
        if error.extendedresult == apsw.SQLITE_IOERR_DATA:  # type: ignore[attr-defined]
            return StoreDamagedError(store=str(store), reason="a page's checksum is wrong")
        return StorageFailedError(reason=f"{store}: {error}")
    return StorageFailedError(reason=f"{store}: {type(error).__name__}: {error}")
