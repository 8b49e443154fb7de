"""One stream as the library has it: its offsets, its appends in order, its reads.

    append ──▶ queue ──▶ one group at a time ──▶ server: tick, log, sync, fence ──▶ futures
                                                    └──▶ the log in the bucket (`uploading.py`)

Offsets are given when `append` is called (`next_offset`), because the server numbers what it gets
in the order in which it gets it. They count once the future is done (`confirm_offset`), and futures
are done in order. If an append fails, everything that was to follow it fails too, and `next_offset`
goes back.

`enqueue_append`, `enqueue_trim` and the properties are for all threads. The rest runs in the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, UnavailableError
from holdfast.protocol.frames import Outcome, Run
from holdfast.protocol.messages import Durability
from holdfast.stream_library.append_queue import (
    Waiting,
    WaitingAppend,
    WaitingTrim,
    next_group,
    operations_of,
)
from holdfast.stream_library.errors import (
    AppendAbortedError,
    OffsetOutOfRangeError,
    StreamClosedError,
)
from holdfast.stream_library.records import (
    RECORD_BYTES,
    AppendedBatch,
    Batch,
    FetchedRecords,
    StreamRecord,
    large_value_of,
    record_from_row,
)
from holdfast.stream_library.requests import StreamRequests, checked_result
from holdfast.stream_library.room import AppendRoom

#: Between two tries of a group that the server is too busy for; doubled up to the longest.
_RETRY_SECONDS: Final = 0.01
_LONGEST_RETRY_SECONDS: Final = 0.25


class StreamLog:
    """A stream of one library. Make it with `opened`."""

    def __init__(
        self,
        name: str,
        requests: StreamRequests,
        room: AppendRoom,
        head: list[Any],
        config: dict[str, Any],
        wake: Callable[[StreamLog], bool],
    ) -> None:
        """`head` and `config` are the results of reads. `wake` has `drain` run in the loop; it
        returns False if the loop is over."""
        self.name = name
        self.epoch: int = head[5]
        self._requests = requests
        self._room = room
        self._has_limits = bool(config)
        self._wake = wake
        self._lock = threading.Lock()
        self._queue: deque[Waiting] = deque()
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._start: int = head[1] if head[3] else head[2] + 1
        self._confirmed: int = head[2] + 1
        self._next: int = self._confirmed
        self._closed = False
        #: Why nothing can be stored any more, once that is so.
        self._ended: HoldfastError | None = None
        self._writer = secrets.token_bytes(12)
        self._counter = 0
        #: Bytes that were acknowledged since the last mark of `uploading.py` was set.
        self.written_bytes = 0
        #: Called in the loop after each group that was stored.
        self.on_written: Callable[[], None] = _nothing

    @classmethod
    async def opened(
        cls,
        name: str,
        requests: StreamRequests,
        room: AppendRoom,
        wake: Callable[[StreamLog], bool],
    ) -> tuple[StreamLog, int, int]:
        """Return a stream with its revision, 0 if it was never written, and the bytes in it."""
        head = await requests.read(name, [frames.HEAD])
        config = await requests.read(name, [frames.CONFIG])
        return cls(name, requests, room, head, config, wake), head[0], head[4]

    # For all threads
    @property
    def start_offset(self) -> int:
        with self._lock:
            return self._start

    @property
    def next_offset(self) -> int:
        with self._lock:
            return self._next

    @property
    def confirm_offset(self) -> int:
        with self._lock:
            return self._confirmed

    @property
    def is_closed(self) -> bool:
        with self._lock:
            return self._closed

    def enqueue_append(self, batch: Batch) -> Future[AppendedBatch]:
        """Append a batch for which there is room. Raises StreamClosedError."""
        future: Future[AppendedBatch] = Future()
        with self._lock:
            if self._closed or self._ended is not None:
                self._room.failed(batch.size_bytes)
                raise self._ended or StreamClosedError(stream=self.name)
            self._next += len(batch.operations)
            is_first = self._enqueue(WaitingAppend(batch, future))
        self._go_on(is_first)
        return future

    def enqueue_trim(self, new_start: int) -> Future[None]:
        """Trim the stream. Raises OffsetOutOfRangeError, StreamClosedError."""
        future: Future[None] = Future()
        with self._lock:
            if self._closed or self._ended is not None:
                raise self._ended or StreamClosedError(stream=self.name)
            if type(new_start) is not int or new_start > self._confirmed:
                raise self._out_of_range(f"a start of {new_start}")
            if new_start <= self._start:
                future.set_result(None)
                return future
            is_first = self._enqueue(WaitingTrim(new_start, future))
        self._go_on(is_first)
        return future

    def check_range(self, start: int, end: int) -> None:
        """Raise OffsetOutOfRangeError unless all offsets from `start` to before `end` can be read.
        Raises StreamClosedError."""
        with self._lock:
            if self._closed or self._ended is not None:
                raise self._ended or StreamClosedError(stream=self.name)
            if not self._start <= start <= end <= self._confirmed:
                raise self._out_of_range(f"{start} to before {end}")

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            self._closed = True

    def end(self, error: HoldfastError) -> None:
        """Fail what is queued, and whatever comes, with `error`: the server has ended."""
        with self._lock:
            self._ended = error
            queued = list(self._queue)
            self._queue.clear()
            self._next = self._confirmed
        for each in queued:
            _set_exception(each.future, error)

    def _enqueue(self, pending: Waiting) -> bool:
        """Return whether `drain` has to begin."""
        self._queue.append(pending)
        is_first, self._is_draining = not self._is_draining, True
        return is_first

    def _go_on(self, is_first: bool) -> None:
        if is_first and not self._wake(self):
            self.end(self._requests.ended)

    def _out_of_range(self, asked: str) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            stream=self.name,
            start_offset=self._start,
            confirm_offset=self._confirmed,
            asked=asked,
        )

    # In the loop
    async def drain(self) -> None:
        """Write what is queued until the queue is empty. Only one runs at a time."""
        self._idle.clear()
        try:
            while True:
                with self._lock:
                    if not self._queue:
                        self._is_draining = False
                        return
                    group = next_group(self._queue)
                try:
                    outcome = await self._written(group)
                except HoldfastError as error:
                    self._fail(group, error)
                except asyncio.CancelledError:
                    # The loop ends, and nobody else has the group.
                    for each in group:
                        _set_exception(each.future, self._ended or self._requests.ended)
                    raise
                else:
                    self._complete(group, outcome)
        finally:
            self._idle.set()

    async def drained(self) -> None:
        """Return once nothing is under way."""
        while True:
            await self._idle.wait()
            with self._lock:
                if not self._is_draining or self._ended is not None:
                    return
            # A drain is about to begin.
            await asyncio.sleep(0)

    async def _written(self, group: list[Waiting]) -> Outcome:
        """Have a group stored. A server that is busy took nothing of it."""
        operations = operations_of(group, has_limits=self._has_limits)
        self._counter += 1
        pause_seconds = _RETRY_SECONDS
        while True:
            try:
                outcome = await self._requests.write(
                    self.name, self._writer, self._counter, Durability.SYNCED, operations
                )
            except UnavailableError:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_RETRY_SECONDS)
                continue
            if type(outcome.results) is not Run:
                for index in range(len(outcome.results)):
                    checked_result(outcome, index)
            return outcome

    def _complete(self, group: list[Waiting], outcome: Outcome) -> None:
        first = group[0]
        if isinstance(first, WaitingTrim):
            with self._lock:
                self._start = max(self._start, first.new_start)
            _set_result(first.future, None)
            self.on_written()
            return
        offset = first_seq(outcome)
        size_bytes = 0
        done: list[tuple[Future[AppendedBatch], AppendedBatch]] = []
        for each in group:
            assert isinstance(each, WaitingAppend)
            next_offset = offset + len(each.batch.operations)
            done.append((each.future, AppendedBatch(offset, next_offset, outcome.time)))
            size_bytes += each.batch.size_bytes
            offset = next_offset
        with self._lock:
            self._confirmed = offset
        self.epoch = outcome.epoch
        self.written_bytes += size_bytes
        self._room.written(size_bytes)
        for future, appended in done:
            _set_result(future, appended)
        self.on_written()

    def _fail(self, group: list[Waiting], error: HoldfastError) -> None:
        """Fail a group, and if it was of appends, all that was to follow it."""
        first = group[0]
        if isinstance(first, WaitingTrim):
            _set_exception(first.future, error)
            return
        with self._lock:
            behind = list(self._queue)
            self._queue.clear()
            self._next = self._confirmed
        aborted = AppendAbortedError(stream=self.name, reason=str(error))
        for each in group + behind:
            if isinstance(each, WaitingAppend):
                self._room.failed(each.batch.size_bytes)
        for each in group:
            _set_exception(each.future, error)
        for each in behind:
            _set_exception(each.future, aborted)

    async def fetch(self, start: int, end: int, max_bytes: int) -> FetchedRecords:
        """Return records from `start` to before `end`: at least one, if there is any, and no more
        than `max_bytes` beyond that. The range was checked."""
        records: list[StreamRecord] = []
        size_bytes = 0
        while start < end:
            operation = [frames.GET_MESSAGES, start, end - 1]
            rows, next_seq = await self._requests.read(self.name, operation)
            for row in rows:
                large = large_value_of(row)
                value_bytes = len(row[3]) if large is None else large.size_bytes
                size_bytes += value_bytes + RECORD_BYTES
                if records and size_bytes > max_bytes:
                    return FetchedRecords(records, row[0])
                if large is not None:
                    row[3] = await self._whole(large.upload_id)
                records.append(record_from_row(row, self.name))
            start = end if next_seq is None else next_seq
        return FetchedRecords(records, end)

    async def _whole(self, upload_id: bytes) -> bytes:
        """Return a value that a client of a cluster has stored in chunks."""
        value = bytearray()
        while True:
            chunk = await self._requests.read(self.name, [frames.READ_CHUNK, upload_id, len(value)])
            if type(chunk) is not bytes:
                raise MalformedFrameError(reason="a chunk must be bytes")
            if not chunk:
                return bytes(value)
            value += chunk


def first_seq(outcome: Outcome) -> int:
    """Return the seq of the first message that an outcome of appends tells."""
    results: Any = outcome.results
    if isinstance(results, Run):
        return results.seq
    # The result of an append is [seq, revision], and that of a batch a list of such.
    while isinstance(results, list):
        results = results[0]
    seq: int = results
    return seq


def _set_result(future: Future[Any], result: object) -> None:
    # A caller may have cancelled the future; the append is made all the same.
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def _set_exception(future: Future[Any], error: HoldfastError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _nothing() -> None:
    return None
