"""Pages of an image in the bucket: the right bytes, for few requests, or an error."""

from __future__ import annotations

import os
import random
from pathlib import Path

import apsw
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketUnavailableError,
    ObjectDamagedError,
    ObjectMissingError,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.framed_images import image_pages
from holdfast.shared_fs.framed_images.frame_table import TableDraft, TableMark, mark_of
from holdfast.shared_fs.framed_images.image_pages import (
    AHEAD_FRAMES,
    MAX_REQUESTS,
    FramedPlace,
    ImagePages,
    open_pages,
)
from holdfast.shared_fs.framed_images.image_vfs import open_paged
from tests.support.faulty_bucket import Fault, FaultyBackend

FRAME = 4096


class World:
    """A bucket with one image in frames."""

    def __init__(self, image: bytes) -> None:
        self.image = image
        self.backend = FaultyBackend(MemoryBackend())
        hasty = Surroundings(sleep=lambda seconds: None)
        self.bucket = Bucket(self.backend, retry=Retry(max_tries=2), surroundings=hasty)
        draft = TableDraft(FRAME)
        frames = []
        for at in range(0, len(image), FRAME):
            frames.append(zstandard.ZstdCompressor().compress(image[at : at + FRAME]))
            draft.add(frames[-1])
        self.table = draft.encode()
        self.body = b"".join([*frames, self.table])
        self.bucket.put_new("image", self.body)
        self.place = FramedPlace("image", len(self.body), len(image), mark_of(self.table))
        self.data_bytes = len(self.body) - len(self.table)
        self.bytes_before = 0

    def open(self) -> ImagePages:
        pages = open_pages(self.bucket, self.place)
        self.bytes_before = self.bucket.usage.total().received_bytes
        return pages

    @property
    def read_bytes(self) -> int:
        """How many bytes were read since it was opened."""
        return self.bucket.usage.total().received_bytes - self.bytes_before

    def damage(self, at: int) -> None:
        body = bytearray(self.body)
        body[at] ^= 1
        self.bucket.replace("image", bytes(body), self.bucket.head("image").version)


def world(frames: float = 200, seed: int = 1) -> World:
    return World(random.Random(seed).randbytes(int(frames * FRAME)))


@settings(max_examples=30)
@given(st.floats(0.01, 40), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9000)), max_size=30))
def test_every_part_of_an_image_is_as_it_was(frames: float, parts: list[tuple[float, int]]) -> None:
    one = world(max(frames, 1 / FRAME))
    with one.open() as pages:
        for share, length in parts:
            offset = int(share * len(one.image))
            assert pages.read(offset, length) == one.image[offset : offset + length]
        assert one.read_bytes <= 1.5 * one.data_bytes + FRAME
        assert pages.unpacked_bytes <= 1.5 * len(one.image) + FRAME


def test_a_page_costs_its_frame_and_is_fetched_once() -> None:
    one = world()
    with one.open() as pages:
        for _ in range(3):
            assert pages.read(100 * FRAME + 1024, 1024) == one.image[100 * FRAME + 1024 :][:1024]
        assert (pages.request_count, pages.unpacked_bytes) == (1, FRAME)
        assert one.read_bytes < 2 * FRAME


def test_who_reads_on_needs_fewer_and_fewer_requests() -> None:
    one = world(400)
    with one.open() as pages:
        for offset in range(0, 150 * FRAME, 1024):
            pages.read(offset, 1024)
        # 1, 2, 4, 8 and 16 frames, and from then on 16.
        assert pages.request_count == 4 + -(-(150 - 15) // AHEAD_FRAMES)
        assert pages.unpacked_bytes < (150 + AHEAD_FRAMES) * FRAME


def test_who_reads_all_over_an_image_gets_the_rest_at_once() -> None:
    one = world(1000)
    places = list(range(0, 1000, 3))
    random.Random(2).shuffle(places)
    with one.open() as pages:
        for place in places:
            assert pages.read(place * FRAME, 10) == one.image[place * FRAME :][:10]
        assert pages.request_count <= MAX_REQUESTS + 3
        assert one.read_bytes <= 1.5 * one.data_bytes


def test_beyond_half_of_an_image_the_rest_is_fetched_at_once() -> None:
    one = world(20)
    with one.open() as pages:
        for place in (19, 1, 17, 3, 15, 5, 13, 7, 11, 9, 0):
            assert pages.read(place * FRAME, 10) == one.image[place * FRAME :][:10]
        assert pages.request_count <= 10 + 1
        before = pages.request_count
        assert pages.read(0, 20 * FRAME) == one.image
        assert pages.request_count == before


def test_the_rest_is_fetched_in_pieces_that_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image_pages, "MAX_REQUESTS", 0)
    monkeypatch.setattr(image_pages, "_REST_BYTES", 10 * FRAME)
    one = world(100)
    with one.open() as pages:
        assert pages.read(50 * FRAME, 10) == one.image[50 * FRAME :][:10]
        assert 10 <= pages.request_count <= 13
        assert pages.read(0, 100 * FRAME) == one.image


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(-9000, 500_000), st.integers(-5, 30_000)), max_size=60),
    st.integers(0, 70),
)
def test_what_is_brought_is_there_and_costs_no_more_than_reading_it(
    places: list[tuple[int, int]], before: int
) -> None:
    one = world(100)
    with one.open() as pages:
        for number in range(before):
            pages.read(number * FRAME, 1)
        pages.bring(places)
        requests = pages.request_count
        for offset, length in places:
            if offset >= 0:
                assert pages.read(offset, length) == one.image[offset : offset + max(0, length)]
        assert pages.request_count == requests
        assert pages.read(0, 100 * FRAME) == one.image
        assert pages.request_count <= MAX_REQUESTS + 3
        assert one.read_bytes <= 1.5 * one.data_bytes + FRAME


