"""Snapshots: a store file as one immutable object in the bucket, and back.

    snapshots/<tenant>/<name>.<kind>/<epoch:010d>-<revision:016d>-<nonce>

    take_image ──▶ compress ──▶ put (or pack.py) ──▶ published by manifest.py
    fetch ──▶ place at a path, or open in memory

An image is the whole content of a store file in which everything is durable. Its header has the
rollback journal's format numbers, so that anybody can open it as `immutable`. Small images are made
in memory, larger ones in a draft beside the store file. Invariants:

- Before an image is put, it is read page by page with each page's checksum verified, and it passes
  `quick_check`. Its sha256 is stored with it, and `fetch` returns only content with that sha256.
- A key is used once: its nonce is unique to the call. The object is checked before it counts.
- Store files are only accessed through their StoreFile.

Everything here blocks: run it in threads. This module decides nothing. When a store is snapshotted
is decided in `persist/tier/snapshotter.py`, and which snapshots are kept in `store_entry.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Final, Protocol, cast
from urllib.parse import quote

import apsw
import zstandard

from holdfast.protocol.errors import InvalidNameError, StorageFailedError, StoreDamagedError
from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import ObjectHead
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.bucket.bucket_writing import PART_BYTES
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.forks.growing import Growth, grow_file, grow_image
from holdfast.shared_fs.framed_images.frame_table import (
    TableDraft,
    TableMark,
    frame_bytes_of,
    mark_of,
)
from holdfast.shared_fs.framed_images.image_pages import FramedPlace, read_table
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.pages.page_sizes import HEADER_BYTES, page_bytes_of
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs, page_checksum
from holdfast.shared_fs.store_file.store_file import StoreFile

SNAPSHOT_PREFIX: Final = "snapshots/"
#: Images up to this size are made and restored in memory, which then has up to five copies: of the
#: file, SQLite's for it, the image, and what is compressed. So a server needs little memory also
#: while it snapshots stores that grow by large values.
SMALL_IMAGE_BYTES: Final = 4 * MIB
#: Smaller snapshots share objects (`pack.py`): a million requests cost more than
#: storing for a year what they put.
TINY_SNAPSHOT_BYTES: Final = 64 * KIB
COMPRESSION_LEVEL: Final = 3

_CHUNK_BYTES: Final = 4 * MIB
#: How much of an image is decompressed at once.
_PIECE_BYTES: Final = MIB
#: The network may deliver wrong bytes once.
_DAMAGED_READS: Final = 2
#: The place of the read and write versions in a file's header; sqlite.org/fileformat2.html.
_FORMAT_VERSIONS: Final = slice(18, 20)
_ROLLBACK: Final = b"\x01\x01"
_WAL: Final = b"\x02\x02"
_KEY: Final = re.compile(
    r"snapshots/(?P<tenant>[^/]+)/(?P<name>[^/]+)\.(?P<kind>stream|kv)/"
    r"(?P<epoch>[0-9]{10})-(?P<revision>[0-9]{16})-[^/]+"
)


@dataclass(frozen=True, slots=True)
class Image:
    """The content of a store file: in memory, or in a draft."""

    store: StoreId
    meta: StoreMeta
    content: bytes | Path


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An image, checked and compressed. Its body is in memory or in an anonymous file."""

    store: StoreId
    meta: StoreMeta
    sha256: str
    image_bytes: int
    taken: int
    body: bytes | BufferedReader
    length: int
    frames: TableMark | None = None

    @property
    def is_tiny(self) -> bool:
        """True if it belongs in a pack."""
        return isinstance(self.body, bytes) and self.length < TINY_SNAPSHOT_BYTES

    def version(self, key: str, offset: int = 0) -> SnapshotVersion:
        """Return its version, once it is stored at `offset` of object `key`."""
        return SnapshotVersion(
            key=key,
            offset=offset,
            length=self.length,
            sha256=self.sha256,
            image_bytes=self.image_bytes,
            epoch=self.meta.epoch,
            revision=self.meta.revision,
            last_seq=self.meta.last_seq,
            count=self.meta.count,
            bytes=self.meta.bytes,
            time=self.meta.time,
            taken=self.taken,
            frames=self.frames,
        )


