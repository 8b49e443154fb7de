"""The room for appends: what is not written, and what the bucket lacks, is bounded.

Two bounds, in bytes: MAX_QUEUED_BYTES for appends that are not acknowledged, which are in memory,
and `max_unuploaded_bytes` for all that the bucket does not have yet, which the disk keeps. An
append waits until there is room for it under both. So a bucket that is away, or a slow disk, slows
the application down, and fills neither memory nor disk.

It is used by many threads.
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.protocol.errors import BusyError
from holdfast.protocol.limits import MIB

#: Appends in memory.
MAX_QUEUED_BYTES: Final = 32 * MIB


class AppendRoom:
    """The room of one library."""

    def __init__(
        self, max_unuploaded_bytes: int | None, *, max_queued_bytes: int = MAX_QUEUED_BYTES
    ) -> None:
        """`max_unuploaded_bytes` is None without a bucket."""
        self._max_queued_bytes = max_queued_bytes
        self._max_unuploaded_bytes = max_unuploaded_bytes
        self._changed = threading.Condition()
        self._queued_bytes = 0
        self._unuploaded_bytes = 0
        self._ended = False

    @property
    def unuploaded_bytes(self) -> int:
        """Bytes that the bucket does not have, or is not known to have; 0 without a bucket."""
        with self._changed:
            return self._unuploaded_bytes

    def take(self, size_bytes: int, timeout_seconds: float | None) -> None:
        """Wait for room for an append; None waits for ever. Returns early once `end` was called.
        Raises BusyError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._has(size_bytes), timeout_seconds):
                is_queue = self._queued_bytes + size_bytes > self._max_queued_bytes
                what = "the queue of appends" if is_queue else "what the bucket still has to take"
                raise BusyError(what=what)
            self._queued_bytes += size_bytes
            if self._max_unuploaded_bytes is not None:
                self._unuploaded_bytes += size_bytes

    def written(self, size_bytes: int) -> None:
        """Note that appends were acknowledged."""
        with self._changed:
            self._queued_bytes -= size_bytes
            self._changed.notify_all()

    def failed(self, size_bytes: int) -> None:
        """Note that appends failed: nothing of them is stored."""
        with self._changed:
            self._queued_bytes -= size_bytes
            if self._max_unuploaded_bytes is not None:
                self._unuploaded_bytes -= size_bytes
            self._changed.notify_all()

    def found(self, size_bytes: int) -> int:
        """Count a stream that was opened and that the bucket may lack; return what it counts as.
        No more than there is room for is counted."""
        if self._max_unuploaded_bytes is None:
            return 0
        with self._changed:
            free = max(0, self._max_unuploaded_bytes - self._unuploaded_bytes)
            counted = min(size_bytes, free)
            self._unuploaded_bytes += counted
            return counted

    def uploaded(self, size_bytes: int) -> None:
        """Note that the bucket has that much more, or that it will never need it."""
        if self._max_unuploaded_bytes is None:
            return
        with self._changed:
            self._unuploaded_bytes -= size_bytes
            self._changed.notify_all()

    def end(self) -> None:
        """Let everybody go on who waits: they find the library closed."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has(self, size_bytes: int) -> bool:
        if self._ended:
            return True
        if self._queued_bytes and self._queued_bytes + size_bytes > self._max_queued_bytes:
            return False
        limit = self._max_unuploaded_bytes
        return limit is None or self._unuploaded_bytes + size_bytes <= limit
