"""A large value for blocking code, which reads it like a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.blocking.background import Background
from holdfast.client.large_values.value_reader import ValueReader as AsyncValueReader
from holdfast.protocol.messages import Entry, Message

_Row = TypeVar("_Row", Message, Entry)


class ValueReader(io.RawIOBase, Generic[_Row]):
    """Reads the value of one message or entry. Made by `get_reader`; for one thread.

    It is a binary file that is read from its beginning to its end, for `shutil.copyfileobj`,
    `io.BufferedReader` and everything else that takes a file. `for chunk in reader` yields it
    piece by piece, not line by line. The last piece is returned only if the whole value has the
    right sha256.

    Raises ValueReplacedError if the message or key was replaced or deleted meanwhile,
    LargeValueDamagedError if the value is damaged, and what any read raises.
    """

    def __init__(self, background: Background, reader: AsyncValueReader[_Row]) -> None:
        super().__init__()
        #: The message or entry, without its value if that is large.
        self.row: _Row = reader.row
        self.size_bytes = reader.size_bytes
        self._background = background
        self._reader: AsyncValueReader[_Row] = reader

    def __enter__(self) -> Self:
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._check_open()
        chunk = self._background.run(self._reader._next())
        if not chunk:
            raise StopIteration
        return chunk

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size_bytes: int | None = -1, /) -> bytes:
        """Return the next `size_bytes` bytes: fewer at the end of the value, b"" after it. Without
        an argument, return all that is left.
        """
        self._check_open()
        return self._background.run(self._reader.read(-1 if size_bytes is None else size_bytes))

    def readall(self) -> bytes:
        """Return the rest of the value."""
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """Read into a writable buffer. Return the number of bytes, 0 at the end."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
            return len(data)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("read of a closed file")
