"""Archived messages are read back from a table, in a folder and on S3: all of them, or an error."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from holdfast.protocol.errors import ArchiveMissingError, UnavailableError
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, ArchivePlace, checksum_of
from holdfast.shared_fs.store_file.encrypted.encrypted_values import headers_in_table
from tests.support.s3_server import running_s3

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
