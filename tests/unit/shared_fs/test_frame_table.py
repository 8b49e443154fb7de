"""The table of the frames of a snapshot: what it says, and that nothing else is taken for one."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.shared_fs.framed_images.frame_table import (
    FRAME_BYTES,
    MAX_TABLE_BYTES,
    FrameTable,
    TableDraft,
    TableMark,
    checksum,
    frame_bytes_of,
    mark_of,
    runs_of,
)

_FRAMES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20)


def encoded(frames: list[bytes], frame_bytes: int = 4096) -> bytes:
    draft = TableDraft(frame_bytes)
    for frame in frames:
        draft.add(frame)
    return draft.encode()


def decoded(table: bytes, frames: list[bytes], image_bytes: int) -> FrameTable:
    return FrameTable.decode(table, mark_of(table), sum(map(len, frames)), image_bytes)


@given(_FRAMES, st.integers(1, 4096), st.data())
def test_a_table_comes_back_as_it_was(frames: list[bytes], last: int, data: st.DataObject) -> None:
    image_bytes = (len(frames) - 1) * 4096 + last
    table = decoded(encoded(frames), frames, image_bytes)
    assert (table.count, table.frame_bytes) == (len(frames), 4096)
    assert list(table.checksums) == list(map(checksum, frames))
    stored = b"".join(frames)
    for number, frame in enumerate(frames):
        assert stored[table.starts[number] : table.starts[number + 1]] == frame
    assert sum(map(table.size_of, range(table.count))) == image_bytes
    offset = data.draw(st.integers(0, image_bytes - 1))
    length = data.draw(st.integers(1, image_bytes - offset))
    places = range(offset, offset + length)
    assert set(table.numbers(offset, length)) == {places[0] // 4096, places[-1] // 4096} | {
        place // 4096 for place in places[::4096]
    }


@given(_FRAMES, st.data())
def test_no_other_bytes_are_taken_for_a_table(frames: list[bytes], data: st.DataObject) -> None:
    table = encoded(frames)
    mark = mark_of(table)
    data_bytes = sum(map(len, frames))
    at = data.draw(st.integers(0, len(table) - 1))
    flipped = table[:at] + bytes([table[at] ^ data.draw(st.integers(1, 255))]) + table[at + 1 :]
    for wrong in (flipped, table[:-1], table + b"\0", b"", data.draw(st.binary(max_size=90))):
        with pytest.raises(ValueError, match="another sha256"):
            FrameTable.decode(wrong, mark, data_bytes, len(frames) * 4096)


@given(st.binary(max_size=200), st.integers(0, 1000), st.integers(1, 1 << 40))
def test_a_mark_of_something_else_makes_no_table_of_it(
    body: bytes, data_bytes: int, image_bytes: int
) -> None:
    mark = TableMark(1, len(body), hashlib.sha256(body).hexdigest())
    with pytest.raises(ValueError, match="its"):
        FrameTable.decode(body, mark, data_bytes, image_bytes)


def test_a_table_of_another_image_is_refused() -> None:
    frames = [b"one", b"two"]
    table = encoded(frames)
    for image_bytes, data_bytes in ((4096, 6), (3 * 4096, 6), (8192, 5), (8192, 7)):
        with pytest.raises(ValueError, match="another image"):
            FrameTable.decode(table, mark_of(table), data_bytes, image_bytes)
    for frame_bytes in (0, 1, 1 << 31):
        wrong = encoded(frames, frame_bytes)
        with pytest.raises(ValueError, match="its frames have"):
            FrameTable.decode(wrong, mark_of(wrong), 6, 8192)


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 70), st.integers(1, 50))
def test_runs_have_every_frame_once_and_are_as_few_as_may_be(
    numbers: set[int], most: int, longest: int
) -> None:
    runs = runs_of(sorted(numbers), most, longest)
    read = [number for first, end in runs for number in range(first, end)]
    assert numbers <= set(read) and read == sorted(set(read))
    assert all(0 < end - first <= longest for first, end in runs)
    whole = runs_of(sorted(numbers), most, 1000)
    assert len(whole) <= most
    assert all(first in numbers and end - 1 in numbers for first, end in whole)
    if len(whole) < most:
        # No frames between far ones are read without need.
        assert all({number, number + 1} & numbers for number in read[:-1])


@given(st.integers(1, 1 << 42))
def test_the_frames_of_any_image_fit_into_a_table(image_bytes: int) -> None:
    frame_bytes = frame_bytes_of(image_bytes)
    count = -(-image_bytes // frame_bytes)
    assert frame_bytes >= FRAME_BYTES and (frame_bytes == FRAME_BYTES or count > 8192)
    assert len(encoded([])) + 20 * count <= MAX_TABLE_BYTES


@given(st.integers(0, 99), st.integers(0, 1 << 32), st.binary(min_size=32, max_size=32))
def test_a_mark_comes_back_from_a_manifest_and_from_an_object(
    number: int, length: int, sha256: bytes
) -> None:
    mark = TableMark(number, length, sha256.hex())
    assert TableMark.of_row([*mark.row(), "of a later format"]) == mark
    assert TableMark.of_text(str(mark)) == mark
    for text in ("", "1-2", f"{mark}-3", "a-1-00", "1-1-zz"):
        with pytest.raises(ValueError, match=r"int|hex|unpack"):
            TableMark.of_text(text)
