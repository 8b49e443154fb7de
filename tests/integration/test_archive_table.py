"""Archived messages are read back from a table, in a folder and on S3: all of them, or an error."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from holdfast.protocol.errors import ArchiveMissingError, UnavailableError
from holdfast.shared_fs.archive import archive_table
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, ArchivePlace, checksum_of
from holdfast.shared_fs.store_file.encrypted.encrypted_values import headers_in_table
from tests.support.s3_server import running_s3
from tests.support.waiting import DEADLINE_SECONDS

TIME = 1_800_000_000_000
DATE = date.fromtimestamp(TIME // 1000)
PLACE = ArchivePlace("", "acme", "notes")
SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("date", pa.date32()),
        ("kind", pa.string()),
        ("store", pa.string()),
        ("operation", pa.string()),
        ("seq", pa.int64()),
        ("revision", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("value", pa.binary()),
    ]
)


@pytest.fixture(params=["folder", "s3"])
def bucket_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield f"file://{tmp_path / 'bucket'}"
        return
    with running_s3() as url:
        yield url


def message(seq: int) -> ArchivedMessage:
    value, headers = content(seq)
    packed = pack_headers(headers)
    size_bytes = len(value) + len(packed or b"")
    return ArchivedMessage(seq, seq, TIME, size_bytes, checksum_of(value, packed), PLACE)


def content(seq: int) -> tuple[bytes, dict[str, str] | None]:
    return b"value %d" % seq, {"number": str(seq)} if seq % 2 else None


def write(
    location: TableLocation, seqs: range, *, store: str = "notes", mode: str = "append"
) -> None:
    bodies = [content(seq) for seq in seqs]
    # The same numbers in an earlier life of the stream, and a value that stayed in its store.
    bodies += [(b"of another life", None), (None, None)]
    numbers = [*seqs, seqs[0], seqs[1]]
    count = len(numbers)
    rows = pa.table(
        [
            ["acme"] * count,
            [DATE] * count,
            ["stream"] * count,
            [store] * count,
            ["set"] * count,
            numbers,
            numbers,
            [datetime.fromtimestamp(TIME / 1000, UTC)] * count,
            [list((headers or {}).items()) for _, headers in bodies],
            [value for value, _ in bodies],
        ],
        schema=SCHEMA,
    )
    write_deltalake(
        location.uri,
        rows,
        mode=mode,
        partition_by=["tenant", "date"],
        storage_options=location.delta_options,
    )


def remove_files(location: TableLocation) -> None:
    for found in list(location.list()):
        if found.path.endswith(".parquet"):
            location.delete(found.path)


def test_what_was_archived_is_read_back_whole_or_its_loss_is_told(bucket_url: str) -> None:
    location = TableLocation(default_table(bucket_url))
    archive = Archive(bucket_url)
    wanted = [message(seq) for seq in range(5, 15)]
    with pytest.raises(ArchiveMissingError, match="no table"):
        archive.bodies(wanted)
    write(location, range(1, 11))
    with pytest.raises(ArchiveMissingError, match="seq 11") as caught:
        archive.bodies(wanted)
    assert (caught.value.first_seq, caught.value.last_seq) == (5, 14)
    write(location, range(11, 21))
    write(location, range(1, 21), store="others")
    assert archive.bodies(wanted) == {(seq, seq): content(seq) for seq in range(5, 15)}
    with pytest.raises(ArchiveMissingError, match="seq 5"):
        archive.bodies([replace(wanted[0], checksum=wanted[0].checksum ^ 1)])

    archive.forget()
    assert archive.bodies(wanted) == {(seq, seq): content(seq) for seq in range(5, 15)}
    remove_files(location)
    write(location, range(1, 21), mode="overwrite")
    assert archive.bodies(wanted) == {(seq, seq): content(seq) for seq in range(5, 15)}
    remove_files(location)
    with pytest.raises(ArchiveMissingError, match="missing"):
        Archive(bucket_url).bodies(wanted)


@pytest.mark.parametrize("is_box", [False, True])
def test_the_box_of_an_encrypted_message_is_read_back_as_it_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_box: bool
) -> None:
    box = b"\xc1" + bytes(range(60))
    # An application may have written such a header itself: the checksum tells.
    stored = box if is_box else pack_headers(headers_in_table(box))
    assert stored is not None
    value = b"value"
    monkeypatch.setitem(globals(), "content", lambda seq: (value, headers_in_table(box)))
    url = f"file://{tmp_path / 'bucket'}"
    write(TableLocation(default_table(url)), range(1, 3))
    size_bytes = len(value) + len(stored)
    sought = ArchivedMessage(1, 1, TIME, size_bytes, checksum_of(value, stored), PLACE)
    headers = box if is_box else headers_in_table(box)
    assert Archive(url).bodies([sought]) == {(1, 1): (value, headers)}
    with pytest.raises(ArchiveMissingError):
        Archive(url).bodies([replace(sought, checksum=sought.checksum ^ 1)])


def test_a_table_that_cannot_be_reached_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    # Nobody listens there any more.
    with pytest.raises(UnavailableError):
        Archive(f"s3://b?endpoint=http://127.0.0.1:{port}&region=r").bodies([message(1)])


def test_a_row_group_that_several_want_at_once_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket_url = f"file://{tmp_path / 'bucket'}"
    write(TableLocation(default_table(bucket_url)), range(1, 21))
    archive = Archive(bucket_url)
    read_row_group = pq.ParquetFile.read_row_group
    reads: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def slow(file: pq.ParquetFile, index: int, **options: Any) -> pa.Table:
        reads.append(index)
        begun.set()
        assert may_end.wait(DEADLINE_SECONDS)
        if len(reads) == 1:
            raise OSError(errno.EIO, "a bad moment")
        return read_row_group(file, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", slow)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(archive.bodies, [message(5)])
        assert begun.wait(DEADLINE_SECONDS)
        others = [pool.submit(archive.bodies, [message(seq)]) for seq in (6, 7)]
        [table] = archive._tables.values()
        until_waiting(table, 2)
        may_end.set()
        for each in (first, *others):
            with pytest.raises(UnavailableError, match="a bad moment"):
                each.result(DEADLINE_SECONDS)
        assert reads == [0], "what fails is not tried again by each of them"
        begun.clear()
        may_end.clear()
        again = [pool.submit(archive.bodies, [message(8)])]
        assert begun.wait(DEADLINE_SECONDS)
        again += [pool.submit(archive.bodies, [message(seq)]) for seq in (9, 10)]
        until_waiting(table, 2)
        may_end.set()
        for seq, each in zip((8, 9, 10), again, strict=True):
            assert each.result(DEADLINE_SECONDS) == {(seq, seq): content(seq)}
    assert reads == [0, 0]


def test_what_comes_next_is_read_ahead_only_if_what_readers_are_at_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket_url = f"file://{tmp_path / 'bucket'}"
    location = TableLocation(default_table(bucket_url))
    archive = Archive(bucket_url)
    # There is no table yet: that is no error of somebody who does not read.
    archive.warm([message(1), message(15)])
    for start in (1, 11, 21):
        write(location, range(start, start + 10))
    reads: list[str] = []
    read_row_group = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, index: int, **options: Any) -> pa.Table:
        reads.append(str(index))
        return read_row_group(file, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    archive.bodies([message(5)])
    archive.warm([message(5), message(15)])
    archive.warm([message(5), message(16)])
    assert len(reads) == 2
    assert archive.bodies([message(11)]) == {(11, 11): content(11)}
    assert len(reads) == 2, "it was there"
    # There is room for the third one only if the first leaves.
    [table] = archive._tables.values()
    group_bytes = [file.metadata.row_group(0).total_byte_size for file in table._open.values()]
    monkeypatch.setattr(
        archive_table, "_KEPT_BYTES", table._rows_bytes + max(group_bytes) - 1
    )
    archive.warm([message(5), message(25)])
    assert len(reads) == 2
    archive.warm([message(11), message(25)])
    assert len(reads) == 3
    archive.bodies([message(19), message(25)])
    assert len(reads) == 3, "where the reader is stays"
    archive.bodies([message(5)])
    assert len(reads) == 4


def until_waiting(table: Any, count: int) -> None:
    """Return once so many threads wait for what another one reads."""
    [reading] = table._reading.values()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(reading._condition._waiters) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
