"""Keeps records that may not fit into memory: beyond a few megabytes they go to a file.

A restore must look at all records of a store before it knows which ones count, and those of large
values are gigabytes. `keep` returns a record whose payloads are read on demand. The file is an
unnamed temporary file: it disappears with the spool, or with the process.

For one thread at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, Final, Self, overload

from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.disk.commit_log import LogRecord

#: Bytes held in memory: enough for most restores.
_HELD_BYTES: Final = 8 * MIB


class RecordSpool:
    """Keeps records while it is open; use it with `with`."""

    def __init__(self, held_bytes: int = _HELD_BYTES) -> None:
        self._left_bytes = held_bytes
        self._file: IO[bytes] | None = None
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def keep(self, record: LogRecord) -> LogRecord:
        """Return the same record. Its payloads are available as long as the spool is open.

        Raises StorageFailedError.
        """
        size_bytes = sum(map(len, record.payloads))
        if size_bytes <= self._left_bytes:
            self._left_bytes -= size_bytes
            return record
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="holdfast-")  # noqa: SIM115 (with the spool)
            places = []
            self._file.seek(self._end)
            for payload in record.payloads:
                self._file.write(payload)
                places.append((self._end, len(payload)))
                self._end += len(payload)
        except OSError as error:
            raise StorageFailedError(reason=f"a temporary file: {error}") from error
        return record._replace(payloads=_Spooled(self._file, places))


class _Spooled(Sequence[bytes]):
    """Payloads in a file."""

    def __init__(self, file: IO[bytes], places: Sequence[tuple[int, int]]) -> None:
        self._file = file
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return _Spooled(self._file, self._places[index])
        return self._read(*self._places[index])

    def __iter__(self) -> Iterator[bytes]:
        for place in self._places:
            yield self._read(*place)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(size_bytes)
        except OSError as error:
            raise StorageFailedError(reason=f"a temporary file: {error}") from error
        if len(data) != size_bytes:
            raise StorageFailedError(reason="a temporary file has become shorter")
        return data
