"""Watermarks: up to which change the table has each store completely.

They are in a file in the table's folder, `_holdfast/<version>`, which is written before its commit.
The commit carries the number `version` as its application transaction, and that number names the
file. So the rows and the watermarks of the table change in one step, and the file of a run that
never committed is never read. The high bits of the number count the runs. The low ones are random,
so that two runs from the same base have different numbers.

    a zstd frame of `[3]`, then for each shard with stores, in ascending order:
    its number and the length of what follows (`>HI`), a zstd frame of its rows, in any order
    at the end: 65535 and how many shards there were (`>HI`)

The shards are those of the manifests (`shard.py`), so an export reads both side by side, and has
one shard at a time in memory. A shard in which nothing has changed is copied as it is. A file of
the first format is one zstd frame with all rows, sorted by name; it is brought into the second one
on the local disk. The second and the third format differ in their number alone: the third one is of
tables that are divided by groups of tenants, and earlier versions say that it is newer.
"""

from __future__ import annotations

import secrets
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.table_layout import BY_TENANT, TableLayout
from holdfast.shared_fs.snapshots.shard import SHARD_COUNT, shard_of
from holdfast.spark.errors import TableDamagedError

FOLDER: Final = "_holdfast"
_FORMAT: Final = 3
_FORMAT_OF_FOLDERS: Final = 2
_FORMAT_OF_ONE_FRAME: Final = 1
_RANDOM_BITS: Final = 32
_SHARD: Final = struct.Struct(">HI")
_END: Final = 0xFFFF
#: Longer than the first frame.
_HEAD_BYTES: Final = 64
#: A shard of a table of ten million stores has some 5 MB.
_MAX_SHARD_BYTES: Final = 256 * MIB
_READ_BYTES: Final = MIB
#: Rows of a spill in memory, of some 50,000 stores.
_SPILL_BYTES: Final = 4 * MIB
#: Rows of a file of the first format that are brought into the second one at once.
_CONVERTED_ROWS: Final = 10_000


OTHER_CONFIG: Final = -1


class Watermark(NamedTuple):
    """How far the table goes in one store. `created` tells the store's lives apart; it is 0
    if unknown."""

    epoch: int
    revision: int
    last_seq: int = 0
    #: The time of the last change, in milliseconds since the epoch.
    time: int = 0
    created: int = 0
    #: Whether the store was deleted, and the table has that.
    dropped: bool = False
    #: The CRC-32 of the configuration that the table has, as JSON; 0 for none. OTHER_CONFIG if the
    #: table has one from the log, which does not tell how the file writes it.
    config: int = 0
    #: The chain of hashes after the last message, or set, that the table has, if it has all of the
    #: chain; nothing otherwise.
    chain: bytes = b""


Watermarks = Mapping[StoreId, Watermark]


def next_version(before: int | None) -> int:
    """Return the number of the run after `before`."""
    return ((run_of(before) + 1) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


def run_of(version: int | None) -> int:
    """Return the run that a version belongs to, from 1; 0 for none."""
    return (version or 0) >> _RANDOM_BITS


def path_of(version: int) -> str:
    return f"{FOLDER}/{version:020d}"


class ShardRows:
    """Watermarks of stores of one shard, as rows of a file: msgpack, one after the other."""

    __slots__ = ("count", "packed")

    def __init__(self, count: int = 0, packed: bytes = b"") -> None:
        self.count = count
        self.packed = bytearray(packed)

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, row: bytes) -> None:
        self.count += 1
        self.packed += row

    def extend(self, rows: ShardRows) -> None:
        self.count += rows.count
        self.packed += rows.packed

    def marks(self) -> dict[StoreId, Watermark]:
        """Return the watermarks by store."""
        unpacker = _unpacker()
        unpacker.feed(self.packed)
        return dict(map(_mark_of, unpacker))

    @classmethod
    def of(cls, marks: Watermarks) -> ShardRows:
        rows = list(_rows(marks))
        return cls(len(rows), b"".join(rows))


