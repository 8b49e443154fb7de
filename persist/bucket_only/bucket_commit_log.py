"""The commit log of a server without a shared file system: its slots in the bucket,
and nothing else.

What the pipeline calls a sync is the put of the next slot, with everything appended so far. Before
it, `paced` waits until a put is due, so that many ticks share one slot, including those appended
during the wait. Invariants:

- A put lasts until its outcome is known. The next one waits for it.
- The pipeline's checkpoints remove nothing here, because files on a server's own disk are only a
  cache. Only snapshots make slots removable (`SlotKeeper`). So `segment` merely counts what was
  written, to tell which files lag behind.

`append`, `paced`, `prepare_sync` and `settle` are called in the loop. The function that
`prepare_sync` returns runs in the uploader's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from holdfast.persist.bucket_log.log_uploader import LogUploader
from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.protocol.limits import LOG_SEGMENT_BYTES
from holdfast.shared_fs.bucket_log.log_object import record_bytes
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.log_pace import LogPace


class BucketCommitLog:
    """The log of one incarnation, with the interface that the pipeline uses."""

    def __init__(
        self, putter: LogUploader, index: SlotIndex, pace: LogPace | None = None
    ) -> None:
        self._uploader = putter
        self._index = index
        self._pace = pace or LogPace()
        self._changed = asyncio.Event()
        self._records: list[LogRecord] = []
        self._unsettled_bytes = 0
        self._written_bytes = 0
        #: Slots that were put, as (slot, records, raw bytes, object's bytes). The thread adds them,
        #: the loop takes them.
        self._done: list[tuple[int, list[LogRecord], int, int]] = []

    @property
    def segment(self) -> int:
        return 1 + self._written_bytes // LOG_SEGMENT_BYTES

    @property
    def oldest_segment(self) -> int:
        return self.segment

    @property
    def size_bytes(self) -> int:
        """The bytes of slots that are still needed, plus those that are not in a slot yet."""
        return self._index.size_bytes + self._unsettled_bytes

    def append(self, tick: int, records: Sequence[LogRecord]) -> int:
        """Keep the records of a tick for the next slot."""
        size_bytes = sum(map(record_bytes, records))
        self._records.extend(records)
        self._unsettled_bytes += size_bytes
        self._written_bytes += size_bytes
        self._pace.added(asyncio.get_running_loop().time(), size_bytes)
        self._changed.set()
        return self.segment

    async def paced(self) -> None:
        """Return when the next put is due."""
        loop = asyncio.get_running_loop()
        self.settle()
        while (due_at := self._pace.due_at()) is not None and due_at > loop.time():
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._changed.wait()

    def prepare_sync(self) -> Callable[[], None]:
        """Return a function that commits everything appended so far; call it in the
        uploader's thread.

        If it raises FencedError, nothing of that is committed, and nothing ever will be.
        """
        self.settle()
        records, self._records = self._records, []
        if not records:
            return _nothing
        self._pace.begun(asyncio.get_running_loop().time())

        def put() -> None:
            slot, size_bytes = self._uploader.put(records)
            self._done.append((slot, records, sum(map(record_bytes, records)), size_bytes))

        return put

    def begin_segment(self) -> int:
        """Return the present segment, which only counts: see the module's invariants."""
        return self.segment

    def put_empty(self) -> None:
        """Put a slot without records, so that the one before it may go. Call it in the uploader's
        thread. Raises FencedError, BucketError."""
        slot, size_bytes = self._uploader.put(())
        self._done.append((slot, [], 0, size_bytes))

    def settle(self) -> None:
        """Note the slots that were put."""
        while self._done:
            slot, records, raw_bytes, size_bytes = self._done.pop(0)
            self._index.added(slot, records, size_bytes)
            self._unsettled_bytes -= raw_bytes
            # An empty one was not paced.
            if records:
                self._pace.ended()

    def retire(self, segment: int) -> None:
        """Do nothing; see the module's invariants."""

    def close(self) -> None:
        self._uploader.stop()


def _nothing() -> None:
    return None
