"""Values of any size: sent and fetched in chunks, a few in flight, and never held whole.

`put` uploads the source and then makes it a value with one atomic operation. An upload has an id
and is as durable as the store. The owner knows how much of it has arrived, so a `put` with the id
of an interrupted upload compares the crc32 of that part with its own source and sends only the
rest. `ValueReader` reads one value from its first byte to its last. If the value is replaced
meanwhile, or its sha256 is wrong, the reader raises an error; it never returns a mixture.

Files are read, written and hashed in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import secrets
import threading
import zlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Generic, Self, TypeVar

from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import Value
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    LargeValueDamagedError,
    MalformedFrameError,
    UploadMismatchError,
    ValueReplacedError,
)
from holdfast.protocol.frames import DROP_UPLOADS, PUT_CHUNK, READ_CHUNK, UPLOAD, pack
from holdfast.protocol.limits import (
    CHUNK_BYTES,
    CHUNKS_IN_FLIGHT,
    MAX_VALUE_BYTES,
    UPLOAD_ID_BYTES,
)
from holdfast.protocol.messages import Ack, Durability, Entry, LargeValue, Message

#: A path, or a file that is open for reading bytes and is read from its position.
Source = str | os.PathLike[str] | BinaryIO

#: How often an upload is tried if its owner has less of it, or other bytes, than were sent.
_ATTEMPTS: Final = 5

_Row = TypeVar("_Row", Message, Entry)
_Opened = TypeVar("_Opened")


def is_large(value: Value) -> bool:
    """Return whether a value has to be uploaded in chunks."""
    if type(value) is bytes:
        return len(value) > MAX_VALUE_BYTES
    if isinstance(value, memoryview):
        return value.nbytes > MAX_VALUE_BYTES
    return isinstance(value, bytearray) and len(value) > MAX_VALUE_BYTES


async def put_value(
    link: Link,
    key: StoreKey,
    value: Value,
    commit: Callable[[LargeValue], Awaitable[Ack]],
    timeout_seconds: float | None,
) -> Ack:
    """Upload a value from memory. Return the ack of `commit`, which makes it a message or entry."""
    source = _Bytes(memoryview(value).cast("B"))
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
        raise InvalidArgumentError(
            argument="upload_id", reason=f"must be {UPLOAD_ID_BYTES} bytes"
        )
    file = await _opened(lambda: _File.open(source), _File.close)
    try:
        small = await asyncio.to_thread(file.small)
        if small is not None:
            return await commit(small)
        return await _put(link, key, file, upload_id, commit, timeout_seconds)
    finally:
        await asyncio.to_thread(file.close)


async def with_large_value(
    row: _Row,
    read: Callable[[_Row], Awaitable[bytes]],
    find: Callable[[], Awaitable[_Row | None]],
) -> _Row | None:
    """Return a message or entry with its large value, which `read` returns whole.

    If it is replaced meanwhile, use the row that `find` returns, or return None if there is none
    any more. Raises what both raise, but ValueReplacedError only if `find` returns the same row.
    """
    wanted: _Row | None = row
    while wanted is not None and wanted.large is not None:
        try:
            value = await read(wanted)
        except ValueReplacedError:
            before, wanted = wanted, await find()
            if wanted is not None and wanted.revision == before.revision:
                raise
        else:
            return wanted._replace(value=value, large=None)
    return wanted


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
            raise MalformedFrameError(reason="a chunk is bytes")
        if not data:
            raise LargeValueDamagedError(what=self._what, reason=f"it ends at {self._offset}")
        self._step_bytes = self._step_bytes or len(data)
        return data


async def write_file(chunks: AsyncIterable[bytes], path: str | os.PathLike[str]) -> None:
    """Write the chunks of a reader to `path`, all or nothing: to a new file beside it, which is
    then renamed.

    Raises what reading raises, and OSError.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")

    def undo(file: BinaryIO) -> None:
        file.close()
        draft.unlink()

    file = await _opened(lambda: draft.open("xb"), undo)
    try:
        try:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(_sync, file)
        finally:
            await asyncio.to_thread(file.close)
        await asyncio.to_thread(draft.replace, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        raise


async def _opened(open_file: Callable[[], _Opened], undo: Callable[[_Opened], None]) -> _Opened:
    """Open something in a thread. If this is cancelled, `undo` is called as soon as it is open."""
    lock = threading.Lock()
    opened: list[_Opened] = []
    is_wanted = True

    def work() -> _Opened:
        file = open_file()
        with lock:
            opened.append(file)
            if not is_wanted:
                undo(file)
        return file

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        with lock:
            is_wanted = False
            for file in opened:
                undo(file)
        raise


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


# Uploading
class _Bytes:
    """A value in memory, as a source."""

    def __init__(self, value: memoryview) -> None:
        self._value = value
        self._offset = 0

    def read(self, size_bytes: int) -> bytes:
        start = self._offset
        self._offset = min(len(self._value), start + size_bytes)
        return bytes(self._value[start : self._offset])

    def rewind(self) -> bool:
        self._offset = 0
        return True


class _File:
    """A file as a source, read from its current position."""

    def __init__(self, file: BinaryIO, *, owned: bool) -> None:
        self._file = file
        self._owned = owned
        self._start = file.tell() if file.seekable() else None
        self._first = io.BytesIO()

    @classmethod
    def open(cls, source: Source) -> _File:
        if isinstance(source, str | os.PathLike):
            return cls(Path(source).open("rb"), owned=True)
        return cls(source, owned=False)

    def small(self) -> bytes | None:
        """Return the whole file if it is small enough for one message; else None, and `read` starts
        at its beginning."""
        first = self._read(MAX_VALUE_BYTES + 1)
        self._first = io.BytesIO(first)
        return first if len(first) <= MAX_VALUE_BYTES else None

    def read(self, size_bytes: int) -> bytes:
        first = self._first.read(size_bytes)
        return first + self._read(size_bytes - len(first))

    def rewind(self) -> bool:
        """Go back to the beginning. Return False if the file cannot seek."""
        if self._start is None:
            return False
        self._file.seek(self._start)
        self._first = io.BytesIO()
        return True

    def close(self) -> None:
        if self._owned:
            self._file.close()

    def _read(self, size_bytes: int) -> bytes:
        # A pipe may return fewer bytes than were asked for.
        pieces = []
        while size_bytes > 0 and (piece := self._file.read(size_bytes)):
            size_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


class _Hashed:
    """A source with the size and checksums of everything read so far. Used by one thread
    at a time."""

    def __init__(self, source: _Bytes | _File) -> None:
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
    source: _Bytes | _File,
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

    async def send(self, source: _Bytes | _File, state: list[Any] | None) -> LargeValue:
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
        on_their_way: deque[asyncio.Future[Any]] = deque()
        while True:
            offset = hashed.size_bytes
            data = await asyncio.to_thread(hashed.read, CHUNK_BYTES)
            if not data:
                break
            if self._link.full:
                await self._link.wait_for_room(self._timeout_seconds)
            packed = pack((PUT_CHUNK, self._upload_id, offset, data))
            # The commit has the durability that was asked for, which then covers its chunks too.
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
