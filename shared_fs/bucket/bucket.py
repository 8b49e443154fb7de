"""The bucket: objects by key, with conditional writes, checksums in both directions, and retries.

    bucket = open_bucket("s3://name/prefix?endpoint=http://127.0.0.1:9000")    # or file:///var/...
    version = bucket.put_new("log/p1/1", body)
    bucket.replace("manifest", newer, expected_version=version)

Invariants:

1. A write that returns has taken effect, durably and once. A write that raises ObjectExistsError or
   ObjectConflictError has not and never will. After OutcomeUnknownError, nobody can tell.
2. Every object carries the sha256 of its body and a nonce of the call that put it. `get` and
   `get_to_file` return the bytes that were put or raise ObjectDamagedError. `get_range` and
   `get_tail` cannot check a part: their callers keep checksums inside.
3. A try without an answer is repeated with the same nonce. If the next try finds that its condition
   no longer holds, the nonce of the object that is there tells whether this call put it.
4. Every call ends: the number of tries is limited, and none begins after a time limit.

An S3 store is tried before the first write that depends on more than `If-None-Match` of a put: see
`bucket_capabilities.py`.

Callers must keep two rules. Bodies given to `replace` never repeat (a manifest contains
a counter), since equal bodies may have equal versions. A deleted key is never used
again, since a delete without an answer may still take effect. Calls block; run them in
threads, as many as may run at once.
"""

from __future__ import annotations

import copy
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.protocol.errors import InvalidArgumentError, StorageFailedError, TooLargeError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    ByteRange,
    ListedObject,
    NewObject,
    Object,
    ObjectHead,
    OldVersion,
    PreconditionError,
    TransientError,
    Version,
    check_key,
)
from holdfast.shared_fs.bucket.bucket_capabilities import S3_WAYS, Ways
from holdfast.shared_fs.bucket.bucket_directory import DirectoryBackend
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    BucketUnfitError,
    ObjectConflictError,
    ObjectDamagedError,
    ObjectMissingError,
)
from holdfast.shared_fs.bucket.bucket_probe import find_ways
from holdfast.shared_fs.bucket.bucket_tries import (
    DEFAULT_RETRY,
    REAL_SURROUNDINGS,
    Calls,
    Retry,
    Surroundings,
)
from holdfast.shared_fs.bucket.bucket_usage import BucketUsage, RequestClass
from holdfast.shared_fs.bucket.bucket_writing import (
    MAX_FILE_BYTES,
    OWN_METADATA,
    PART_BYTES,
    SHA256_METADATA,
    BucketWriter,
)
from holdfast.shared_fs.disk.disk import Disk

#: The most that `get` reads into memory; larger objects go to a file.
MAX_GET_BYTES: Final = 64 * MIB
#: The network may deliver wrong bytes once.
_DAMAGED_READS: Final = 2

_T = TypeVar("_T")


