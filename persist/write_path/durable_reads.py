"""Reads of durable state. They run after the sync that they depend on, in the loop, group by group.

A read whose store is leased, that needs archived values, or that would wait for the disk, goes
back to where it waits, and runs again later. A store can be read even while its disk takes no
writes: acknowledged changes are in memory.
"""

from __future__ import annotations

import logging
from typing import Any

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.operations import reads
from holdfast.persist.operations.read_rows import ROW_BYTES, ArchiveNeededError, ReadBounds
from holdfast.persist.prefetch.prefetching import Prefetcher
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.tail.tail_reads import TailBounds
from holdfast.persist.tail.tail_reads import answers as answers_of_tail
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.tick import Answers
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    StorageError,
    StorageFailedError,
    UnavailableError,
    internal_error,
)
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")


class DurableReads:
    """Executes the reads of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        inbox: Inbox,
        progress: LogProgress,
        materialiser: Materialiser,
        archive_reads: ArchiveReads,
        prefetcher: Prefetcher,
    ) -> None:
        self._server = life.server
        self._inbox = inbox
        self._progress = progress
        self._materialiser = materialiser
        self._archive_reads = archive_reads
        self._prefetcher = prefetcher
        self._tail_reads = life.statistics.counter(metrics.TAIL_READS)
        self._mishaps = Mishaps(logger)
        self._read_failing = Trouble(logger, "store.read_failed")
        self._apply_failing = Trouble(logger, "store.apply_failed")

    def execute(self, store: Store, arrival: Arrival, answers: Answers, bounds: ReadBounds) -> int:
        """Execute a group of reads and add its answer to `answers`. Return the
        answer's size in bytes."""
        if store.state is not OpenState.SERVING:
            self._inbox.submit_again([arrival])
            return 0
        if store.removes_much(self._progress.synced_tick) and not store.apply_failed:
            # Operations that need the file wait until that is done.
            self._materialiser.apply_much(store)
            self._inbox.submit_again([arrival])
            return 0
        is_large = self._prefetcher.concerns(store)
        disk_reads = 0
        try:
            if is_large:
                if not self._prefetcher.is_ready(store, arrival, bounds):
                    return 0
                disk_reads = self._prefetcher.disk_reads()
            results = self._read_synced(store, arrival, bounds)
            if is_large:
                self._prefetcher.has_read(store, arrival.group.operations, results, disk_reads)
            file = store.contents.file
            if file is not None and file.has_archived:
                self._archive_reads.has_read(store, arrival, results)
            outcome = frames.encode_outcome(store.epoch, store.time, 0, results)
        except FencedError:
            raise
        except ArchiveNeededError as needed:
            # The group still counts as waiting.
            self._archive_reads.want(arrival, needed.messages)
            return 0
        except (StorageError, UnavailableError) as error:
            self._inbox.waits_no_longer(arrival)
            self._read_failing.note("store=%s reason=%s", store.id, error, of=store.id)
            elements = answers.setdefault(arrival.reply, [])
            elements.append(frames.error_result(arrival.position, error))
            return 0
        except Exception as error:  # noqa: BLE001 (answered to this group)
            self._inbox.waits_no_longer(arrival)
            self._mishaps.note("read.failed", store.id, error)
            refusal = error if isinstance(error, HoldfastError) else internal_error("a read", error)
            elements = answers.setdefault(arrival.reply, [])
            elements.append(frames.error_result(arrival.position, refusal))
            return 0
        self._read_failing.over(store.id)
        self._inbox.waits_no_longer(arrival)
        elements = answers.setdefault(arrival.reply, [])
        elements.append([arrival.position, 0, outcome])
        return len(outcome)

    def _read_synced(self, store: Store, arrival: Arrival, bounds: ReadBounds) -> list[Any]:
        operations, archived = arrival.group.operations, self._archive_reads.at_hand(store, arrival)
        if store.last_tick <= self._progress.synced_tick:
            heads = reads.head_without_file(store, self._server, operations)
            if heads is not None:
                return heads
        tail = store.tail(self._progress.synced_tick)
        if tail is not None and store.contents.file is not None:
            of_tail = TailBounds(*bounds, ROW_BYTES)
            found = answers_of_tail(store.contents.file, tail, operations, of_tail)
            if found is not None:
                self._tail_reads.value += 1
                return found
        mishaps: list[Exception] = []
        try:
            store.materialise(self._progress.synced_tick)
        except StorageFailedError as error:
            # The disk takes no writes, but what is acknowledged can still be read.
            self._apply_failing.note("store=%s reason=%s", store.id, error, of=store.id)
            with store.previewed(self._progress.synced_tick):
                results = reads.execute(store, self._server, operations, archived, mishaps, bounds)
        else:
            self._apply_failing.over(store.id)
            results = reads.execute(store, self._server, operations, archived, mishaps, bounds)
        for mishap in mishaps:
            self._mishaps.note("read.failed", store.id, mishap)
        return results
