"""Files by name, and their bytes past this host's cache.

On a network file system a name may lead to a file that another host has replaced, and a read may
answer from what this host remembers. Raises OSError; `disk.py` makes our errors of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

_Result = TypeVar("_Result")

#: Linux has it. It is 0 on systems without direct reads.
O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
#: Buffers, offsets and lengths of direct reads are multiples of this: no disk has larger sectors.
BLOCK_BYTES: Final = 4096
READ_BYTES: Final = 1 << 20
#: linux/falloc.h
_FALLOC_FL_KEEP_SIZE: Final = 1
#: Python's own `posix_fallocate` would grow a file, and write to it where the call is missing.
_fallocate: Final = getattr(ctypes.CDLL(None), "fallocate64", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
#: If a name leads to a file that another host has replaced or removed (ESTALE), it is looked up
#: again, so many times.
_STALE_TRIES: Final = 4


def looked_up(use: Callable[[], _Result]) -> _Result:
    """Return `use()`, which looks up a name. If another host has replaced or removed what this
    host's cache has by that name, the name is looked up again."""
    for _ in range(_STALE_TRIES - 1):
        try:
            return use()
        except OSError as error:
            if not is_stale(error):
                raise
    return use()


@contextlib.contextmanager
def opened(path: Path, *, direct: bool) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_CLOEXEC | (O_DIRECT if direct else 0)
    descriptor = looked_up(lambda: os.open(path, flags))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, READ_BYTES):
        yield chunk


def direct_chunks(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of a file in order, read past the cache."""
    at = 0
    ended_at = -1
    while True:
        chunk = read_direct(descriptor, at, READ_BYTES)
        end = at + len(chunk)
        if len(chunk) < READ_BYTES:
            # This is the end if the next read, from the last whole block, ends here too. The size
            # that the cache knows proves nothing.
            if end == ended_at:
                yield chunk
                return
            ended_at = end
            chunk = chunk[: len(chunk) // BLOCK_BYTES * BLOCK_BYTES]
        yield chunk
        at += len(chunk)


def read_direct(descriptor: int, at: int, size_bytes: int) -> bytes:
    # O_DIRECT needs a buffer of whole pages.
    with mmap.mmap(-1, size_bytes) as buffer:
        return buffer[: os.preadv(descriptor, [buffer], at)]


def drop_cached(path: Path) -> None:
    """Drop what this host remembers of a file's content.

    The client of a network file system may keep small files beside the kernel's cache, and answer
    even direct reads from there: GlusterFS does for a second, with up to 64 KiB (quick-read), and
    lets go of it only for a change from this host. So the first byte gets the space that it has,
    which changes nothing. A file system without that call keeps no such files, as far as is known.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _fallocate is not None:
            _fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, 0, 1)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def shows_what_is_there(path: Path) -> bool:
    """Drop a file's cache, and tell whether plain reads then return the same as direct ones: the
    same bytes, and as many. What was the same stays so as long as nobody else writes the file."""
    drop_cached(path)
    with opened(path, direct=False) as plain, opened(path, direct=True) as direct:
        at = 0
        for chunk in direct_chunks(direct):
            if chunk != os.pread(plain, len(chunk), at):
                return False
            at += len(chunk)
        return at == os.fstat(plain).st_size


def is_stale(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ESTALE