class Bucket:
    """Objects on a backend. Thread-safe. For keys see `check_key`, for metadata `check_metadata`.

    All calls raise BucketUnavailableError and BucketRefusedError, and writes also
    OutcomeUnknownError.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        retry: Retry = DEFAULT_RETRY,
        surroundings: Surroundings = REAL_SURROUNDINGS,
        ways: Ways | None = S3_WAYS,
        usage: BucketUsage | None = None,
    ) -> None:
        """With None as `ways`, a trial finds them out when they first matter. `usage` counts the
        requests of several buckets together."""
        self._backend = backend
        self._ways = ways
        self._trial = threading.Lock()
        self._surroundings = surroundings
        #: The URL that it was opened with, if any.
        self.url = ""
        self.usage = usage or BucketUsage()
        self._calls = Calls(retry, surroundings, self.usage)
        self._writer = BucketWriter(backend, self._calls, surroundings.nonce)
        #: What may still forbid to write: see `check_before_writing`.
        self._check: Callable[[Bucket], None] | None = None

    @property
    def name(self) -> str:
        """The address, without secrets."""
        return self._backend.name

    @property
    def ways(self) -> Ways:
        """How to talk to the store. Tries it if that is not known yet, and raises as `try_out`."""
        if self._ways is None:
            with self._trial:
                if self._ways is None:
                    self._ways = find_ways(self)
        return self._ways

    def try_out(self) -> Ways:
        """Try what the store honours, and return how to talk to it from now on.

        Raises BucketUnfitError, and what prevents the use of the bucket: BucketRefusedError,
        BucketUnavailableError, ObjectDamagedError.
        """
        self._ways = find_ways(self)
        return self._ways

    def used_in(self, ways: Ways) -> Bucket:
        """Return the same bucket, spoken to in other ways."""
        other = copy.copy(self)
        other._ways = ways
        return other

    def check_before_writing(self, check: Callable[[Bucket], None]) -> None:
        """Call `check` before the next write, and before later ones until it has returned once.
        What it raises, the write raises. It gets this bucket without the check."""
        self._check = check

    def _may_write(self) -> None:
        check = self._check
        if check is not None:
            unchecked = copy.copy(self)
            unchecked._check = None
            check(unchecked)
            self._check = None

    def place_of(self, tenant: str) -> str:
        """Return what the keys of a tenant's new snapshots begin with, before `snapshots/` or
        `packs/`: nothing, or a place (`shared_fs/snapshots/places.py`)."""
        return ""

    def has_own_bucket(self, tenant: str) -> bool:
        """Tell whether `place_of` has lately found a place. Asks nobody."""
        return False

    def places(self) -> list[str]:
        """Return what the keys in the tenants' own buckets begin with."""
        return []

    def close(self) -> None:
        """Close the connections. No other call may run or follow."""
        self._backend.close()

    def get(self, key: str, *, limit_bytes: int = MAX_GET_BYTES) -> Object:
        """Return an object after verifying its checksum.

        Raises ObjectMissingError, ObjectDamagedError, TooLargeError beyond `limit_bytes`.
        """

        def read(head: ObjectHead, chunks: Iterator[bytes]) -> Object:
            if head.size_bytes > limit_bytes:
                raise TooLargeError(what=f"object {key!r}", size=head.size_bytes, limit=limit_bytes)
            body = b"".join(chunks)
            _verify(key, head, len(body), hashlib.sha256(body).hexdigest())
            return Object(body, len(body), head.version, _public(head.metadata))

        return self._read(key, None, read)

    def get_range(self, key: str, start: int, length: int) -> Object:
        """Return `length` bytes from `start`, or fewer if the object
        ends before. They are not verified.

        Raises ObjectMissingError.
        """
        if start < 0 or not 1 <= length <= MAX_GET_BYTES:
            raise InvalidArgumentError(
                argument="range", reason=f"{length} bytes from {start}; 1 to {MAX_GET_BYTES} from 0"
            )
        return self._get_part(key, ByteRange(start, length))

    def get_tail(self, key: str, length: int) -> Object:
        """Return the last `length` bytes, or all if there are fewer. They are not verified.

        Raises ObjectMissingError.
        """
        if not 1 <= length <= MAX_GET_BYTES:
            raise InvalidArgumentError(argument="length", reason=f"{length}; 1 to {MAX_GET_BYTES}")
        return self._get_part(key, ByteRange(None, length))

    def get_to_file(self, key: str, path: Path) -> ObjectHead:
        """Download an object to `path`, which is replaced atomically and synced
        after the checksum is verified.

        Raises ObjectMissingError, ObjectDamagedError,
        StorageFailedError if the file cannot be written.
        """
        temporary = path.with_name(f"{path.name}.{self._surroundings.nonce()}.tmp")

        def read(head: ObjectHead, chunks: Iterator[bytes]) -> ObjectHead:
            digest = hashlib.sha256()
            size_bytes = 0
            with _local(temporary), temporary.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size_bytes += len(chunk)
                _verify(key, head, size_bytes, digest.hexdigest())
                file.flush()
                os.fsync(file.fileno())
            return _public_head(head)

        try:
            head = self._read(key, None, read)
            with _local(path):
                temporary.replace(path)
        except BaseException:
            # The first error counts.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        Disk().sync_directory(path.parent)
        return head

    def head(self, key: str) -> ObjectHead:
        """Return an object without its body. Raises ObjectMissingError."""
        return _public_head(self._head(key))

    def list(
        self, prefix: str = "", *, start_after: str = "", page_count: int | None = None
    ) -> Iterator[ListedObject]:
        """Yield the objects whose key begins with `prefix` and is above `start_after`.

        In the order of the keys' UTF-8 bytes, page by page. Objects that are created or deleted
        meanwhile may or may not be included.
        """
        limit = min(page_count or self._backend.page_count, self._backend.page_count)
        while True:
            ask = partial(self._backend.list_page, prefix, start_after, limit)
            page = self._calls.tried(RequestClass.LIST, prefix, ask)
            yield from page.objects
            if not page.more:
                return
            start_after = page.objects[-1].key

    def old_versions(self, prefix: str) -> Sequence[OldVersion]:
        """Return what a versioned bucket keeps of objects below `prefix` that were replaced or
        deleted. An S3 store that cannot tell raises BucketRefusedError."""
        ask = partial(self._backend.old_versions, prefix)
        return self._calls.tried(RequestClass.LIST, prefix, ask)

    def put_new(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> str:
        """Create an object and return its version.

        Raises ObjectExistsError. Also raises OutcomeUnknownError if a try got no
        answer and the object that is there has since replaced another one; that never
        happens to keys that are put once.
        """
        self._may_write()
        return self._writer.put(key, body, metadata, NewObject())

    def replace(
        self,
        key: str,
        body: bytes,
        expected_version: str,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Replace an object of a known version and return the new version.

        Raises ObjectConflictError, also if there is no such object.
        """
        self._may_write()
        condition = Version(expected_version, self.ways.bare_versions)
        return self._writer.put(key, body, metadata, condition)

    def put_new_file(self, key: str, path: Path, metadata: Mapping[str, str] | None = None) -> str:
        """Create an object from a file, which must not change meanwhile, and return its version.

        A large file is uploaded in parts, with one part in memory. Raises ObjectExistsError,
        StorageFailedError if the file cannot be read.
        """
        with _local(path), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes <= PART_BYTES:
                return self.put_new(key, file.read(), metadata)
            if size_bytes > MAX_FILE_BYTES:
                raise TooLargeError(what=f"file {path}", size=size_bytes, limit=MAX_FILE_BYTES)
            return self.put_new_in_parts(key, file, metadata)

    def put_new_in_parts(
        self,
        key: str,
        file: BufferedReader | BytesIO,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Like `put_new_file`, but from an open file, which is read twice.

        Raises TooLargeError beyond 5 GiB if the bucket ignores conditions of uploads in parts.
        """
        self._may_write()
        if not self.ways.uploads_in_parts:
            return self._writer.put_whole(key, file, metadata)
        return self._writer.put_in_parts(key, file, metadata)

    def delete(self, key: str, expected_version: str | None = None) -> None:
        """Delete an object; a missing one is fine.

        Raises ObjectConflictError if the object has another version than `expected_version`, and
        BucketUnfitError if `expected_version` is given and the bucket would ignore it.
        """
        check_key(key)
        self._may_write()
        if expected_version is not None and not self.ways.conditional_deletes:
            raise BucketUnfitError(bucket=self.name, what="If-Match of a delete")
        tries = self._calls.tries(RequestClass.DELETE, key, visible=True)
        while True:
            try:
                with self._calls.counted(RequestClass.DELETE):
                    return self._backend.delete(key, expected_version)
            except TransientError as error:
                tries.failed(error)
            except BucketRefusedError as error:
                raise tries.ended_by(error) from error
            except PreconditionError as error:
                with suppress(ObjectMissingError):
                    self._head(key)
                    raise ObjectConflictError(key=key, expected=expected_version) from error
                return None

    def _head(self, key: str) -> ObjectHead:
        check_key(key)
        return self._calls.tried(RequestClass.HEAD, key, partial(self._backend.head, key))

    def _get_part(self, key: str, wanted: ByteRange) -> Object:
        def read(head: ObjectHead, chunks: Iterator[bytes]) -> Object:
            body = b"".join(chunks)
            start, end = wanted.of(head.size_bytes)
            if len(body) != end - start:
                raise TransientError(f"{len(body)} bytes of {end - start}", uncertain=False)
            return Object(body, head.size_bytes, head.version, _public(head.metadata))

        return self._read(key, wanted, read)

    def _read(
        self,
        key: str,
        wanted: ByteRange | None,
        read: Callable[[ObjectHead, Iterator[bytes]], _T],
    ) -> _T:
        check_key(key)
        tries = self._calls.tries(RequestClass.GET, key)
        damaged_count = 0
        while True:
            try:
                with (
                    self._calls.counted(RequestClass.GET) as received,
                    self._backend.read(key, wanted) as reading,
                ):
                    return read(reading.head, received.count(reading.chunks))
            except TransientError as error:
                tries.failed(error)
            except ObjectDamagedError as error:
                damaged_count += 1
                if damaged_count == _DAMAGED_READS:
                    raise
                tries.failed(TransientError(str(error), uncertain=False))


def open_bucket(
    url: str,
    *,
    retry: Retry = DEFAULT_RETRY,
    surroundings: Surroundings = REAL_SURROUNDINGS,
    connections: int = 32,
    make: bool = True,
    usage: BucketUsage | None = None,
    profiles: bool = False,
) -> Bucket:
    """Return the bucket of `url`. Arguments and errors are as of `open_backend`."""
    backend, ways = open_backend(url, connections=connections, make=make, profiles=profiles)
    bucket = Bucket(backend, retry=retry, surroundings=surroundings, ways=ways, usage=usage)
    bucket.url = url
    return bucket


def open_backend(
    url: str, *, connections: int = 32, make: bool = True, profiles: bool = False
) -> tuple[Backend, Ways | None]:
    """Return what is behind file:///PATH or s3://NAME/PREFIX?endpoint=URL&region=NAME, and how to
    talk to it, if that is known without a trial.

    `connections` is how many threads may wait for S3 at once. Credentials come from the
    environment, as boto3 reads it, never from the URL; with `profiles`, `&profile=NAME` names a
    profile of its configuration. Only the servers create the folder of a bucket in a
    directory; all others call `existing_bucket` (`existing_bucket.py`), which creates nothing.

    Raises InvalidArgumentError and BucketRefusedError; for a directory also StorageFailedError and
    NewerFormatError, and without `make` NoBucketError.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or parts.query or not parts.path.startswith("/"):
            raise InvalidArgumentError(argument="bucket", reason="write file:///FOLDER")
        return DirectoryBackend(Path(unquote(parts.path)), make=make), S3_WAYS
    if parts.scheme == "s3":
        # Imported here, because boto3 takes 0.2 s to import and most processes never talk to S3.
        from holdfast.shared_fs.bucket.bucket_s3 import S3Backend

        return S3Backend.from_url(url, connections=connections, profiles=profiles), None
    raise InvalidArgumentError(
        argument="bucket",
        reason=f"{parts.scheme or 'no'} scheme: write file:///FOLDER or s3://NAME",
    )


def _verify(key: str, head: ObjectHead, size_bytes: int, sha256: str) -> None:
    expected = head.metadata.get(SHA256_METADATA)
    if expected is None:
        raise ObjectDamagedError(key=key, reason="it has no checksum, so holdfast did not put it")
    if (size_bytes, sha256) != (head.size_bytes, expected):
        raise ObjectDamagedError(
            key=key,
            reason=f"{size_bytes} bytes of sha256 {sha256}, "
            f"but {head.size_bytes} bytes of {expected} were put",
        )


def _public(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if name not in OWN_METADATA}


def _public_head(head: ObjectHead) -> ObjectHead:
    return replace(head, metadata=_public(head.metadata))


@contextmanager
def _local(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailedError(reason=f"{path}: {error.strerror or error}") from error