def test_what_lies_close_together_is_brought_with_one_request() -> None:
    one = world(400)
    with one.open() as pages:
        # Each second frame, and one far away.
        pages.bring([(number * FRAME, 1) for number in (*range(10, 30, 2), 300)])
        assert pages.request_count == 2
        assert pages.unpacked_bytes == 20 * FRAME
        pages.bring([(12 * FRAME, 5 * FRAME)])
        assert pages.request_count == 2


def test_wrong_bytes_are_brought_again_and_damage_is_told() -> None:
    one = world(30)
    with one.open() as pages:
        one.backend.script(Fault.WRONG_BYTES)
        pages.bring([(0, 5 * FRAME)])
        assert pages.read(0, 5 * FRAME) == one.image[: 5 * FRAME]
        one.damage(10 * one.data_bytes // 30 + 100)
        with pytest.raises(ObjectDamagedError, match="another checksum"):
            pages.bring([(8 * FRAME, 4 * FRAME)])
        one.backend.down = True
        with pytest.raises(BucketUnavailableError):
            pages.bring([(20 * FRAME, FRAME)])


def test_a_frame_with_another_checksum_is_never_shown() -> None:
    one = world(10)
    one.damage(5 * one.data_bytes // 10)
    with one.open() as pages:
        assert pages.read(0, FRAME) == one.image[:FRAME]
        with pytest.raises(ObjectDamagedError, match="another checksum"):
            pages.read(4 * FRAME, 2 * FRAME)


def test_wrong_bytes_of_the_network_are_asked_for_again() -> None:
    one = world(10)
    one.backend.script(Fault.WRONG_BYTES)
    with one.open() as pages:
        one.backend.script(Fault.WRONG_BYTES)
        assert pages.read(3 * FRAME, 100) == one.image[3 * FRAME :][:100]
    one.backend.script(Fault.WRONG_BYTES, Fault.WRONG_BYTES)
    with pytest.raises(ObjectDamagedError, match="another sha256"):
        one.open()


def test_a_damaged_table_a_later_one_and_one_of_no_length_are_refused() -> None:
    one = world(10)
    mark = one.place.table
    wrong = [
        TableMark(2, mark.length, mark.sha256),
        TableMark(1, 0, mark.sha256),
        TableMark(1, len(one.body), mark.sha256),
        TableMark(1, 1 << 40, mark.sha256),
        TableMark(1, mark.length, "00" * 32),
    ]
    for each in wrong:
        with pytest.raises(ObjectDamagedError):
            open_pages(one.bucket, one.place._replace(table=each))
    one.damage(one.data_bytes + 20)
    with pytest.raises(ObjectDamagedError):
        one.open()


def test_a_frame_that_unpacks_to_more_than_its_share_is_refused() -> None:
    """As somebody might put who can write the bucket and the manifest."""
    compressor = zstandard.ZstdCompressor()
    silent = zstandard.ZstdCompressor(write_content_size=False)
    # The last one says that it has 32 TiB, for which there is no memory.
    absurd = b"\x28\xb5\x2f\xfd\xc0\x58" + (1 << 45).to_bytes(8, "little") + b"\x01\x00\x00"
    bombs = [compressor.compress(bytes(100 * FRAME)), silent.compress(bytes(100 * FRAME)), absurd]
    for number, bomb in enumerate(bombs):
        draft = TableDraft(FRAME)
        draft.add(bomb)
        one, key = world(1), f"bomb {number}"
        one.bucket.put_new(key, bomb + draft.encode())
        place = FramedPlace(key, len(bomb + draft.encode()), FRAME, mark_of(draft.encode()))
        with open_pages(one.bucket, place) as it:
            with pytest.raises(ObjectDamagedError):
                it.read(0, 1)
            assert it.unpacked_bytes == 0


def database(rows: int = 3000) -> bytes:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)")
    values = ((number, os.urandom(80)) for number in range(rows))
    connection.executemany("INSERT INTO t VALUES (?, ?)", values)
    return connection.serialize("main")


def test_sqlite_reads_the_pages_that_a_query_needs() -> None:
    one = World(database())
    with one.open() as pages:
        connection = open_paged(pages)
        before = apsw.Connection(":memory:")
        before.deserialize("main", one.image)
        wanted = "SELECT * FROM t WHERE a > 2900"
        assert connection.execute(wanted).fetchall() == before.execute(wanted).fetchall()
        assert pages.unpacked_bytes < len(one.image) / 5
        with pytest.raises(apsw.ReadOnlyError):
            connection.execute("DELETE FROM t")
        connection.close(True)


def test_what_the_bucket_raises_is_raised_by_the_query(tmp_path: Path) -> None:
    one = World(database())
    with one.open() as pages:
        connection = open_paged(pages)
        connection.execute("SELECT * FROM t WHERE a = 1").fetchall()
        one.backend.down = True
        with pytest.raises(BucketUnavailableError):
            connection.execute("SELECT sum(length(b)) FROM t").fetchall()
        one.backend.down = False
        assert connection.execute("SELECT sum(length(b)) FROM t").get == 3000 * 80
        connection.close(True)
    with one.open() as pages:
        connection = open_paged(pages)
        connection.execute("SELECT * FROM t WHERE a = 1").fetchall()
        one.bucket.delete("image")
        with pytest.raises(ObjectMissingError):
            connection.execute("SELECT sum(length(b)) FROM t").fetchall()
        connection.close(True)


def test_what_is_no_database_is_an_error_of_sqlite() -> None:
    one = world(3)
    with one.open() as pages, pytest.raises(apsw.NotADBError):
        open_paged(pages).execute("SELECT * FROM sqlite_schema").fetchall()
