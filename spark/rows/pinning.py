"""The pin of a running export: nothing that its tasks are to read is removed by the collector.

While the manifests are read everything is pinned, since nobody knows yet what will be needed; once
the plan is made, only what it names. A thread renews the pin as long as the export runs. One whose
driver is killed keeps objects for an hour at most.

A bucket that takes no pin, as of somebody who may only read it, is exported without. What is
removed then, or because a pin could not be renewed in time, or by the deletion of a store, which
asks for no pins, is found missing by a task and left for the next round (`export.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final, Self

from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketError, BucketRefusedError
from holdfast.shared_fs.snapshots.pins import Pinning
from holdfast.spark.rows.planning import ExportPlan, SnapshotWork

_PIN_SECONDS: Final = 3600.0
_RENEW_SECONDS: Final = 1200.0
#: Until the next try, if one has failed: there are many before the pin expires.
_RETRY_SECONDS: Final = 60.0


class ExportPin:
    """A context manager; the pin is gone at its end."""

    def __init__(self, bucket: Bucket, reason: str) -> None:
        self._pinning = Pinning(bucket, lambda: int(time.time() * 1000), reason)
        self._keys: Iterable[str] = ()
        self._logs = self._everything = False
        #: None before anything was pinned, and where nothing can be.
        self.is_held: bool | None = None
        # The renewing thread puts what was pinned last, and not what was before.
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="holdfast.pin", daemon=True)

    def __enter__(self) -> Self:
        self._renewer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._renewer.join()
        try:
            self._pinning.release()
        except BucketError:
            # It expires; what the export has to say is more than that.
            return

    def hold_everything(self) -> None:
        """Pin all that there is. Raises BucketError."""
        self._hold((), logs=True, everything=True)

    def hold_only(self, plan: ExportPlan) -> None:
        """Pin what the tasks of a plan read, in the place of everything. Raises BucketError."""
        keys = {
            work.version.key
            for task in plan.tasks
            for work in task.stores
            if isinstance(work, SnapshotWork)
        }
        self._hold(keys, logs=any(task.logs for task in plan.tasks), everything=False)

    def _hold(self, keys: Iterable[str], *, logs: bool, everything: bool) -> None:
        with self._lock:
            self._keys, self._logs, self._everything = keys, logs, everything
            if self.is_held is False:
                return
            try:
                self._put()
            except BucketRefusedError:
                self.is_held = False
            else:
                self.is_held = True

    def _put(self) -> None:
        self._pinning.hold(
            self._keys, logs=self._logs, everything=self._everything, seconds=_PIN_SECONDS
        )

    def _renew(self) -> None:
        wait_seconds = _RENEW_SECONDS
        while not self._ended.wait(wait_seconds):
            wait_seconds = _RENEW_SECONDS
            with self._lock:
                if not self.is_held:
                    continue
                try:
                    self._put()
                except BucketError:
                    wait_seconds = _RETRY_SECONDS
