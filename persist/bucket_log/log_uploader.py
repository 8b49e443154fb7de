"""Puts slots and retries until their outcome is known, however long the bucket is away.

Blocking: runs in a thread of its own. If it is unknown whether a slot exists, the same bytes are
put again, and nothing else meanwhile. So an outage costs time and never order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from holdfast.persist.threads.sync_thread import SyncThread
from holdfast.protocol.errors import FencedError
from holdfast.shared_fs.bucket.bucket_errors import BucketError
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog, Prepared
from holdfast.shared_fs.disk.commit_log import LogRecord

logger = logging.getLogger("holdfast.persist")

#: The delay between calls of the bucket, each of which retries by itself for a while.
_FIRST_WAIT_SECONDS: Final = 0.1
_MAX_WAIT_SECONDS: Final = 5.0


class BucketThread(SyncThread):
    """A thread for calls of the bucket: none is short, and none may block the loop."""

    @property
    def runs_in_loop(self) -> bool:
        return False


class LogUploader:
    """Puts the slots of one incarnation, one after the other."""

    def __init__(self, log: BucketLog, server: str) -> None:
        self._log = log
        self._server = server
        self._stopped = threading.Event()
        self._begun = False

    def stop(self) -> None:
        """Give up the present put. May be called in any thread."""
        self._stopped.set()

    def begin(self) -> None:
        """Put slot 0, unless that is done. Raises FencedError; BucketError once stopped."""
        if not self._begun:
            self._put(self._log.prepare(()))
            self._begun = True

    def put(self, records: Sequence[LogRecord]) -> tuple[int, int]:
        """Commit records as the next slot and return its number and size in bytes.

        Raises FencedError: nothing of it is committed. Raises BucketError once stopped: whether it
        is committed is unknown.
        """
        self.begin()
        prepared = self._log.prepare(records)
        self._put(prepared)
        return prepared.slot, len(prepared.body)

    def _put(self, prepared: Prepared) -> None:
        wait_seconds = _FIRST_WAIT_SECONDS
        began_at = time.monotonic()
        waits = False
        while True:
            try:
                self._log.put(prepared)
            except FencedError:
                raise
            except BucketError as error:
                if not waits:
                    waits = True
                    logger.error(
                        "slot.waits server=%s slot=%d reason=%s", self._server, prepared.slot, error
                    )
                if self._stopped.wait(wait_seconds):
                    raise
                wait_seconds = min(2 * wait_seconds, _MAX_WAIT_SECONDS)
                continue
            if waits:
                logger.warning(
                    "slot.goes_on server=%s slot=%d seconds=%.1f",
                    self._server,
                    prepared.slot,
                    time.monotonic() - began_at,
                )
            return
