"""The pin of a running export: garbage collection removes nothing that its tasks have to read.

While the export reads the manifests it pins everything, because it does not know yet what it needs.
Once the last plan is made, it pins only what that plan names. A thread renews the pin while the
export runs. If the driver is killed, the pin keeps objects for at most an hour.

A bucket that refuses pins, as with read-only credentials, is exported without one. Objects may be
removed then, or if a pin could not be renewed in time, or if a store is deleted, which ignores
pins. A task notices that an object is missing, and leaves it for the next round (`export.py`).
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
#: The pause after a failed renewal: there is time for many tries before the pin expires.
_RETRY_SECONDS: Final = 60.0


class ExportPin:
    """A context manager that releases the pin at its end."""

    def __init__(self, bucket: Bucket, reason: str) -> None:
        self._pinning = Pinning(bucket, lambda: int(time.time() * 1000), reason)
        self._keys: Iterable[str] = ()
        self._logs = self._everything = False
        #: None before anything was pinned; False if the bucket refuses pins.
        self.is_held: bool | None = None
        # The lock makes the renewing thread put the last pin, and not an earlier one.
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
            # The pin expires by itself, and an error of the export itself matters more.
            return

    def hold_everything(self) -> None:
        """Pin all objects. Raises BucketError."""
        self._hold((), logs=True, everything=True)

    def hold_only(self, plan: ExportPlan) -> None:
        """Pin only what the tasks of a plan read. Raises BucketError."""
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