class MarkRows:
    """Watermarks of stores as rows by shard. Tasks send them: so the driver does nothing for each
    store."""

    __slots__ = ("_packer", "by_shard")

    def __init__(self) -> None:
        self.by_shard: dict[int, ShardRows] = {}
        self._packer = msgpack.Packer()

    def __reduce__(self) -> tuple[object, ...]:
        rows = [(number, each.count, bytes(each.packed)) for number, each in self.by_shard.items()]
        return MarkRows.of, (rows,)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, bytes]]) -> MarkRows:
        made = cls()
        made.by_shard = {number: ShardRows(count, packed) for number, count, packed in rows}
        return made

    def __len__(self) -> int:
        return sum(rows.count for rows in self.by_shard.values())

    def add(self, store: StoreId, mark: Watermark) -> None:
        """Add the watermark of a store, once for each store."""
        rows = self.by_shard.setdefault(shard_of(store), ShardRows())
        rows.add(self._packer.pack(_row_of(store, mark)))

    def marks(self) -> dict[StoreId, Watermark]:
        """Return the watermarks by store."""
        found: dict[StoreId, Watermark] = {}
        for rows in self.by_shard.values():
            found |= rows.marks()
        return found


class MarkSpill:
    """Collects watermarks in any order, each store once, and returns those of a shard. On the local
    disk, once there are many."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created for it."""
        folder.mkdir()
        self._folder = folder
        self._waiting: dict[int, ShardRows] = {}
        self._waiting_bytes = 0
        #: How many rows of each shard are on the disk.
        self._spilled: dict[int, int] = {}

    def add(self, rows: MarkRows) -> None:
        """Add watermarks. Raises OSError."""
        for number, found in rows.by_shard.items():
            self._waiting.setdefault(number, ShardRows()).extend(found)
            self._waiting_bytes += len(found.packed)
        if self._waiting_bytes >= _SPILL_BYTES:
            for number, waiting in self._waiting.items():
                with self._path(number).open("ab") as file:
                    file.write(waiting.packed)
                self._spilled[number] = self._spilled.get(number, 0) + waiting.count
            self._waiting.clear()
            self._waiting_bytes = 0

    def shard(self, number: int) -> ShardRows:
        """Return what was added to a shard. Raises OSError."""
        found = ShardRows()
        if number in self._spilled:
            found = ShardRows(self._spilled[number], self._path(number).read_bytes())
        if number in self._waiting:
            found.extend(self._waiting[number])
        return found

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:02x}"


