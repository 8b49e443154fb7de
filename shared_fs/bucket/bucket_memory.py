"""A bucket in memory, for tests and simulation: deterministic, and no laxer than S3.

Versions are digests of the bodies, as S3's ETags are, so code that wrongly takes equal bodies for
the same object fails here too.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ListedObject,
    NewObject,
    ObjectHead,
    Page,
    PreconditionError,
    Reading,
    UploadGoneError,
)
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError


class MemoryBackend(Backend):
    """Objects in a dictionary. `clock` gives seconds since the epoch."""

    name = "memory://"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, _Stored] = {}
        self._uploads: dict[str, _Begun] = {}
        self._begun_count = 0

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        version = hashlib.sha256(body).hexdigest()[:32]
        head = ObjectHead(len(body), version, int(self._clock() * 1000), dict(metadata))
        with self._lock:
            stored = self._objects.get(key)
            if isinstance(condition, NewObject):
                holds = stored is None
            else:
                holds = stored is not None and stored.head.version == condition.version
            if not holds:
                raise PreconditionError
            self._objects[key] = _Stored(head, bytes(body))
        return version

    @contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        stored = self._stored(key)
        start, end = (0, len(stored.body)) if wanted is None else wanted.of(len(stored.body))
        yield Reading(stored.head, iter([stored.body[start:end]]))

    def head(self, key: str) -> ObjectHead:
        return self._stored(key).head

    def delete(self, key: str, expected_version: str | None) -> None:
        with self._lock:
            stored = self._objects.get(key)
            found = None if stored is None else stored.head.version
            if expected_version is not None and found != expected_version:
                raise PreconditionError
            self._objects.pop(key, None)

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        with self._lock:
            # Sorting by code point is the same as by UTF-8 byte.
            keys = sorted(
                key for key in self._objects if key > start_after and key.startswith(prefix)
            )
            heads = [(key, self._objects[key].head) for key in keys[:limit]]
        objects = [
            ListedObject(key, head.size_bytes, head.version, head.modified) for key, head in heads
        ]
        return Page(objects, more=len(keys) > limit)

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        with self._lock:
            self._begun_count += 1
            upload = BucketUpload(key, str(self._begun_count))
            self._uploads[upload.id] = _Begun(dict(metadata), {})
        return upload

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        self._begun(upload).parts[number] = bytes(body)
        return str(number)

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        begun = self._begun(upload)
        body = b"".join(begun.parts[int(tag)] for tag in tags)
        version = self.put(upload.key, body, begun.metadata, condition)
        self.abort_upload(upload)
        return version

    def abort_upload(self, upload: BucketUpload) -> None:
        with self._lock:
            self._uploads.pop(upload.id, None)

    def close(self) -> None:
        """Does nothing: no resource is kept open."""

    def _stored(self, key: str) -> _Stored:
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise ObjectMissingError(key=key)
        return stored

    def _begun(self, upload: BucketUpload) -> _Begun:
        with self._lock:
            begun = self._uploads.get(upload.id)
        if begun is None:
            raise UploadGoneError
        return begun


class _Stored(NamedTuple):
    head: ObjectHead
    body: bytes


class _Begun(NamedTuple):
    metadata: dict[str, str]
    parts: dict[int, bytes]
