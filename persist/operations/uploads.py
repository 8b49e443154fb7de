"""Uploads: large values that arrive in chunks.

Pure but for look-ups in the store's file. A chunk is accepted where the previous one ended. A chunk
that is already there changes nothing, so a client may send one as often as it likes. To become a
value, an upload must be complete: its size and crc32 must be those of the whole value. So a value
is never stored in part, nor from two sources. Abandoned uploads are dropped by a change that the
owner makes, as expired rows are.
"""

from __future__ import annotations

import zlib
from typing import Any

from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    InvalidArgumentError,
    LimitExceededError,
    TooLargeError,
    UploadMismatchError,
)
from holdfast.protocol.limits import (
    MAX_CHUNK_BYTES,
    MAX_DELETE_COUNT,
    MAX_INTEGER,
    MAX_LARGE_VALUE_BYTES,
    MAX_STAGED_UPLOADS,
    MAX_VALUE_BYTES,
    UPLOAD_ID_BYTES,
)


def put_chunk(store: Store, operation: list[Any]) -> list[Any]:
    """Accept a chunk. Return the upload's size after it, and the revision."""
    upload_id, offset, data = operation[1], operation[2], operation[3]
    check_upload_id(upload_id)
    if type(offset) is not int or not 0 <= offset <= MAX_INTEGER:
        raise InvalidArgumentError(argument="offset", reason="must be an integer of at least 0")
    if type(data) is not bytes or not data:
        raise InvalidArgumentError(argument="data", reason="must be bytes, and not empty")
    if len(data) > MAX_CHUNK_BYTES:
        raise TooLargeError(what="a chunk", size=len(data), limit=MAX_CHUNK_BYTES)
    end = offset + len(data)
    if end > MAX_LARGE_VALUE_BYTES:
        raise TooLargeError(what="a value", size=end, limit=MAX_LARGE_VALUE_BYTES)
    if store.anchor is not None:
        raise TooLargeError(what="a value of an ephemeral store", size=end, limit=MAX_VALUE_BYTES)
    upload = store.contents.upload(upload_id)
    size_bytes = upload.size_bytes if upload is not None else 0
    if upload is not None and end <= size_bytes:
        return [size_bytes, store.revision]
    if offset != size_bytes or (upload is not None and upload.is_placed):
        raise UploadMismatchError(staged_bytes=size_bytes, size_bytes=end)
    if store.retention is not None:
        store.retention.check_size(end)
    if upload is None:
        count = len(store.contents.staged()) + 1
        if count > MAX_STAGED_UPLOADS:
            raise LimitExceededError(what="uploads", limit=MAX_STAGED_UPLOADS, value=count)
    store.put_chunk(upload_id, offset, data, zlib.crc32(data, upload.crc32 if upload else 0))
    return [end, store.revision]


def drop(store: Store, operation: list[Any]) -> list[Any]:
    """Drop uploads that exist and are not the value of a row. Return how many, and the revision."""
    upload_ids = operation[1]
    if type(upload_ids) is not list or len(upload_ids) > MAX_DELETE_COUNT:
        reason = f"must be a list of at most {MAX_DELETE_COUNT}"
        raise InvalidArgumentError(argument="upload_ids", reason=reason)
    present = []
    for upload_id in dict.fromkeys(map(check_upload_id, upload_ids)):
        upload = store.contents.upload(upload_id)
        if upload is not None and not upload.is_placed:
            present.append(upload_id)
    if present:
        store.drop_uploads(present)
    return [len(present), store.revision]


def check_value(store: Store, value: Any) -> int:
    """Return the size of the large value that `value` refers to. Raises UploadMismatchError unless
    exactly that value was uploaded."""
    large = frames.large_value_from_wire(value)
    upload = store.contents.upload(large.upload_id)
    if (
        upload is None
        or upload.is_placed
        or (upload.size_bytes, upload.crc32) != (large.size_bytes, large.crc32)
    ):
        staged_bytes = upload.size_bytes if upload is not None else 0
        raise UploadMismatchError(staged_bytes=staged_bytes, size_bytes=large.size_bytes)
    return large.size_bytes


def collect(store: Store, now: int) -> None:
    """Drop the abandoned uploads. If there are any, the store's tick begins.

    Raises StorageError.
    """
    gone = store.given_up(now)
    if gone:
        store.begin()
        store.time = max(store.time, now)
        store.drop_uploads(gone)


def check_upload_id(upload_id: Any) -> bytes:
    """Return an upload's id. Raises InvalidArgumentError."""
    if type(upload_id) is not bytes or len(upload_id) != UPLOAD_ID_BYTES:
        raise InvalidArgumentError(argument="upload_id", reason=f"must be {UPLOAD_ID_BYTES} bytes")
    return upload_id
