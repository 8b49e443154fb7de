"""Reads one large value, chunk by chunk.

If the value is replaced meanwhile, or its sha256 is wrong, the reader raises an error; it never
returns a mixture.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import (
    LargeValueDamagedError,
    MalformedFrameError,
    ValueReplacedError,
)
from holdfast.protocol.frames import READ_CHUNK, pack
from holdfast.protocol.limits import (
    CHUNKS_IN_FLIGHT,
)
from holdfast.protocol.messages import Entry, LargeValue, Message

_Row = TypeVar("_Row", Message, Entry)


class ValueReader(Generic[_Row]):
    """Reads the value of one message or entry. Made by `get_reader`; for one task.

    `async for chunk in reader` yields it piece by piece; `await reader.read(n)` returns up to `n`
    bytes. The last piece is returned only if the whole value has the right sha256.

    Raises ValueReplacedError if the message or key was replaced or deleted meanwhile,
    LargeValueDamagedError if the value is damaged, and what any read raises.

        async with await stream.get_reader(7) as reader:
            async for chunk in reader:
                file.write(chunk)
    """

    def __init__(
        self, link: Link, key: StoreKey, row: _Row, what: str, timeout_seconds: float | None
    ) -> None:
        #: The message or entry, without its value if that is large.
        self.row: _Row = row
        #: The size of the value.
        self.size_bytes = row.size_bytes
        self._link = link
        self._key = key
        self._large = row.large
        self._what = what
        self._timeout_seconds = timeout_seconds
        self._digest = hashlib.sha256()
        #: Bytes that have arrived and were not returned yet, and the offset of the next ones.
        self._kept = row.value
        self._offset = len(row.value)
        #: Chunks in flight, each with its offset, and the distance between two offsets.
        self._coming: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._step_bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._coming.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._next():
            yield chunk

    async def read(self, size_bytes: int = -1) -> bytes:
        """Return the next `size_bytes` bytes: fewer at the end of the value, b"" after it. Without
        an argument, return all that is left.
        """
        pieces: list[bytes] = []
        wanted = self.size_bytes if size_bytes < 0 else size_bytes
        while wanted > 0 and (chunk := await self._next()):
            if len(chunk) > wanted:
                self._kept = chunk[wanted:]
                chunk = chunk[:wanted]
            wanted -= len(chunk)
            pieces.append(chunk)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _next(self) -> bytes:
        if self._kept:
            kept, self._kept = self._kept, b""
            return kept
        large = self._large
        if large is None or self._offset >= large.size_bytes:
            return b""
        data = await self._fetch(large)
        self._digest.update(data)
        self._offset += len(data)
        if self._offset >= large.size_bytes and (
            self._offset != large.size_bytes or self._digest.digest() != large.sha256
        ):
            raise LargeValueDamagedError(what=self._what, reason="its sha256 does not match")
        return data

    async def _fetch(self, large: LargeValue) -> bytes:
        """Return the chunk at the offset, and request the next ones."""
        coming = self._coming
        if coming and coming[0][0] != self._offset:
            # The chunks of this value have another size than the first one.
            coming.clear()
        # The first chunk is requested alone: it shows how large they are.
        ahead = CHUNKS_IN_FLIGHT if self._step_bytes else 1
        while len(coming) < ahead:
            at = coming[-1][0] + self._step_bytes if coming else self._offset
            if at >= large.size_bytes:
                break
            packed = pack((READ_CHUNK, large.upload_id, at))
            future = self._link.submit(self._key, packed, False, 0, self._timeout_seconds)
            coming.append((at, future))
        _, future = coming.popleft()
        data, *_ = self._link.unwrap(await future)
        if data is None:
            raise ValueReplacedError(what=self._what)
        if type(data) is not bytes:
            raise MalformedFrameError(reason="a chunk must be bytes")
        if not data:
            raise LargeValueDamagedError(what=self._what, reason=f"it ends at {self._offset}")
        self._step_bytes = self._step_bytes or len(data)
        return data
