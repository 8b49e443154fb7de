"""The commit log: what a server makes durable before it acknowledges, all stores in one append.

A log is a folder of segments, `<number>.log`, which only one incarnation ever writes. A segment is
a sequence of frames, one for each tick that wrote:

    magic "HFlg" | u32 length | u64 tick | u64 synced | u32 crc32 of the three and the body | body

All integers are little endian. The body is msgpack, a list of records `[tenant, kind, name, epoch,
previous_revision, revision, [changes payload, ...], [[writer, counter, first_unacked, time,
outcome], ...]]`. The payloads are byte for byte what is broadcast. A body that would contain a
magic is masked: the magic is "HFlx" then, and the body is a mask of 16 bytes and the msgpack,
combined with the mask again and again by XOR. Invariants:

- Ticks grow by one from frame to frame, so a missing frame in the middle is noticed.
- Each frame states up to which tick the log was synced when the frame was written. This tells
  whether a bad or missing frame is harmless. If its tick is above every such mark, it was
  never acknowledged, and neither was anything after it (a power cut may keep the second of
  two unsynced frames and not the first). The log then ends there, and the end is reported as
  torn. Any other bad frame is damage.
- The bytes of a magic are nowhere but at the beginning of a frame. So a reader that looks for the
  next frame behind a bad one never takes a value for it: whoever writes a frame into a value
  would have it believed, after a power cut that tears the frame around it.
- `retire` removes a segment as a whole, once its caller knows that no store needs it.

On a local file system a segment may have zeros behind its frames, which later frames overwrite,
because a sync is faster that commits no new size. A segment that is full or closed is cut to its
frames, but a power cut may undo that. So a reader takes zeros up to the end of a segment for
nothing: the ticks tell if a frame is missing there.

Files are only appended to and never reused, so a stale frame of an earlier life cannot appear: what
is overwritten was always zero.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from holdfast.protocol import frames
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import LOG_SEGMENT_BYTES, LOG_ZEROS_BYTES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import AppendFile, Disk
from holdfast.shared_fs.disk.seal import UnsealedError, read_sealed, require_seal

_MAGIC: Final = b"HFlg"
_MASKED_MAGIC: Final = b"HFlx"
_MASK_BYTES: Final = 16
_HEADER: Final = struct.Struct("<4sIQQI")
_CHECKED: Final = struct.Struct("<IQQ")
#: Either of them. As a pattern it takes half the time of `in`, twice that of a checksum.
_MAGICS: Final = re.compile(rb"HFl[gx]")
_SUFFIX: Final = ".log"
#: The elements of a record.
_RECORD_FIELDS: Final = 8
#: A frame of more records is packed in one piece.
_FEW_RECORDS: Final = 8
_array_header: Final = msgpack.Packer(autoreset=True).pack_array_header


class LogRecord(NamedTuple):
    """What one tick did to one store.

    `payloads` are `frames.encode_changes`, in order; `outcomes` are `(writer, counter,
    first_unacked, time, outcome)`.
    """

    store: StoreId
    epoch: int
    previous_revision: int
    revision: int
    payloads: Sequence[bytes]
    outcomes: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class LogDamage:
    """A place where a log could not be read. `torn_end` marks the harmless kind."""

    segment: str
    offset: int
    reason: str
    torn_end: bool


@dataclass(slots=True)
class LogContents:
    """The content of a whole log: every good record in the order of writing, and what was bad."""

    records: list[LogRecord] = field(default_factory=list)
    damage: list[LogDamage] = field(default_factory=list)
    #: Of all segments, with the zeros behind their frames.
    size_bytes: int = 0
    #: The index of the first record after all damage, a torn end not counted.
    sound_from: int = 0


class Log(Protocol):
    """What the write path needs of a log, wherever it is. See `CommitLog`."""

    @property
    def segment(self) -> int: ...
    @property
    def oldest_segment(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def append(self, tick: int, records: Sequence[LogRecord]) -> int: ...
    def begin_segment(self) -> int: ...
    def prepare_sync(self) -> Callable[[], None]: ...
    def retire(self, segment: int) -> Callable[[], None] | None: ...
    def close(self) -> None: ...


class CommitLog:
    """The log of the running incarnation. Only the result of
    `prepare_sync` may run in another thread."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Start an empty log in `directory`, created if missing. Raises StorageFailedError."""
        self._disk = disk
        self._directory = directory
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._segment = 0
        self._last_tick = 0
        self._synced_tick = 0
        #: On a network file system the size of a file proves that all of it was read (`seal.py`).
        self._zeros_bytes = 0 if disk.remote else LOG_ZEROS_BYTES
        disk.make_directory(directory)
        self._file = self._start_segment()
        #: Files with content that no sync covers yet, oldest first;
        #: the last one is the current one.
        self._unsynced: list[AppendFile] = []

    @property
    def segment(self) -> int:
        """The number of the segment that the next append goes to."""
        return self._segment

    @property
    def oldest_segment(self) -> int:
        return min(self._sizes)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, tick: int, records: Sequence[LogRecord]) -> int:
        """Write one frame and return the number of its segment. It is durable after the next sync.

        Raises StorageFailedError; then no part of the frame is in the log.
        """
        if self._sizes[self._segment] >= LOG_SEGMENT_BYTES:
            self.begin_segment()
        frame = encode_frame(tick, records, synced_tick=self._synced_tick)
        self._file.write(frame)
        self._last_tick = tick
        self._sizes[self._segment] += len(frame)
        self._size_bytes += len(frame)
        if not self._unsynced or self._unsynced[-1] is not self._file:
            self._unsynced.append(self._file)
        return self._segment

    def begin_segment(self) -> int:
        """Have the next append begin a segment, and return that segment's number. All earlier ones
        can then be retired. Raises StorageFailedError."""
        # Empty segments before the newest one would count as damage.
        if self._sizes[self._segment]:
            full = self._file
            full.cut_zeros()
            self._file = self._start_segment()
            if full not in self._unsynced:
                # It is synced or being synced already; the next sync closes it.
                self._unsynced.append(full)
        return self._segment

    def prepare_sync(self) -> Callable[[], None]:
        """Return a function that makes every frame appended before
        this call durable, for any thread.

        It raises StorageFailedError: then the state of the log is unknown and its server must fence
        itself, since a second sync could succeed without having written anything.
        """
        files, self._unsynced = self._unsynced, []
        current, tick = self._file, self._last_tick

        def sync() -> None:
            for file in files:
                file.sync()
                if file is not current:
                    file.close()
            self._synced_tick = tick

        return sync

    def retire(self, segment: int) -> Callable[[], None]:
        """Remove a segment that is not the current one; its stores must be durable elsewhere.
        Return a function for any thread that gives its blocks back."""
        assert segment != self._segment
        free = self._disk.remove_aside(self._directory / segment_name(segment))
        self._size_bytes -= self._sizes.pop(segment)
        return free

    def close(self) -> None:
        """Close the files without syncing them."""
        self._file.cut_zeros()
        for file in {id(file): file for file in (*self._unsynced, self._file)}.values():
            file.close()

    def _start_segment(self) -> AppendFile:
        path = self._directory / segment_name(self._segment + 1)
        file = self._disk.open_append(path, zeros_bytes=self._zeros_bytes)
        try:
            self._disk.sync_directory(self._directory)
        except BaseException:
            # Otherwise the next attempt would find the file that it is about to create.
            file.close()
            self._disk.remove(path)
            raise
        self._segment += 1
        self._sizes[self._segment] = 0
        return file


