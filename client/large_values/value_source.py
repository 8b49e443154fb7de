"""Sources and targets of large values: memory, and files, which are used in threads."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import threading
from collections.abc import AsyncIterable, Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Generic, Self, TypeVar

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import (
    MAX_VALUE_BYTES,
    MIB,
)

#: A path, or a file that is open for reading bytes and is read from its position.
Source = str | os.PathLike[str] | BinaryIO

_Opened = TypeVar("_Opened")
_Result = TypeVar("_Result")

#: What a thread reads or writes at once: a call of a thread costs as much as 256 KiB of work.
FILE_PIECE_BYTES: Final = MIB


class Beside(Generic[_Result]):
    """One call at a time in a thread, beside what its owner does. When the body of `async with`
    ends, by whatever, the call has ended too, so that nobody closes a file under it."""

    def __init__(self) -> None:
        self._call: asyncio.Future[_Result] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._call is not None:
            await asyncio.wait([self._call])
            if not self._call.cancelled():
                # What it raised is of no interest any more.
                self._call.exception()

    def begin(self, work: Callable[[], _Result]) -> None:
        """Begin a call. The one before must be done."""
        assert self._call is None, "one call at a time"
        self._call = asyncio.ensure_future(asyncio.to_thread(work))

    async def done(self) -> _Result | None:
        """Return what the call returned, or raise what it raised; None if there is none."""
        if self._call is None:
            return None
        result = await asyncio.shield(self._call)
        self._call = None
        return result


class BytesSource:
    """A value in memory, as a source."""

    def __init__(self, value: memoryview) -> None:
        self._value = value
        self._offset = 0

    def read(self, size_bytes: int) -> bytes:
        start = self._offset
        self._offset = min(len(self._value), start + size_bytes)
        return bytes(self._value[start : self._offset])

    def rewind(self) -> bool:
        self._offset = 0
        return True


class FileSource:
    """A file as a source, read from its current position."""

    def __init__(self, file: BinaryIO, *, owned: bool) -> None:
        self._file = file
        self._owned = owned
        self._start = file.tell() if file.seekable() else None
        self._first = io.BytesIO()

    @classmethod
    def open(cls, source: Source) -> FileSource:
        if isinstance(source, str | os.PathLike):
            return cls(Path(source).open("rb"), owned=True)
        if not hasattr(source, "read") or not hasattr(source, "seekable"):
            reason = f"must be a path or a file open for bytes, not {type(source).__name__}"
            raise InvalidArgumentError(argument="source", reason=reason)
        return cls(source, owned=False)

    def small(self) -> bytes | None:
        """Return the whole file if it is small enough for one message; else None, and `read` starts
        at its beginning."""
        first = self._read(MAX_VALUE_BYTES + 1)
        self._first = io.BytesIO(first)
        return first if len(first) <= MAX_VALUE_BYTES else None

    def read(self, size_bytes: int) -> bytes:
        first = self._first.read(size_bytes)
        return first + self._read(size_bytes - len(first))

    def rewind(self) -> bool:
        """Go back to the beginning. Return False if the file cannot seek."""
        if self._start is None:
            return False
        self._file.seek(self._start)
        self._first = io.BytesIO()
        return True

    def close(self) -> None:
        if self._owned:
            self._file.close()

    def _read(self, size_bytes: int) -> bytes:
        # A pipe may return fewer bytes than were asked for.
        pieces = []
        while size_bytes > 0 and (piece := self._file.read(size_bytes)):
            size_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


async def write_file(chunks: AsyncIterable[bytes], path: str | os.PathLike[str]) -> None:
    """Write the chunks of a reader to `path`, all or nothing: to a new file beside it, which is
    then renamed.

    Raises what reading raises, and OSError.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")

    def undo(file: BinaryIO) -> None:
        file.close()
        draft.unlink()

    file = await opened(lambda: draft.open("xb"), undo)
    try:
        try:
            await _write_all(file, chunks)
            await asyncio.to_thread(_sync, file)
        finally:
            await asyncio.to_thread(file.close)
        await asyncio.to_thread(draft.replace, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        raise


async def _write_all(file: BinaryIO, chunks: AsyncIterable[bytes]) -> None:
    """Write the chunks piece by piece. A thread writes one while the next one arrives."""
    piece: list[bytes] = []
    piece_bytes = 0
    async with Beside[None]() as writing:
        async for chunk in chunks:
            piece.append(chunk)
            piece_bytes += len(chunk)
            if piece_bytes >= FILE_PIECE_BYTES:
                await writing.done()
                writing.begin(partial(_write, file, piece))
                piece, piece_bytes = [], 0
        await writing.done()
        writing.begin(partial(_write, file, piece))
        await writing.done()


def _write(file: BinaryIO, piece: list[bytes]) -> None:
    """Write a piece, and have the system begin to take it to the disk, where it can be told to: the
    sync at the end would otherwise wait for all of the file."""
    start = file.tell()
    file.writelines(piece)
    file.flush()
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), start, file.tell() - start, os.POSIX_FADV_DONTNEED)


async def opened(open_file: Callable[[], _Opened], undo: Callable[[_Opened], None]) -> _Opened:
    """Open something in a thread. If this is cancelled, `undo` is called as soon as it is open."""
    lock = threading.Lock()
    opened: list[_Opened] = []
    is_wanted = True

    def work() -> _Opened:
        file = open_file()
        with lock:
            opened.append(file)
            if not is_wanted:
                undo(file)
        return file

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        with lock:
            is_wanted = False
            for file in opened:
                undo(file)
        raise


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