@dataclass(frozen=True, slots=True)
class Fetched:
    """A verified image from the bucket: in memory, or in a draft on the disk."""

    store: StoreId
    version: SnapshotVersion
    meta: StoreMeta
    content: bytes | Path

    def open_in_memory(self, path: Path) -> StoreFile:
        """Open a small image for reading; `path` is where its file would be."""
        assert isinstance(self.content, bytes)
        return StoreFile.of_image(self.content, path, self.store)

    def place(self, disk: Disk, path: Path) -> None:
        """Make it the store file at `path`, which must not exist, whole and durably or not at all.

        Nobody else may be about to create that path. Raises StoreDamagedError if it exists,
        StorageFailedError.
        """
        if disk.exists(path):
            raise StoreDamagedError(store=str(self.store), reason=f"{path.name} exists already")
        # The WAL of a removed file: SQLite would take it for that of the new file.
        disk.remove(path.with_name(path.name + "-wal"))
        if isinstance(self.content, bytes):
            disk.write_durably(path, _with_format(self.content, _WAL), new=True)
        else:
            disk.place(self.content, path)

    def drop(self, disk: Disk) -> None:
        """Remove the draft, if it is not placed."""
        if isinstance(self.content, Path):
            disk.remove(self.content)


@dataclass(slots=True)
class Near:
    """A compressed snapshot from a cache, which may be wrong. `fetch` finds out."""

    body: bytes
    wrong: bool = False


def take_image(file: StoreFile, draft: Path, *, small_bytes: int = SMALL_IMAGE_BYTES) -> Image:
    """Return the content of a checkpointed file; a large one is written to `draft`.

    Nothing else may use the file meanwhile. Raises StoreDamagedError, StorageFailedError.
    """
    if file.size_bytes() <= small_bytes:
        return Image(file.store, file.meta, file.image())
    try:
        file.copy_to(draft)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return Image(file.store, file.meta, draft)


def compress(image: Image, taken: int) -> Snapshot:
    """Check an image and return it compressed; its draft is removed in any case.

    `taken` is the time of the snapshot in milliseconds. Raises
    StoreDamagedError, StorageFailedError.
    """
    if isinstance(image.content, Path):
        try:
            with _local(image.content):
                return _compress_draft(image, image.content, taken)
        finally:
            image.content.unlink(missing_ok=True)
    content = _with_format(image.content, _ROLLBACK)
    file = StoreFile.of_image(content, Path("image"), image.store)
    try:
        _check(file, image.meta)
    finally:
        file.abandon()
    body = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(content)
    return Snapshot(
        image.store,
        image.meta,
        hashlib.sha256(content).hexdigest(),
        len(content),
        taken,
        body,
        len(body),
    )


def put(bucket: Bucket, snapshot: Snapshot, nonce: str) -> SnapshotVersion:
    """Put a snapshot as an object of its own and return its version, after checking the object.

    Raises ObjectDamagedError if the object differs from what was put, BucketError.
    """
    key = bucket.place_of(snapshot.store.tenant) + snapshot_key(snapshot, nonce)
    version = snapshot.version(key)
    metadata = {
        "sha256": version.sha256,
        "image-bytes": str(version.image_bytes),
        "last-seq": str(version.last_seq),
        "count": str(version.count),
        "bytes": str(version.bytes),
        "time": str(version.time),
        "taken": str(version.taken),
    }
    if version.frames is not None:
        metadata["frames"] = str(version.frames)
    if isinstance(snapshot.body, bytes):
        bucket.put_new(version.key, snapshot.body, metadata)
    else:
        with snapshot.body as body:
            if snapshot.length <= PART_BYTES:
                bucket.put_new(version.key, body.read(), metadata)
            else:
                bucket.put_new_in_parts(version.key, body, metadata)
    check_put(bucket, version.key, version.length, version.sha256)
    return version


def check_put(bucket: Bucket, key: str, size_bytes: int, sha256: str) -> None:
    """Check an object that was put with metadata `sha256`. Raises
    ObjectDamagedError, BucketError."""
    head = bucket.head(key)
    if (head.size_bytes, head.metadata.get("sha256")) != (size_bytes, sha256):
        raise ObjectDamagedError(
            key=key, reason=f"it has {head.size_bytes} bytes instead of {size_bytes}"
        )


def snapshot_key(snapshot: Snapshot, nonce: str) -> str:
    """Return the key of a snapshot that is an object of its own, within its place."""
    store, meta = snapshot.store, snapshot.meta
    name = f"{store.name}.{StoreKind(store.kind).word}"
    return f"{SNAPSHOT_PREFIX}{store.tenant}/{name}/{meta.epoch:010d}-{meta.revision:016d}-{nonce}"


def store_of_key(key: str) -> tuple[StoreId, int] | None:
    """Return the store and the epoch of which a snapshot object is, by its key; None for other
    keys."""
    found = _KEY.fullmatch(key.removeprefix(place_prefix(key)))
    if found is None:
        return None
    try:
        name = check_store(found["name"])
        tenant, kind = check_tenant(found["tenant"]), StoreKind[found["kind"].upper()]
    except InvalidNameError:
        return None
    return StoreId(tenant, kind, name), int(found["epoch"])


