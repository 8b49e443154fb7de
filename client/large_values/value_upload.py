"""Uploads large values, and makes each a value with one atomic operation.

An upload has an id and is as durable as the store. The owner knows how much of it has arrived, so
a `put` with the id of an interrupted upload compares the crc32 of that part with its own source and
sends only the rest. Sources are read and hashed in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from holdfast.client.large_values.value_source import (
    FILE_PIECE_BYTES,
    Beside,
    BytesSource,
    FileSource,
    Source,
    opened,
)
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import Value
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    UploadMismatchError,
)
from holdfast.protocol.frames import DROP_UPLOADS, PUT_CHUNK, UPLOAD, pack, row_in_parts
from holdfast.protocol.limits import (
    CHUNK_BYTES,
    CHUNKS_IN_FLIGHT,
    UPLOAD_ID_BYTES,
)
from holdfast.protocol.messages import Ack, Durability, LargeValue

#: How often an upload is tried if its owner has less of it, or other bytes, than were sent.
_ATTEMPTS: Final = 5


async def put_value(
    link: Link,
    key: StoreKey,
    value: Value,
    commit: Callable[[LargeValue], Awaitable[Ack]],
    timeout_seconds: float | None,
) -> Ack:
    """Upload a value from memory. Return the ack of `commit`, which makes it a message or entry."""
    source = BytesSource(memoryview(value).cast("B"))
    return await _put(link, key, source, None, commit, timeout_seconds)


async def put_file(
    link: Link,
    key: StoreKey,
    source: Source,
    commit: Callable[[Value | LargeValue], Awaitable[Ack]],
    upload_id: bytes | None,
    timeout_seconds: float | None,
) -> Ack:
    """Upload a file. Return the ack of `commit`, which makes it a message or entry. A small file is
    given to `commit` directly."""
    if upload_id is not None and (
        type(upload_id) is not bytes or len(upload_id) != UPLOAD_ID_BYTES
    ):
        raise InvalidArgumentError(argument="upload_id", reason=f"must be {UPLOAD_ID_BYTES} bytes")
    file = await opened(lambda: FileSource.open(source), FileSource.close)
    try:
        small = await asyncio.to_thread(file.small)
        if small is not None:
            return await commit(small)
        return await _put(link, key, file, upload_id, commit, timeout_seconds)
    finally:
        await asyncio.to_thread(file.close)


class _Hashed:
    """A source with the size and checksums of everything read so far. Used by one thread
    at a time."""

    def __init__(self, source: BytesSource | FileSource) -> None:
        self._source = source
        self._digest = hashlib.sha256()
        self.crc32 = 0
        self.size_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        data = self._source.read(size_bytes)
        self._digest.update(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size_bytes += len(data)
        return data

    def skip(self, size_bytes: int) -> None:
        """Read up to this size, which is uploaded already, or to the end."""
        while self.size_bytes < size_bytes and self.read(
            min(CHUNK_BYTES, size_bytes - self.size_bytes)
        ):
            pass

    def value(self, upload_id: bytes) -> LargeValue:
        return LargeValue(upload_id, self.size_bytes, self._digest.digest(), self.crc32)


async def _put(
    link: Link,
    key: StoreKey,
    source: BytesSource | FileSource,
    upload_id: bytes | None,
    commit: Callable[[LargeValue], Awaitable[Ack]],
    timeout_seconds: float | None,
) -> Ack:
    resumes = upload_id is not None
    upload = _Upload(link, key, upload_id or secrets.token_bytes(UPLOAD_ID_BYTES), timeout_seconds)
    attempt = 0
    try:
        while True:
            state = await upload.state() if resumes or attempt else None
            if state is not None and state[2] is not None:
                # The value was stored, but the answer was lost.
                seq, revision, time = state[2]
                return Ack(seq or None, revision, time, Durability.DEFAULT, True)
            try:
                ack = await commit(await upload.send(source, state))
            except UploadMismatchError:
                attempt += 1
                rewound = await asyncio.to_thread(source.rewind)
                if attempt == _ATTEMPTS or not rewound:
                    raise
                continue
            if ack.duplicate:
                upload.drop()
            return ack
    except BaseException:
        if not resumes:
            upload.drop()
        raise


class _Upload:
    def __init__(
        self, link: Link, key: StoreKey, upload_id: bytes, timeout_seconds: float | None
    ) -> None:
        self._link = link
        self._key = key
        self._upload_id = upload_id
        self._timeout_seconds = timeout_seconds

    async def state(self) -> list[Any] | None:
        """Return what the owner has of the upload: `[size_bytes, crc32, [seq, revision, time]
        or None]`."""
        packed = pack((UPLOAD, self._upload_id))
        state, *_ = await self._link.call(self._key, packed, False, 0, self._timeout_seconds)
        return None if state is None else list(state)

    async def send(self, source: BytesSource | FileSource, state: list[Any] | None) -> LargeValue:
        """Send what the owner does not have, and return the reference to the whole value."""
        hashed = _Hashed(source)
        if state is not None:
            staged_bytes, crc32 = state[:2]
            await asyncio.to_thread(hashed.skip, staged_bytes)
            if (hashed.size_bytes, hashed.crc32) != (staged_bytes, crc32):
                # The source has changed, so the staged part is useless.
                await self._link.call(
                    self._key, self._packed_drop(), True, 0, self._timeout_seconds
                )
                raise UploadMismatchError(staged_bytes=staged_bytes, size_bytes=hashed.size_bytes)
        offset = hashed.size_bytes
        on_their_way: deque[asyncio.Future[Any]] = deque()
        read = partial(hashed.read, FILE_PIECE_BYTES)
        async with Beside[bytes]() as reading:
            reading.begin(read)
            while data := await reading.done():
                # A thread reads the next piece meanwhile.
                reading.begin(read)
                view = memoryview(data)
                for start in range(0, len(data), CHUNK_BYTES):
                    if self._link.full:
                        await self._link.wait_for_room(self._timeout_seconds)
                    chunk = view[start : start + CHUNK_BYTES]
                    packed = b"".join(row_in_parts((PUT_CHUNK, self._upload_id, offset, chunk)))
                    offset += len(chunk)
                    # The commit has the durability that was asked for, which then covers its
                    # chunks too.
                    on_their_way.append(
                        self._link.submit(
                            self._key, packed, True, int(Durability.APPLIED), self._timeout_seconds
                        )
                    )
                    if len(on_their_way) >= CHUNKS_IN_FLIGHT:
                        self._link.unwrap(await on_their_way.popleft())
        for future in on_their_way:
            self._link.unwrap(await future)
        return hashed.value(self._upload_id)

    def drop(self) -> None:
        """Ask the owner to drop the upload, without waiting. If the request is lost, the
        upload expires."""
        with contextlib.suppress(HoldfastError):
            self._link.submit(self._key, self._packed_drop(), True, 0, self._timeout_seconds)

    def _packed_drop(self) -> bytes:
        return pack((DROP_UPLOADS, [self._upload_id]))