def segment_name(segment: int) -> str:
    return f"{segment:010d}{_SUFFIX}"


def encode_frame(
    tick: int, records: Sequence[LogRecord], *, synced_tick: int | None = None
) -> bytes:
    """Return one frame as bytes. `synced_tick` defaults to the previous tick."""
    synced = tick - 1 if synced_tick is None else synced_tick
    parts = _packed(records)
    frame = _framed(_MAGIC, tick, synced, parts)
    if _MAGICS.search(frame, _HEADER.size) is not None:
        frame = _framed(_MASKED_MAGIC, tick, synced, [_masked(frame[_HEADER.size :])])
    return frame


def _framed(magic: bytes, tick: int, synced: int, body: Sequence[bytes | memoryview]) -> bytes:
    """Return a frame whose body is in parts."""
    size_bytes = sum(map(len, body))
    checksum = zlib.crc32(_CHECKED.pack(size_bytes, tick, synced))
    for part in body:
        checksum = zlib.crc32(part, checksum)
    return b"".join((_HEADER.pack(magic, size_bytes, tick, synced, checksum), *body))


def _packed(records: Sequence[LogRecord]) -> list[bytes | memoryview]:
    """Return records as msgpack, in parts.

    Large payloads are parts of their own: msgpack would copy them twice before the frame does, and
    each copy of a MiB takes new pages of memory, at half a millisecond. Many records are of many
    stores, and none of them is worth a look.
    """
    if len(records) > _FEW_RECORDS or not any(map(_is_large, records)):
        packed = frames.pack(
            [
                (*store, epoch, previous_revision, revision, payloads, outcomes)
                for store, epoch, previous_revision, revision, payloads, outcomes in records
            ]
        )
        return [packed]
    parts: list[bytes | memoryview] = [_array_header(len(records))]
    for store, epoch, previous_revision, revision, payloads, outcomes in records:
        parts.append(_array_header(_RECORD_FIELDS))
        parts += map(frames.pack, (*store, epoch, previous_revision, revision))
        parts += frames.row_in_parts(payloads)
        parts.append(frames.pack(outcomes))
    return parts