def version_of_object(key: str, head: ObjectHead) -> tuple[StoreId, SnapshotVersion] | None:
    """Return the store and version that a snapshot object itself tells; None for other objects.

    It is needed if the manifests are lost.
    """
    found = _KEY.fullmatch(key.removeprefix(place_prefix(key)))
    of_key = store_of_key(key)
    if found is None or of_key is None:
        return None
    store, epoch = of_key
    try:
        texts = dict(head.metadata)
        sha256, frames = texts.pop("sha256"), texts.pop("frames", None)
        number = {name: int(value) for name, value in texts.items()}
        version = SnapshotVersion(
            key=key,
            offset=0,
            length=head.size_bytes,
            sha256=sha256,
            image_bytes=number["image-bytes"],
            epoch=epoch,
            revision=int(found["revision"]),
            last_seq=number["last-seq"],
            count=number["count"],
            bytes=number["bytes"],
            time=number["time"],
            taken=number["taken"],
            frames=TableMark.of_text(frames) if frames is not None else None,
        )
    except (KeyError, ValueError):
        return None
    return store, version


def fetch(
    bucket: Bucket,
    store: StoreId,
    version: SnapshotVersion,
    draft: Path,
    *,
    small_bytes: int = SMALL_IMAGE_BYTES,
    near: Near | None = None,
) -> Fetched:
    """Download an image; a large one to `draft`, synced, whose folder must exist. The first version
    of a fork is made of the image that it shares. `near` is what a cache has instead of the object:
    if it is wrong, the object is read.

    Raises ObjectMissingError, ObjectDamagedError, StoreDamagedError if it is not of this store,
    BucketError, StorageFailedError.
    """
    if version.image_bytes <= small_bytes:
        pieces: list[bytes] = []
        for piece in _verified(bucket, version, near):
            if piece:
                pieces.append(piece)
            else:
                # Start over after wrong bytes.
                pieces.clear()
        content = b"".join(pieces)
        if version.origin is not None:
            content = grow_image(content, version.origin.store, growth_of(store, version))
        file = StoreFile.of_image(content, draft, store)
        try:
            file.quick_check()
        finally:
            file.abandon()
        return Fetched(store, version, file.meta, content)
    try:
        with _local(draft), draft.open("wb") as output:
            for chunk in _verified(bucket, version, near):
                # Start over after wrong bytes.
                if not chunk:
                    output.seek(0)
                    output.truncate()
                output.write(chunk)
        owner = store if version.origin is None else version.origin.store
        with _local(draft), draft.open("r+b") as output:
            meta = _check_draft(draft, owner)
            _set_format(output, _WAL)
            output.flush()
            os.fsync(output.fileno())
        if version.origin is not None:
            meta = grow_file(draft, owner, growth_of(store, version))
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return Fetched(store, version, meta, draft)


def growth_of(store: StoreId, version: SnapshotVersion) -> Growth:
    """Return what makes a version of a fork of the image that it shares."""
    cut_seq = version.origin.cut_seq if version.origin is not None else None
    return Growth(store, cut_seq, version.epoch, version.revision, version.time)


def verify(bucket: Bucket, version: SnapshotVersion) -> None:
    """Read a snapshot from the bucket and verify it; keep nothing. Raises as `fetch`."""
    for _ in _verified(bucket, version):
        pass
    check_frames(bucket, version)


def check_frames(bucket: Bucket, version: SnapshotVersion) -> None:
    """Read the table of the frames of a version, if it has one that this version knows, and verify
    it. `fetch` does not need it. Raises ObjectMissingError, ObjectDamagedError, BucketError."""
    place = framed_place(version)
    if place is not None:
        read_table(bucket, place)


def framed_place(version: SnapshotVersion) -> FramedPlace | None:
    """Return where the pages of a version are; None if it can only be read as a whole."""
    mark = version.frames
    if mark is None or not mark.is_known or version.offset:
        return None
    return FramedPlace(version.key, version.length, version.image_bytes, mark)


def unpacked(body: bytes, version: SnapshotVersion) -> bytes | None:
    """Return the image that the bytes of a version are; None if they are not what was put."""
    pieces: list[bytes] = []
    size_bytes = 0
    try:
        for piece in _decompressed(iter((body[: version.data_bytes],))):
            pieces.append(piece)
            size_bytes += len(piece)
            if size_bytes > version.image_bytes:
                return None
    except zstandard.ZstdError:
        return None
    content = b"".join(pieces)
    return content if hashlib.sha256(content).hexdigest() == version.sha256 else None


