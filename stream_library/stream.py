"""A stream of the library, as an application holds it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from holdfast.protocol.errors import BackgroundThreadError, InvalidArgumentError
from holdfast.protocol.limits import MIB
from holdfast.stream_library.records import AppendedBatch, FetchedRecords, NewRecord, checked_batch
from holdfast.stream_library.room import AppendRoom
from holdfast.stream_library.runtime import Runtime
from holdfast.stream_library.stream_log import StreamLog

#: How long calls that block wait, unless they are told.
DEFAULT_TIMEOUT_SECONDS: Final = 30.0
#: What a fetch returns at most, unless it is told.
DEFAULT_FETCH_BYTES: Final = MIB


class StreamKeeper(Protocol):
    """The library of a stream."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def room(self) -> AppendRoom: ...

    def check_process(self) -> None:
        """Raise ForkedLibraryError in a child of the process that opened the library."""

    def uploaded_offset(self, log: StreamLog) -> int | None:
        """Return the offset below which the bucket has a stream; None without a bucket."""

    def close_stream(self, log: StreamLog, timeout_seconds: float) -> None:
        """Let a stream take nothing more, and answer what it has taken. Raises
        OperationTimeoutError."""

    def destroy_stream(self, log: StreamLog, timeout_seconds: float) -> None:
        """Destroy a stream. Raises OperationTimeoutError, UnavailableError, StorageError."""


class EmbeddedStream:
    """Records with the offsets 1, 2, 3, ... in order. Made by `StreamLibrary.stream`.

    All methods may be called from any thread. Those that return a `concurrent.futures.Future` do
    not wait for the disk; `asyncio.wrap_future` makes one awaitable. Callbacks of futures run in
    the library's thread: they must not block, nor wait for another future.

    A future that fails has the error as its exception:

    - StorageFailedError, StoreDamagedError: the disk refused;
    - AppendAbortedError: an append before this one failed, so this one was not made;
    - TakenOverError: the folder is not this process's any more. Whether what was unanswered is
      stored, the next process that opens the folder finds out.
    """

    def __init__(self, library: StreamKeeper, log: StreamLog) -> None:
        self._library = library
        self._log = log

    def __repr__(self) -> str:
        return f"EmbeddedStream({self.stream_id!r})"

    @property
    def stream_id(self) -> str:
        """The name of the stream."""
        return self._log.name

    @property
    def start_offset(self) -> int:
        """The first offset that can be read; `confirm_offset` if there is none."""
        return self._log.start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets, unless an append that is under way fails."""
        return self._log.next_offset

    @property
    def confirm_offset(self) -> int:
        """All records below this offset are durable on this disk, and can be read."""
        return self._log.confirm_offset

    @property
    def uploaded_offset(self) -> int | None:
        """The bucket has all records below this offset; None without a bucket. It is lower than it
        could be for a moment after the stream was opened."""
        return self._library.uploaded_offset(self._log)

    def append(
        self,
        batch: Sequence[NewRecord],
        *,
        timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS,
    ) -> Future[AppendedBatch]:
        """Append all records of `batch` or none. The future is done once they are durable on the
        disk. Futures of one stream complete in the order of these calls.

        A record is its value, bytes of at most 1 MB, or a pair of value and headers, texts by name.
        A batch has at most 4,096 records and 4 MiB.

        The call waits, up to `timeout_seconds` (None: for ever), while there is no room: too much
        is queued, or the bucket has too much still to take.

        Raises BusyError if there is no room; then nothing is appended. Raises InvalidArgumentError,
        TooLargeError, StreamClosedError.
        """
        checked = checked_batch(batch)
        self._library.check_process()
        self._library.room.take(checked.size_bytes, 0 if self._is_inside else timeout_seconds)
        return self._log.enqueue_append(checked)

    def fetch(
        self, start_offset: int, end_offset: int, max_bytes_hint: int = DEFAULT_FETCH_BYTES
    ) -> Future[FetchedRecords]:
        """Return the records from `start_offset` to before `end_offset`, or the first of them:
        at least one, and no more than about `max_bytes_hint` bytes beyond that.

        Raises OffsetOutOfRangeError unless `start_offset <= end_offset`, and both are within
        `start_offset` and `confirm_offset` of the stream; InvalidArgumentError, StreamClosedError.
        """
        for argument, value in (
            ("start_offset", start_offset),
            ("end_offset", end_offset),
            ("max_bytes_hint", max_bytes_hint),
        ):
            if type(value) is not int or value < 0:
                raise InvalidArgumentError(argument=argument, reason="must be an int from 0 on")
        self._library.check_process()
        self._log.check_range(start_offset, end_offset)
        return self._library.runtime.call(self._log.fetch(start_offset, end_offset, max_bytes_hint))

    def trim(self, new_start_offset: int) -> Future[None]:
        """Drop all records below `new_start_offset`. What is below the start already is fine.

        Raises OffsetOutOfRangeError above `confirm_offset`, StreamClosedError.
        """
        self._library.check_process()
        return self._log.enqueue_trim(new_start_offset)

    def close(self, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Take nothing more, and wait until everything that was appended is answered. The library
        opens the stream again. Idempotent. Raises OperationTimeoutError: call it again."""
        self._check_outside()
        self._library.close_stream(self._log, timeout_seconds)

    def destroy(self, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Remove the stream, from the disk and from the bucket. A stream that is made later under
        this name begins anew.

        Raises OperationTimeoutError: call it again. Raises UnavailableError, StorageError.
        """
        self._check_outside()
        self._library.destroy_stream(self._log, timeout_seconds)

    @property
    def _is_inside(self) -> bool:
        return self._library.runtime.is_own_thread

    def _check_outside(self) -> None:
        self._library.check_process()
        if self._is_inside:
            raise BackgroundThreadError(reason="this is the library's own thread")
