"""Files whose pages are not of the usual size: when a file gets them, how it is marked, and that
each reader of its bytes takes the size from it."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import NewerFormatError, StoreDamagedError
from holdfast.protocol.frames import WireChange
from holdfast.protocol.limits import KIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.authority.found_files import state_of_file
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.forks.growing import Growth, first_revision, grow_file, grow_image
from holdfast.shared_fs.inspection.inspection import FileState, inspect_store_file
from holdfast.shared_fs.snapshots.snapshot import compress, fetch, put, take_image
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.pages.page_sizes import (
    HEADER_BYTES,
    LARGE_PAGE_BYTES,
    OTHER_PAGES,
    format_of,
    page_bytes_for,
    page_bytes_of,
    raise_format,
    read_format,
)
from holdfast.shared_fs.store_file.sqlite_connection import set_checksums
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.literal_store_files import MESSAGES, META, write_file

STREAM = StoreId("acme", StoreKind.STREAM, "a.b")
KV = StoreId("acme", StoreKind.KV, "keys")
SIZES = (schema.PAGE_BYTES, 4 * KIB, LARGE_PAGE_BYTES, 64 * KIB)
_EXPECTED = (FileState.SOUND,)


def user_version(file: StoreFile) -> int:
    return int(file._connection.pragma("user_version"))


def chunk(upload: bytes, offset: int, data: bytes) -> list[Any]:
    return [CHANGE_PUT_CHUNK, upload, offset, data, 0]


# What a file gets
@pytest.mark.parametrize(
    ("changes", "is_large"),
    [
        ([], False),
        ([[CHANGE_CONFIGURE, {"max_messages": 9}]], False),
        ([[CHANGE_SET_MESSAGE, 1, b"x" * 128 * KIB]], True),
        ([[CHANGE_SET_ENTRY, "k", b"x" * 60 * KIB]], False),
        ([[CHANGE_SET_MESSAGE, seq, b"x" * 5000] for seq in range(1, 20)], True),
        ([[CHANGE_SET_MESSAGE, seq, b"x" * 1000] for seq in range(1, 2000)], False),
        ([chunk(b"u" * 16, 0, b"x" * 256 * KIB)], True),
        # One large value among many small ones.
        (
            [[CHANGE_SET_MESSAGE, 1, b"x" * 128 * KIB]]
            + [[CHANGE_SET_MESSAGE, seq, b"x"] for seq in range(2, 200)],
            False,
        ),
        # The value of a set may be that of an upload, of which the chunks count.
        ([[CHANGE_SET_MESSAGE, 1, [b"u" * 16, 1 << 30, None]]], False),
    ],
)
def test_what_is_large_asks_for_large_pages(changes: list[WireChange], is_large: bool) -> None:
    found = page_bytes_for([AppliedBatch(0, 1, changes[:1]), AppliedBatch(1, 1, changes[1:])])
    assert found == (LARGE_PAGE_BYTES if is_large else schema.PAGE_BYTES)


@settings(max_examples=examples(400))
@given(header=st.binary(max_size=HEADER_BYTES))
def test_a_header_has_a_size_that_sqlite_knows_or_none(header: bytes) -> None:
    found = page_bytes_of(header)
    assert found is None or (512 <= found <= 65536 and not found & (found - 1))


@settings(max_examples=examples(400))
@given(user_version=st.integers(0, (1 << 31) - 1))
def test_a_later_format_is_never_taken_for_a_known_one(user_version: int) -> None:
    found = format_of(user_version)
    known = range(schema.LATEST_FORMAT + 1)
    assert (found in known) == (user_version in known or user_version - OTHER_PAGES in known[1:])


@settings(max_examples=examples(200), deadline=None)
@given(numbers=st.lists(st.integers(1, schema.LATEST_FORMAT), max_size=5), is_marked=st.booleans())
def test_formats_only_rise_and_the_mark_stays(numbers: list[int], is_marked: bool) -> None:
    with closing(apsw.Connection(":memory:")) as connection:
        mark = OTHER_PAGES if is_marked else 0
        connection.pragma("user_version", 3 + mark)
        for number in numbers:
            raise_format(connection.execute, number)
        highest = max([3, *numbers])
        assert read_format(connection.execute) == highest
        assert connection.pragma("user_version") == highest + mark


# A file on the disk
#: A stream as formats with other pages have it: format 3, and subjects in format 5.
_FORMAT_103 = f"""
{META}
{MESSAGES}
INSERT INTO meta VALUES (1, 'acme', 1, 'a.b', 5, 3, 's1', 'i1', 2, 9, 2, 2, 100002, 0, NULL);
INSERT INTO messages VALUES
    (1, 1, 7, zeroblob(100000), NULL, NULL, NULL, NULL),
    (2, 2, 8, x'6162', NULL, NULL, NULL, NULL);