# Objects in the bucket
def _verified(
    bucket: Bucket, version: SnapshotVersion, near: Near | None = None
) -> Iterator[bytes]:
    """Yield the image in pieces. An empty piece means that all pieces before it are void.

    It ends normally only if the whole image has the right sha256.
    """
    for attempt in range(0 if near is not None else 1, _DAMAGED_READS + 1):
        digest = hashlib.sha256()
        size_bytes = 0
        try:
            if attempt or near is None:
                parts = _parts(bucket, version)
            else:
                parts = iter((near.body[: version.data_bytes],))
            for chunk in _decompressed(parts):
                digest.update(chunk)
                size_bytes += len(chunk)
                if size_bytes > version.image_bytes:
                    break
                yield chunk
            reason = "its content has another sha256"
        except zstandard.ZstdError as error:
            reason = str(error)
        if (size_bytes, digest.hexdigest()) == (version.image_bytes, version.sha256):
            return
        if not attempt and near is not None:
            near.wrong = True
        if attempt == _DAMAGED_READS:
            raise ObjectDamagedError(key=version.key, reason=reason)
        yield b""


def _parts(bucket: Bucket, version: SnapshotVersion) -> Iterator[bytes]:
    start, end = version.offset, version.offset + version.data_bytes
    while start < end:
        part = bucket.get_range(version.key, start, min(_CHUNK_BYTES, end - start)).body
        if not part:
            return
        start += len(part)
        yield part


class _Parts:
    """Parts of an object as a file to read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
        found, self._rest = self._rest[:size], self._rest[size:]
        return bytes(found)


def _decompressed(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content in pieces of at most _PIECE_BYTES. Nobody has checked the parts yet, and a
    few bytes may expand to any number."""
    source = cast(IO[bytes], _Parts(parts))
    with zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) as content:
        while piece := content.read(_PIECE_BYTES):
            yield piece


# Images
class _Content(Protocol):
    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...


def _with_format(image: bytes, versions: bytes) -> bytes:
    page_bytes = _page_bytes(image)
    return _first_page(image[:page_bytes], versions) + image[page_bytes:]


def _set_format(file: _Content, versions: bytes) -> None:
    file.seek(0)
    page_bytes = _page_bytes(file.read(HEADER_BYTES))
    file.seek(0)
    page = _first_page(file.read(page_bytes), versions)
    file.seek(0)
    file.write(page)


def _page_bytes(header: bytes) -> int:
    # What has no size of pages is no database. Reading it will tell.
    return page_bytes_of(header) or schema.PAGE_BYTES


def _first_page(page: bytes, versions: bytes) -> bytes:
    changed = bytearray(page)
    changed[_FORMAT_VERSIONS] = versions
    changed[-schema.CHECKSUM_BYTES :] = page_checksum(bytes(changed))
    return bytes(changed)


def _check(file: StoreFile, expected: StoreMeta) -> None:
    file.quick_check()
    if file.meta != expected:
        raise StoreDamagedError(
            store=str(file.store), reason=f"its image is of revision {file.meta.revision}"
        )


def _compress_draft(image: Image, draft: Path, taken: int) -> Snapshot:
    with draft.open("r+b") as file:
        _set_format(file, _ROLLBACK)
    _check_draft(draft, image.store)
    digest = hashlib.sha256()
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
    image_bytes = draft.stat().st_size
    frame_bytes = frame_bytes_of(image_bytes)
    frames = TableDraft(frame_bytes)
    # Without a name, so that no crash leaves it behind.
    with draft.open("rb") as source, tempfile.TemporaryFile(dir=draft.parent) as output:
        while piece := source.read(frame_bytes):
            digest.update(piece)
            frame = compressor.compress(piece)
            frames.add(frame)
            output.write(frame)
        table = frames.encode()
        output.write(table)
        output.flush()
        length = output.tell()
        body = os.fdopen(os.dup(output.fileno()), "rb")
        body.seek(0)
        return Snapshot(
            image.store,
            image.meta,
            digest.hexdigest(),
            image_bytes,
            taken,
            body,
            length,
            mark_of(table),
        )


def _check_draft(draft: Path, store: StoreId) -> StoreMeta:
    """Check an image in a file that nobody else has open, without a lock or a change."""
    try:
        connection = apsw.Connection(
            f"file:{quote(str(draft))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
            vfs=checksum_vfs(),
        )
        try:
            row = connection.execute(schema.SELECT_META).get
            application_id = connection.pragma("application_id")
            verdict = connection.pragma("quick_check", 1)
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise StoreDamagedError(store=str(store), reason=f"its image: {error}") from error
    if application_id != schema.APPLICATION_ID or row is None or (*row[:3],) != store:
        raise StoreDamagedError(store=str(store), reason="its image is of something else")
    if verdict != "ok":
        raise StoreDamagedError(store=str(store), reason=f"its image: quick_check: {verdict}")
    return StoreMeta(*row[3:])


@contextmanager
def _local(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailedError(reason=f"{path}: {error.strerror or error}") from error