def _is_large(record: LogRecord) -> bool:
    return any(map(frames.is_large, record.payloads))


def segments(disk: Disk, directory: Path) -> list[str]:
    """Return the names of a log's segments, oldest first. Raises StorageFailedError."""
    return [name for name in disk.names(directory) if name.endswith(_SUFFIX)]


class _Frame(NamedTuple):
    segment: str
    offset: int
    tick: int
    synced_tick: int
    records: list[LogRecord]
    end: int


class _Gap(NamedTuple):
    """Bytes that are not a frame."""

    segment: str
    offset: int


def read_log(
    disk: Disk,
    directory: Path,
    take: Callable[[LogRecord], LogRecord | None] | None = None,
    *,
    sealed: bool = False,
) -> LogContents:
    """Read the whole log of a fenced incarnation.

    `take` gets each record as it is read, and returns what to keep of it, or
    None. `sealed`: the log must show its seal, which proves that it is read to its end.
    Raises UnsealedError, StorageFailedError.
    """
    contents = LogContents()
    pieces: list[_Frame | _Gap] = []
    emptied: _Gap | None = None
    names = disk.names(directory)
    if sealed:
        require_seal(directory, names)
    for name in names:
        if not name.endswith(_SUFFIX):
            continue
        path = directory / name
        try:
            data = read_sealed(disk, path) if sealed else disk.read_patiently(path)
        except FileNotFoundError:
            if sealed and name in disk.names(directory):
                raise UnsealedError(path, "it is listed and not found") from None
            # It was retired after the listing: its stores are durable elsewhere.
            continue
        contents.size_bytes += len(data)
        if _is_zeros(data, 0):
            # The newest segment may be empty. Any other one was emptied
            # by a power cut, or by somebody.
            emptied = emptied or _Gap(name, 0)
            continue
        if emptied is not None:
            pieces.append(emptied)
            emptied = None
        pieces.extend(_pieces(name, data) if take is None else _taken(_pieces(name, data), take))
    _judge(pieces, contents)
    return contents


def _taken(
    pieces: Iterable[_Frame | _Gap], take: Callable[[LogRecord], LogRecord | None]
) -> Iterator[_Frame | _Gap]:
    for piece in pieces:
        if type(piece) is _Frame:
            kept = [found for record in piece.records if (found := take(record)) is not None]
            yield piece._replace(records=kept)
        else:
            yield piece


