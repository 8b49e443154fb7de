"""Writing objects: their metadata, large ones in parts, and writes whose answer was lost.

Each call uses one nonce for all its tries, kept in the object's metadata. If a try after one
without an answer finds that its condition no longer holds, the object that is there tells:

| its nonce | it replaced | so the call |
|---|---|---|
| the call's | | has succeeded |
| another | the version that the call expected, or nothing if it was to create | has failed |
| another | something else | is unknown: its own write may have come and gone in between |
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BufferedReader, BytesIO
from typing import Final

from holdfast.protocol.errors import StorageFailedError, TooLargeError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    Condition,
    NewObject,
    ObjectHead,
    PreconditionError,
    TransientError,
    UploadGoneError,
    Version,
    check_key,
    check_metadata,
)
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketError,
    BucketRefusedError,
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
)
from holdfast.shared_fs.bucket.bucket_tries import Calls, Tries
from holdfast.shared_fs.bucket.bucket_usage import RequestClass

#: A file up to this size is one put; a larger one goes in parts of this size. S3 requires at least
#: 5 MiB and accepts 10,000 parts.
PART_BYTES: Final = 16 * MIB
MAX_FILE_BYTES: Final = 10_000 * PART_BYTES
#: The most that S3 takes in one put.
MAX_PUT_BYTES: Final = 5 * 1024 * MIB
SHA256_METADATA: Final = "hf-sha256"
_NONCE: Final = "hf-nonce"
#: The version that a `replace` replaced.
_REPLACED: Final = "hf-replaced"
OWN_METADATA: Final = (SHA256_METADATA, _NONCE, _REPLACED)


class BucketWriter:
    """The writes of a bucket."""

    def __init__(self, backend: Backend, calls: Calls, nonce: Callable[[], str]) -> None:
        self._backend = backend
        self._calls = calls
        self._nonce = nonce

    def put(
        self, key: str, body: bytes, metadata: Mapping[str, str] | None, condition: Condition
    ) -> str:
        own = self._own_metadata(key, hashlib.sha256(body).hexdigest(), metadata, condition)
        put = partial(self._backend.put, key, body, own, condition)
        return self._put(key, len(body), own, condition, put)

    def put_whole(
        self, key: str, file: BufferedReader | BytesIO, metadata: Mapping[str, str] | None
    ) -> str:
        """Create an object from a file in one put, for a bucket that ignores the condition of an
        upload in parts."""
        size_bytes = file.seek(0, os.SEEK_END)
        if size_bytes > MAX_PUT_BYTES:
            raise TooLargeError(
                what=f"object {key!r} in a bucket that ignores conditions of uploads in parts",
                size=size_bytes,
                limit=MAX_PUT_BYTES,
            )
        digest = _sha256(file)
        condition = NewObject()
        own = self._own_metadata(key, digest, metadata, condition)

        def put() -> str:
            file.seek(0)
            version = self._backend.put_file(key, file, own, condition)
            if _sha256(file) != digest:
                raise StorageFailedError(reason=f"the file of {key!r} changed meanwhile")
            return version

        return self._put(key, size_bytes, own, condition, put)

    def put_in_parts(
        self, key: str, file: BufferedReader | BytesIO, metadata: Mapping[str, str] | None
    ) -> str:
        digest = _sha256(file)
        own = self._own_metadata(key, digest, metadata, NewObject())
        tries = self._calls.tries(RequestClass.PUT, key, visible=True)
        while True:
            begin = partial(self._backend.begin_upload, key, own)
            upload = self._calls.tried(RequestClass.PUT, key, begin)
            try:
                tags = self._put_parts(upload, file, digest)
                return self._complete(upload, tags, own[_NONCE], tries)
            except UploadGoneError as error:
                # A try without an answer completed it, or it expired: the
                # object that is there tells which.
                tries.failed(TransientError("the upload is gone", uncertain=tries.uncertain))
                if self._there(key, tries) is not None:
                    return self._settle(key, own[_NONCE], NewObject(), tries, error)
            except BaseException:
                # The first error counts. The provider's expiry removes
                # parts that this leaves behind.
                with (
                    suppress(TransientError, BucketError),
                    self._calls.counted(RequestClass.DELETE),
                ):
                    self._backend.abort_upload(upload)
                raise

    def _put(
        self,
        key: str,
        size_bytes: int,
        own: Mapping[str, str],
        condition: Condition,
        put: Callable[[], str],
    ) -> str:
        tries = self._calls.tries(RequestClass.PUT, key, visible=True)
        while True:
            try:
                with self._calls.counted(RequestClass.PUT, size_bytes):
                    return put()
            except TransientError as error:
                tries.failed(error)
            except PreconditionError as error:
                return self._settle(key, own[_NONCE], condition, tries, error)
            except BucketRefusedError as error:
                raise tries.ended_by(error) from error

    def _put_parts(
        self, upload: BucketUpload, file: BufferedReader | BytesIO, digest: str
    ) -> list[str]:
        tags: list[str] = []
        sent = hashlib.sha256()
        file.seek(0)
        while part := file.read(PART_BYTES):
            sent.update(part)
            number = len(tags) + 1
            put = partial(self._backend.put_part, upload, number, len(tags) * PART_BYTES, part)
            tags.append(self._calls.tried(RequestClass.PUT, upload.key, put, len(part)))
        if sent.hexdigest() != digest:
            raise StorageFailedError(reason=f"the file of {upload.key!r} changed meanwhile")
        return tags

    def _complete(self, upload: BucketUpload, tags: Sequence[str], nonce: str, tries: Tries) -> str:
        while True:
            try:
                with self._calls.counted(RequestClass.PUT):
                    return self._backend.complete_upload(upload, tags, NewObject())
            except TransientError as error:
                tries.failed(error)
                # Not every store remembers an upload that it completed.
                head = self._there(upload.key, tries)
                if head is not None and head.metadata.get(_NONCE) == nonce:
                    return head.version
            except PreconditionError as error:
                return self._settle(upload.key, nonce, NewObject(), tries, error)
            except BucketRefusedError as error:
                raise tries.ended_by(error) from error

    def _settle(
        self, key: str, nonce: str, condition: Condition, tries: Tries, cause: Exception
    ) -> str:
        """Return the version that an earlier try of this call made,
        or raise what happened to it."""
        head = self._there(key, tries) if tries.failed_count else None
        if head is not None and head.metadata.get(_NONCE) == nonce:
            return head.version
        # The object that is there replaced the expected version, so no write of ours came between.
        directly = head is not None and head.metadata.get(_REPLACED) == (
            condition.version if isinstance(condition, Version) else None
        )
        if tries.uncertain and not directly:
            raise tries.given_up("another object is there now") from cause
        if isinstance(condition, Version):
            raise ObjectConflictError(key=key, expected=condition.version) from cause
        raise ObjectExistsError(key=key) from cause

    def _there(self, key: str, tries: Tries) -> ObjectHead | None:
        """Return the object that is there now, after a write that failed."""
        try:
            return self._calls.tried(RequestClass.HEAD, key, partial(self._backend.head, key))
        except ObjectMissingError:
            return None
        except BucketError as error:
            raise tries.ended_by(error) from error

    def _own_metadata(
        self, key: str, sha256: str, metadata: Mapping[str, str] | None, condition: Condition
    ) -> dict[str, str]:
        check_key(key)
        check_metadata(metadata or {})
        own = {SHA256_METADATA: sha256, _NONCE: self._nonce()}
        if isinstance(condition, Version):
            own[_REPLACED] = condition.version
        return {**own, **(metadata or {})}


def _sha256(file: BufferedReader | BytesIO) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()