"""


def test_a_file_of_format_103_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    write_file(path, 103, _FORMAT_103, page_bytes=16384)
    with closing(StoreFile.open(path, STREAM)) as file:
        assert [row[3] for row in file.messages(1, None, 9)] == [bytes(100_000), b"ab"]
        assert (file.page_bytes, file.meta.revision) == (16384, 2)
        change: list[Any] = [CHANGE_SET_MESSAGE, 3, b"c", None, None, None, "orders.new"]
        file.apply([AppliedBatch(2, 10, [change])])
    with closing(StoreFile.open(path, STREAM)) as file:
        assert user_version(file) == 105
        assert [row[5] for row in file.messages(1, None, 9)] == [None, None, "orders.new"]
        file.quick_check()
        assert file.image()[16:18] == (16384).to_bytes(2, "big")


@pytest.mark.parametrize("number", [11, 100, 111, 203])
def test_a_later_format_is_refused_whatever_its_pages(tmp_path: Path, number: int) -> None:
    path = tmp_path / "a.db"
    write_file(path, number, _FORMAT_103, page_bytes=16384)
    before = path.read_bytes()
    with pytest.raises(NewerFormatError):
        StoreFile.open(path, STREAM)
    assert inspect_store_file(path, STREAM).state is FileState.NEWER
    assert path.read_bytes() == before


@pytest.mark.parametrize("page_bytes", SIZES[1:])
def test_a_file_that_ends_within_a_page_is_refused(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "a.db"
    StoreFile.create(path, STREAM, time=1, page_bytes=page_bytes).close()
    # Within none, were pages of the usual size.
    path.write_bytes(path.read_bytes()[: -schema.PAGE_BYTES])
    with pytest.raises(StoreDamagedError, match="ends within a page"):
        StoreFile.open(path, STREAM)


@pytest.mark.parametrize("page_bytes", SIZES)
@pytest.mark.parametrize("store", [STREAM, KV])
def test_a_file_as_it_was_made_is_known_by_that(
    tmp_path: Path, store: StoreId, page_bytes: int
) -> None:
    path = tmp_path / "a.db"
    file = StoreFile.create(path, store, time=1, page_bytes=page_bytes)
    is_ours = page_bytes in (schema.PAGE_BYTES, LARGE_PAGE_BYTES)
    assert state_of_file(Disk(), store, path) == (
        StoreState.CREATED if is_ours else StoreState.DURABLE
    )
    file.checkpoint()
    assert state_of_file(Disk(), store, path) == StoreState.DURABLE
    file.close()


# Contents
@st.composite
def contents(draw: st.DrawFn) -> tuple[StoreId, list[list[WireChange]]]:
    """A store, and the changes of some transactions, large and small."""
    store = draw(st.sampled_from([STREAM, KV]))
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    batches: list[list[WireChange]] = []
    last_seq = 0
    for _ in range(draw(st.integers(1, 6))):
        changes: list[WireChange] = []
        for _ in range(draw(st.integers(1, 12))):
            value = chance.randbytes(draw(st.sampled_from([0, 9, 700, 5000, 40_000])))
            if store is KV:
                key = f"k{chance.randrange(9)}"
                if draw(st.integers(0, 5)):
                    changes.append([CHANGE_SET_ENTRY, key, value])
                else:
                    changes.append([CHANGE_DELETE_ENTRIES, [key], None, 0, []])
            elif last_seq and not draw(st.integers(0, 5)):
                changes.append([CHANGE_DELETE_MESSAGES, [last_seq]])
            else:
                last_seq += 1
                subject = draw(st.sampled_from([None, "a.b", "a.c"]))
                changes.append([CHANGE_SET_MESSAGE, last_seq, value, None, None, None, subject])
        batches.append(changes)
    return store, batches


def filled(path: Path, store: StoreId, batches: list[list[WireChange]], size: int) -> StoreFile:
    """Return an open file with these contents, some of them in its WAL alone."""
    file = StoreFile.create(path, store, time=1, page_bytes=size)
    file.take(2, "s1", "i1")
    for number, changes in enumerate(batches):
        revision = file.meta.revision
        outcome = WriterOutcome(b"w" * 12, number + 1, 1, 1000, b"answer %d" % number)
        file.apply([AppliedBatch(revision, 1000 + number, changes)], [outcome])
        if number == len(batches) // 2:
            file.checkpoint()
    return file


def content_of(file: StoreFile) -> list[Any]:
    """All rows of all tables, whatever order they are in."""
    tables = file._connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    ).fetchall()
    return [
        (name, sorted(map(repr, file._connection.execute(f'SELECT * FROM "{name}"'))))
        for (name,) in tables
    ]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=examples(80), deadline=None)
@given(contents(), st.sampled_from(SIZES), st.booleans())
def test_snapshots_come_back_with_their_pages(
    content: tuple[StoreId, list[list[WireChange]]], page_bytes: int, is_small: bool
) -> None:
    store, batches = content
    small_bytes = 1 << 30 if is_small else 0
    with folder() as root:
        bucket = Bucket(MemoryBackend())
        with closing(filled(root / "a.db", store, batches, page_bytes)) as file:
            before, meta, mark = content_of(file), file.meta, user_version(file)
            # Pages in a WAL have no checksums of their own yet.
            file.checkpoint()
            image = take_image(file, root / "draft", small_bytes=small_bytes)
            version = put(bucket, compress(image, 5), "n1")
        fetch(bucket, store, version, root / "part", small_bytes=small_bytes).place(
            Disk(), root / "b.db"
        )
        with closing(StoreFile.open(root / "b.db", store)) as restored:
            restored.quick_check()
            assert (restored.page_bytes, restored.meta) == (page_bytes, meta)
            assert (content_of(restored), user_version(restored)) == (before, mark)
        verdict = inspect_store_file(root / "b.db", store, deep=True)
        assert verdict.state in _EXPECTED, verdict


@settings(max_examples=examples(60), deadline=None)
@given(contents(), st.sampled_from(SIZES), st.data())
def test_a_fork_has_the_pages_of_its_parent(
    content: tuple[StoreId, list[list[WireChange]]], page_bytes: int, data: st.DataObject
) -> None:
    store, batches = content
    with folder() as root:
        with closing(filled(root / "a.db", store, batches, page_bytes)) as file:
            file.checkpoint()
            image, meta = bytearray(file.image()), file.meta
        cut = None
        if store is STREAM and meta.last_seq:
            cut = data.draw(st.integers(0, meta.last_seq))
        fork = StoreId("acme", store.kind, "fork")
        growth = Growth(fork, cut, 9, first_revision(meta.revision, meta.count), 99)
        # As it is in the bucket: not in the format of WAL.
        image[18:20] = b"\x01\x01"
        set_checksums(image, page_bytes)
        (root / "b.db").write_bytes(grow_image(bytes(image), store, growth))
        shutil.copy(root / "a.db", root / "c.db")
        grow_file(root / "c.db", store, growth)
        with (
            closing(StoreFile.open(root / "b.db", fork)) as grown,
            closing(StoreFile.open(root / "c.db", fork)) as in_place,
        ):
            grown.quick_check()
            assert grown.page_bytes == in_place.page_bytes == page_bytes
            assert content_of(grown) == content_of(in_place)


@settings(max_examples=examples(80), deadline=None)
@given(contents(), st.sampled_from(SIZES), st.sampled_from(SIZES))
def test_a_file_made_anew_has_all_that_it_had(
    content: tuple[StoreId, list[list[WireChange]]], before_bytes: int, page_bytes: int
) -> None:
    store, batches = content
    with folder() as root:
        with closing(filled(root / "a.db", store, batches, before_bytes)) as file:
            before, meta, number = content_of(file), file.meta, read_format(file._execute)
            file.remake_to(root / "b.db", page_bytes)
            # It is as it was, and goes on.
            assert content_of(file) == before
            change = [CHANGE_SET_ENTRY, "more", b"m"]
            if store is STREAM:
                change = [CHANGE_SET_MESSAGE, meta.last_seq + 1, b"m"]
            file.apply([AppliedBatch(meta.revision, 2000, [change])])
        with closing(StoreFile.open(root / "b.db", store)) as remade:
            remade.quick_check()
            assert (remade.page_bytes, remade.meta) == (page_bytes, meta)
            assert content_of(remade) == before
            is_marked = page_bytes != schema.PAGE_BYTES
            assert user_version(remade) == number + OTHER_PAGES * is_marked
            assert remade.subjects.exists == any(name == "subjects" for name, _ in before)
        verdict = inspect_store_file(root / "b.db", store, deep=True)
        assert verdict.state in _EXPECTED, verdict


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 1 << 30))
def test_a_flipped_bit_in_any_page_is_found(page_bytes: int, seed: int) -> None:
    chance = random.Random(seed)
    values = [[CHANGE_SET_MESSAGE, seq, chance.randbytes(9000)] for seq in range(1, 30)]
    with folder() as root:
        filled(root / "a.db", STREAM, [values], page_bytes).close()
        content = bytearray((root / "a.db").read_bytes())
        # Beyond the header, which has marks of its own.
        content[chance.randrange(HEADER_BYTES, len(content))] ^= 1 << chance.randrange(8)
        (root / "a.db").write_bytes(content)
        with (
            pytest.raises(StoreDamagedError),
            closing(StoreFile.open(root / "a.db", STREAM)) as file,
        ):
            file.quick_check()