def _pieces(name: str, data: bytes) -> Iterator[_Frame | _Gap]:
    """Yield the frames of a segment and the gaps between them, in order. Zeros at its end are
    none."""
    offset = 0
    while offset < len(data):
        frame = _frame_at(name, data, offset)
        if frame is not None:
            yield frame
            offset = frame.end
            continue
        following = _next_frame(name, data, offset + 1)
        if following is not None or not _is_zeros(data, offset):
            yield _Gap(name, offset)
        if following is None:
            return
        offset = following


def _judge(pieces: Sequence[_Frame | _Gap], contents: LogContents) -> None:
    """Take the frames that count, and report what is bad and whether it matters."""
    synced_tick = max((each.synced_tick for each in pieces if type(each) is _Frame), default=0)
    last_tick: int | None = None
    gap: _Gap | None = None
    for piece in pieces:
        if type(piece) is _Gap:
            gap = gap or piece
            continue
        assert type(piece) is _Frame
        follows = last_tick is None or piece.tick == last_tick + 1
        if gap is not None or not follows:
            place = gap or piece
            # Nothing was synced before the first frame of the first segment.
            before = 0 if last_tick is None and place.segment == segment_name(1) else last_tick
            if before is not None and before >= synced_tick:
                contents.damage.append(
                    LogDamage(place.segment, place.offset, "a torn end", torn_end=True)
                )
                return
            if gap is not None:
                contents.damage.append(
                    LogDamage(gap.segment, gap.offset, "a damaged frame", torn_end=False)
                )
            else:
                reason = f"tick {piece.tick} follows tick {last_tick}"
                contents.damage.append(
                    LogDamage(piece.segment, piece.offset, reason, torn_end=False)
                )
            contents.sound_from = len(contents.records)
            gap = None
        contents.records.extend(piece.records)
        last_tick = piece.tick
    if gap is not None:
        contents.damage.append(LogDamage(gap.segment, gap.offset, "a torn end", torn_end=True))


def _is_zeros(data: bytes, offset: int) -> bool:
    return data[offset:] == bytes(len(data) - offset)


def _frame_at(name: str, data: bytes, offset: int) -> _Frame | None:
    """Return the whole, intact frame at `offset`, if there is one."""
    start = offset + _HEADER.size
    if start > len(data):
        return None
    magic, length, tick, synced_tick, checksum = _HEADER.unpack_from(data, offset)
    is_masked = magic == _MASKED_MAGIC
    if not (is_masked or magic == _MAGIC) or start + length > len(data):
        return None
    body = data[start : start + length]
    if zlib.crc32(body, zlib.crc32(_CHECKED.pack(length, tick, synced_tick))) != checksum:
        return None
    if is_masked:
        body = _combined(body[_MASK_BYTES:], body[:_MASK_BYTES])
    try:
        records = [
            LogRecord(StoreId(row[0], row[1], row[2]), row[3], row[4], row[5], row[6], row[7])
            for row in frames.unpack(body)
        ]
    except (MalformedFrameError, IndexError, TypeError):
        return None
    return _Frame(name, offset, tick, synced_tick, records, start + length)


def _next_frame(name: str, data: bytes, offset: int) -> int | None:
    while (found := _MAGICS.search(data, offset)) is not None:
        offset = found.start()
        if _frame_at(name, data, offset) is not None:
            return offset
        offset += 1
    return None


def _has_magic(body: bytes) -> bool:
    return _MAGICS.search(body) is not None


def _masked(body: bytes) -> bytes:
    """Return a mask, and a body combined with it, which has no magic."""
    for number in itertools.count():
        # Whoever chose the body cannot have chosen its mask.
        mask = hashlib.blake2b(body, digest_size=_MASK_BYTES, salt=number.to_bytes(8)).digest()
        masked = mask + _combined(body, mask)
        if not _has_magic(masked):
            return masked
    raise AssertionError


def _combined(body: bytes, mask: bytes) -> bytes:
    size = len(body)
    repeated = (mask * (size // len(mask) + 1))[:size] if mask else b""
    return (int.from_bytes(body) ^ int.from_bytes(repeated)).to_bytes(size)