class WatermarkFile:
    """A file of watermarks on the local disk, or that of a table without any."""

    def __init__(self, table: str, path: Path | None, folder: Path) -> None:
        """A file of the first format is brought into the second one in `folder`. Raises
        TableDamagedError, NewerFormatError, OSError."""
        self._table = table
        self._path = path
        if path is not None:
            with self._decoding(), path.open("rb") as file:
                found = _format_of(file)
                if found > _FORMAT:
                    raise NewerFormatError(what=table, found=found, known=_FORMAT)
                if found == _FORMAT_OF_ONE_FRAME:
                    file.seek(0)
                    self._path = _converted(file, folder)

    def shards(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of every shard, and what `marks` takes. Raises TableDamagedError,
        OSError."""
        expected = 0
        with self._decoding():
            for number, frame in self._frames():
                yield from ((empty, b"") for empty in range(expected, number))
                yield number, frame
                expected = number + 1
        yield from ((empty, b"") for empty in range(expected, SHARD_COUNT))

    def marks(self, frame: bytes) -> dict[StoreId, Watermark]:
        """Return the watermarks of a shard. Raises TableDamagedError."""
        if not frame:
            return {}
        with self._decoding():
            unpacked = zstandard.ZstdDecompressor().decompress(
                frame, max_output_size=_MAX_SHARD_BYTES
            )
            return ShardRows(0, unpacked).marks()

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        if self._path is None:
            return
        with self._path.open("rb") as file:
            _format_of(file)
            count, last = 0, -1
            while True:
                number, length = _SHARD.unpack(file.read(_SHARD.size))
                if number == _END:
                    if length != count:
                        raise ValueError(f"{count} shards instead of {length}")
                    return
                frame = file.read(length)
                if not last < number < SHARD_COUNT or len(frame) != length:
                    raise ValueError(f"shard {number} is not whole, or not in order")
                yield number, frame
                count, last = count + 1, number

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except (
            zstandard.ZstdError, msgpack.UnpackException, struct.error, ValueError, TypeError,
            IndexError,
        ) as error:  # fmt: skip
            raise TableDamagedError(table=self._table, reason=f"its watermarks: {error}") from error


def write(
    path: Path,
    before: WatermarkFile,
    changed: Callable[[int, Callable[[], Watermarks]], ShardRows],
    layout: TableLayout = BY_TENANT,
) -> int:
    """Write a file of watermarks of a table with a layout: those of `before` with the changed ones,
    and return how many those are.

    `changed(number, marks)` returns the changed ones of a shard, each store once; `marks()` are
    those of `before`. Raises as `WatermarkFile`.
    """
    count = shard_count = 0
    with path.open("wb") as file:
        written = _FORMAT if layout.is_grouped else _FORMAT_OF_FOLDERS
        file.write(_compressed(msgpack.packb([written])))
        for number, frame in before.shards():

            def marks(frame: bytes = frame) -> Watermarks:
                return before.marks(frame)

            if found := changed(number, marks):
                count += found.count
                # What is new altogether is not unpacked.
                rows = ShardRows.of({**marks(), **found.marks()}) if frame else found
                frame = _compressed(bytes(rows.packed))
            if frame:
                shard_count += 1
                file.write(_SHARD.pack(number, len(frame)))
                file.write(frame)
        file.write(_SHARD.pack(_END, shard_count))
    return count


def write_marks(path: Path, marks: Watermarks, layout: TableLayout = BY_TENANT) -> Path:
    """Write a file of these watermarks, and return its path. Raises OSError."""
    rows = MarkRows()
    for store, mark in marks.items():
        rows.add(store, mark)
    before = WatermarkFile("", None, path.parent)
    write(path, before, lambda number, _: rows.by_shard.get(number, ShardRows()), layout)
    return path


def _format_of(file: IO[bytes]) -> int:
    """Return the format of a file, and move behind the frame that says it."""
    head = file.read(_HEAD_BYTES)
    reader = zstandard.ZstdDecompressor().decompressobj()
    said = reader.decompress(head)
    if not reader.eof:
        return _FORMAT_OF_ONE_FRAME
    file.seek(len(head) - len(reader.unused_data))
    return int(msgpack.unpackb(said)[0])


def _converted(file: IO[bytes], folder: Path) -> Path:
    """Bring a file of the first format into the second one."""
    spill = MarkSpill(folder / "of-one-frame")
    frame = _OneFrame(file)
    unpacker = msgpack.Unpacker(frame, max_buffer_size=_MAX_SHARD_BYTES)
    unpacker.read_array_header()
    unpacker.skip()
    count = unpacker.read_array_header()
    for start in range(0, count, _CONVERTED_ROWS):
        rows = MarkRows()
        for _ in range(start, min(count, start + _CONVERTED_ROWS)):
            rows.add(*_mark_of(unpacker.unpack()))
        spill.add(rows)
    if frame.read():
        raise ValueError("more than its rows")
    path = folder / "of-shards"
    write(path, WatermarkFile("", None, folder), lambda number, _: spill.shard(number))
    return path


class _OneFrame:
    """The content of a file of one frame, in pieces; the last one only if its checksum fits."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()

    def read(self, _: int = 0) -> bytes:
        while not self._frame.eof:
            packed = self._file.read(_READ_BYTES)
            if not packed:
                raise ValueError("its end is missing")
            if content := self._frame.decompress(packed):
                return content
        return b""


def _unpacker() -> Any:
    return msgpack.Unpacker(max_buffer_size=_MAX_SHARD_BYTES)


def _row_of(store: StoreId, mark: Watermark) -> tuple[Any, ...]:
    """Most stores have no chain, and do without its place."""
    return (*store, *(mark if mark.chain else mark[:-1]))


def _mark_of(row: Any) -> tuple[StoreId, Watermark]:
    return StoreId(sys.intern(row[0]), *row[1:3]), Watermark(*row[3:11])


def _rows(marks: Watermarks) -> Iterable[bytes]:
    packer = msgpack.Packer()
    return (packer.pack(_row_of(store, marks[store])) for store in sorted(marks))


def _compressed(packed: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(packed)
