"""Streams in the process of an application, on a folder that it has for itself.

    with open_library("data", bucket="s3://backups/events") as library:
        events = library.stream("events")
        appended = events.append([b"signed-up", b"logged-in"]).result()
        records = events.fetch(appended.base_offset, appended.next_offset).result().records

The folder is that of a cluster: `holdfast up --data data` serves these streams to clients once the
library is closed, and a library opens what a cluster has written once the cluster is stopped.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    BackgroundThreadError,
    HoldfastError,
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    UnavailableError,
)
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import check_own_tenant, check_store
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError
from holdfast.shared_fs.bucket.bucket_tries import Retry
from holdfast.shared_fs.encryption.master_keys import read_master_keys
from holdfast.shared_fs.snapshots.cluster_bucket import open_cluster_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.stream_library.errors import (
    ForkedLibraryError,
    StreamClosedError,
    TakenOverError,
)
from holdfast.stream_library.room import AppendRoom
from holdfast.stream_library.runtime import Runtime
from holdfast.stream_library.sole_use import SoleUse
from holdfast.stream_library.stream import DEFAULT_TIMEOUT_SECONDS, EmbeddedStream
from holdfast.stream_library.stream_log import StreamLog
from holdfast.stream_library.uploading import Uploading

#: What the bucket may lack, unless it is told: as much as AutoMQ's S3Stream allows.
MAX_UNUPLOADED_BYTES: Final = 1024 * MIB
_LEAST_UNUPLOADED_BYTES: Final = 8 * MIB
_BUCKET_RETRY: Final = Retry(max_tries=5, timeout_seconds=10.0)
_DESTROY_LOOK_SECONDS: Final = 0.02


class StreamLibrary:
    """The streams of one folder. Made by `open_library`."""

    def __init__(
        self, runtime: Runtime, room: AppendRoom, use: SoleUse, *, has_bucket: bool
    ) -> None:
        self._runtime = runtime
        self._room = room
        self._use = use
        self._has_bucket = has_bucket
        self._made_in = os.getpid()
        #: Opening and closing a stream, one at a time.
        self._lock = threading.Lock()
        self._logs: dict[str, StreamLog] = {}
        self._uploads: dict[StreamLog, Uploading] = {}
        self._closed = False
        self._ended: HoldfastError | None = None
        runtime.on_end(self._server_ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stream(self, name: str, *, create: bool = True) -> EmbeddedStream:
        """Return a stream. It exists from its first append on. Calls with one name share it.

        Raises NotFoundError without `create` if the stream was never written; InvalidNameError,
        StoreDamagedError, StorageFailedError, TakenOverError, UnavailableError.
        """
        check_store(name)
        self._check_outside()
        with self._lock:
            self._check_open()
            log = self._logs.get(name)
            if log is None:
                opening = StreamLog.opened(name, self.runtime.requests, self.room, self._wake)
                log, revision, size_bytes = self.runtime.call(opening).result()
                if revision == 0 and not create:
                    raise NotFoundError(what="stream", name=name)
                if self._has_bucket:
                    # After a crash nobody knows what the bucket has, until it has said so.
                    found_bytes = self.room.found(size_bytes)
                    self.runtime.call(self._begin_upload(log, found_bytes)).result()
                self._logs[name] = log
                if self._ended is not None:
                    log.end(self._ended)
            return EmbeddedStream(self, log)

    @property
    def unuploaded_bytes(self) -> int:
        """About how many bytes of all streams the bucket lacks; 0 without a bucket."""
        return self.room.unuploaded_bytes

    def close(
        self,
        *,
        answer_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        upload_seconds: float = 1.0,
    ) -> None:
        """Answer everything that was appended, make all files durable, and let others have the
        folder. Appends that cannot be answered within `answer_seconds`, because the bucket must be
        asked first, fail with StreamClosedError. Then wait up to `upload_seconds` until the bucket
        has everything too; the disk has it in any case. Idempotent."""
        self.check_process()
        self._check_outside()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                give_up_at = time.monotonic() + answer_seconds
                for log in list(self._logs.values()):
                    with contextlib.suppress(OperationTimeoutError):
                        self._settle(log, give_up_at - time.monotonic())
                give_up_at = time.monotonic() + upload_seconds
                for upload in list(self._uploads.values()):
                    self._wait_for(upload, give_up_at - time.monotonic())
            finally:
                self.room.end()
                self.runtime.stop()
                self._use.end()

    # What streams ask for
    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def room(self) -> AppendRoom:
        return self._room

    def check_process(self) -> None:
        """Raise ForkedLibraryError in a child of the process that opened the library."""
        if os.getpid() != self._made_in:
            raise ForkedLibraryError(made_in=self._made_in, process_id=os.getpid())

    def uploaded_offset(self, log: StreamLog) -> int | None:
        """Return the offset below which the bucket has a stream; None without a bucket."""
        upload = self._uploads.get(log)
        return upload.offset if upload is not None else None

    def close_stream(self, log: StreamLog, timeout_seconds: float) -> None:
        """Let a stream take nothing more, and answer what it has taken. Raises
        OperationTimeoutError."""
        with self._lock:
            if self._logs.get(log.name) is log and not self._closed:
                self._settle(log, timeout_seconds)
                del self._logs[log.name]

    def destroy_stream(self, log: StreamLog, timeout_seconds: float) -> None:
        """Destroy a stream. Raises OperationTimeoutError, UnavailableError, StorageError."""
        give_up_at = time.monotonic() + timeout_seconds
        with self._lock:
            if self._closed:
                raise StreamClosedError(stream=log.name)
            self._settle(log, timeout_seconds)
            requests = self.runtime.requests
            head = self.runtime.call(requests.read(log.name, [frames.HEAD])).result()
            job = secrets.token_hex(8)
            while head[0]:
                try:
                    asking = requests.destroy(log.name, head[5], job)
                    if self.runtime.call(asking).result():
                        break
                except UnavailableError as error:
                    if time.monotonic() > give_up_at:
                        raise OperationTimeoutError(
                            timeout_seconds=timeout_seconds, reason=str(error)
                        ) from error
                    job = secrets.token_hex(8)
                if time.monotonic() > give_up_at:
                    raise OperationTimeoutError(
                        timeout_seconds=timeout_seconds, reason="it is still being destroyed"
                    )
                time.sleep(_DESTROY_LOOK_SECONDS)
            upload = self._uploads.pop(log, None)
            if upload is not None:
                self.runtime.call(_forget(upload)).result()
            if self._logs.get(log.name) is log:
                del self._logs[log.name]

    def _settle(self, log: StreamLog, seconds: float) -> None:
        log.close()
        # If the server has ended, all that was taken is answered too.
        with contextlib.suppress(TakenOverError):
            try:
                self.runtime.call(log.drained()).result(max(0.0, seconds))
            except TimeoutError as error:
                reason = "appends are not answered"
                raise OperationTimeoutError(timeout_seconds=seconds, reason=reason) from error

    def _wait_for(self, upload: Uploading, seconds: float) -> None:
        with contextlib.suppress(TimeoutError, TakenOverError):
            self.runtime.call(upload.caught_up()).result(max(0.0, seconds))

    def _wake(self, log: StreamLog) -> bool:
        return self.runtime.spawn(log.drain())

    def _server_ended(self, error: HoldfastError) -> None:
        self._ended = error
        for log in list(self._logs.values()):
            log.end(error)
        # Whoever waits for room finds out.
        self.room.end()

    async def _begin_upload(self, log: StreamLog, found_bytes: int) -> None:
        upload = self._uploads[log] = Uploading(log, self.runtime.requests, self.room, found_bytes)
        log.on_written = upload.want
        self.runtime.tasks.spawn(upload.run())
        upload.want()

    def _check_open(self) -> None:
        self.check_process()
        if self._closed:
            raise StreamClosedError(stream="every stream of this library")

    def _check_outside(self) -> None:
        if self.runtime.is_own_thread:
            raise BackgroundThreadError(reason="this is the library's own thread")


async def _forget(upload: Uploading) -> None:
    upload.forget()


def open_library(
    folder: str | os.PathLike[str],
    *,
    tenant: str = "default",
    bucket: str | Bucket | None = None,
    max_unuploaded_bytes: int = MAX_UNUPLOADED_BYTES,
    cold_after_seconds: float | None = None,
    master_key_files: Sequence[str | os.PathLike[str]] = (),
    master_key_commands: Sequence[str] = (),
) -> StreamLibrary:
    """Open the streams of a tenant in `folder`, which is created if it is missing or empty.

    - `bucket` is a URL, `file:///FOLDER` or `s3://NAME/PREFIX[?endpoint=URL]`, or an open Bucket.
      Everything that is appended goes there too, a few times a second. Use the same bucket each
      time.
    - `max_unuploaded_bytes`, at least 8 MiB: appends wait while the bucket lacks more than that.
    - `cold_after_seconds`: a stream that nobody has used for so long stays in the bucket alone, and
      comes back when it is next used; a day, unless told.
    - `master_key_files` and `master_key_commands` give the master keys of encrypted tenants, as
      servers take them (docs/encryption.md). Without the right one, the streams of such a tenant
      are refused with KeyUnavailableError.

    Raises AlreadyRunningError while a cluster or another library has the folder; NewerFormatError,
    StoreDamagedError, StorageFailedError; InvalidArgumentError for a master key that cannot be
    read or that others may read; BucketUnfitError and BucketRefusedError for a bucket
    that cannot be used.
    """
    check_own_tenant(tenant)
    if max_unuploaded_bytes < _LEAST_UNUPLOADED_BYTES:
        reason = f"must be at least {_LEAST_UNUPLOADED_BYTES}"
        raise InvalidArgumentError(argument="max_unuploaded_bytes", reason=reason)
    files = [Path(each) for each in master_key_files]
    masters = read_master_keys(files, master_key_commands)
    policy = TierPolicy()
    if cold_after_seconds is not None:
        policy = TierPolicy(cold_after_seconds=cold_after_seconds)
    use = SoleUse.begin(Path(folder))
    try:
        opened = _open_bucket(bucket) if bucket is not None else None
        room = AppendRoom(max_unuploaded_bytes if opened is not None else None)
        runtime = Runtime(use, tenant, opened, policy, masters)
        runtime.start()
    except BaseException:
        use.end()
        raise
    return StreamLibrary(runtime, room, use, has_bucket=opened is not None)


def _open_bucket(given: str | Bucket) -> Bucket:
    """Open the bucket and try what it honours. One that is away now may come back."""
    bucket = open_cluster_bucket(given, retry=_BUCKET_RETRY) if isinstance(given, str) else given
    try:
        bucket.try_out()
        open_manifests(bucket)
    except BucketUnavailableError:
        # The disk has what is appended, until the room for it is used up.
        return bucket
    return bucket
