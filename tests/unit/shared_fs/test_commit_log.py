"""The commit log: what was appended is read back, a torn end is cut, damage is never hidden."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import LOG_SEGMENT_BYTES, LOG_ZEROS_BYTES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.commit_log import (
    CommitLog,
    LogRecord,
    encode_frame,
    read_log,
    segment_name,
)
from holdfast.shared_fs.disk.disk import AppendFile, Disk
from tests.support.effort import examples
from tests.support.log_records import RECORDS
from tests.support.threads import in_threads

DISK = Disk()
STORE = StoreId("acme", StoreKind.STREAM, "a.b")


def record(revision: int, value: bytes = b"v") -> LogRecord:
    change = [CHANGE_SET_MESSAGE, revision, value]
    payload = frames.encode_changes(1, revision - 1, 1000, [change])
    return LogRecord(STORE, 1, revision - 1, revision, [payload], [])


def frame(tick: int, **options: Any) -> bytes:
    return encode_frame(tick, [record(tick)], **options)


def torn_frame(tick: int, **options: Any) -> bytes:
    """A frame whose last byte is another."""
    whole = frame(tick, **options)
    return whole[:-1] + bytes([whole[-1] ^ 1])


def write_segment(directory: Path, number: int, *pieces: bytes) -> None:
    (directory / segment_name(number)).write_bytes(b"".join(pieces))


def revisions(directory: Path) -> list[int]:
    return [found.revision for found in read_log(DISK, directory).records]


def torn_ends(directory: Path) -> list[bool]:
    """Return of each damage whether it is only a torn end."""
    return [damage.torn_end for damage in read_log(DISK, directory).damage]


class FakeFile:
    """An append file that writes what it is told to before it fails, as a full disk would."""

    def __init__(self, file: AppendFile, disk: FaultyDisk) -> None:
        self._file, self._disk = file, disk
        self.synced = self.closed = False

    def write(self, data: bytes) -> None:
        if self._disk.refuse_writes:
            raise StorageFailedError(reason="full")
        self._file.write(data)

    def cut_zeros(self) -> None:
        self._file.cut_zeros()

    def sync(self) -> None:
        if self._disk.refuse_syncs:
            raise StorageFailedError(reason="EIO")
        assert not self.closed
        self._file.sync()
        self.synced = True

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self._file.close()


class FaultyDisk(Disk):
    """A disk that refuses on demand and knows which append files are still open."""

    def __init__(self) -> None:
        self.files: list[FakeFile] = []
        self.refuse_writes = self.refuse_syncs = self.refuse_directory_syncs = False

    def open_append(self, path: Path, *, zeros_bytes: int = 0) -> AppendFile:
        file = FakeFile(super().open_append(path, zeros_bytes=zeros_bytes), self)
        self.files.append(file)
        return file

    def sync_directory(self, path: Path) -> None:
        if self.refuse_directory_syncs:
            raise StorageFailedError(reason="EIO")
        super().sync_directory(path)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def log(disk: FaultyDisk, tmp_path: Path) -> Iterator[CommitLog]:
    with closing(CommitLog(disk, tmp_path)) as log:
        yield log
    assert all(file.closed for file in disk.files)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "LOG_SEGMENT_BYTES", 200)


@given(st.lists(st.lists(RECORDS, max_size=3), max_size=6))
@settings(deadline=None, max_examples=examples(60))
def test_everything_appended_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[list[LogRecord]]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = CommitLog(DISK, directory)
    for tick, records in enumerate(ticks, start=1):
        log.append(tick, records)
    log.prepare_sync()()
    contents = read_log(DISK, directory)
    log.close()
    assert contents.records == [each for records in ticks for each in records]
    assert contents.damage == []
    assert read_log(DISK, directory).records == contents.records
    assert read_log(DISK, directory).size_bytes == log.size_bytes


def test_an_empty_and_a_missing_log_hold_nothing(tmp_path: Path) -> None:
    CommitLog(DISK, tmp_path / "log").close()
    for directory in (tmp_path / "log", tmp_path / "missing"):
        contents = read_log(DISK, directory)
        assert (contents.records, contents.damage, contents.size_bytes) == ([], [], 0)


def test_a_log_is_never_continued_by_another_life(tmp_path: Path) -> None:
    CommitLog(DISK, tmp_path).close()
    with pytest.raises(StorageFailedError):
        CommitLog(DISK, tmp_path)


def test_a_torn_end_is_cut_at_the_last_whole_frame_wherever_it_tears(tmp_path: Path) -> None:
    whole = frame(1) + frame(2)
    last = encode_frame(3, [record(3, b"third")])
    for kept in range(1, len(last)):
        write_segment(tmp_path, 1, whole, last[:kept])
        assert revisions(tmp_path) == [1, 2]
        (damage,) = read_log(DISK, tmp_path).damage
        assert (damage.torn_end, damage.offset) == (True, len(whole))
    write_segment(tmp_path, 1, whole, last)
    assert revisions(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("zeros_bytes", [1, 27, 28, 4096])
def test_zeros_behind_the_last_frame_are_no_part_of_the_log(
    tmp_path: Path, zeros_bytes: int
) -> None:
    # The frame itself ends in zeros.
    write_segment(tmp_path, 1, encode_frame(1, [record(1, bytes(100))]), bytes(zeros_bytes))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1], [])


def test_zeros_before_a_later_segment_are_nothing_only_if_its_ticks_follow(tmp_path: Path) -> None:
    # A power cut may undo that a full segment was cut to its frames.
    write_segment(tmp_path, 1, frame(1), frame(2), bytes(600))
    write_segment(tmp_path, 2, frame(3), bytes(600))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 2, 3], [])
    # The disk lost an acknowledged frame there.
    write_segment(tmp_path, 1, frame(1), bytes(600))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 3], [False])
    # It lost one that was not, with what came after it.
    write_segment(tmp_path, 2, frame(3, synced_tick=1), bytes(600))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1], [True])


def test_a_frame_torn_among_zeros_is_a_torn_end_whichever_sectors_are_old(tmp_path: Path) -> None:
    whole, last = frame(1) + frame(2), encode_frame(3, [record(3, b"third" * 200)])
    before, end = len(whole), len(whole) + len(last)
    starts = range(before // 512 * 512, end, 512)
    for kept in range(2 ** len(starts) - 1):
        segment = bytearray(whole) + bytes(len(last) + 4096)
        for bit, start in enumerate(starts):
            if kept >> bit & 1:
                part = slice(max(start, before), min(start + 512, end))
                segment[part] = last[part.start - before : part.stop - before]
        write_segment(tmp_path, 1, segment)
        assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 2], [True] if kept else [])


def test_a_frame_among_zeros_behind_a_lost_one_does_not_count(tmp_path: Path) -> None:
    lost, kept = len(frame(3)), frame(4, synced_tick=2)
    write_segment(tmp_path, 1, frame(1), frame(2), bytes(lost), kept, bytes(600))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 2], [True])
    # One that knows that the lost frame was synced is proof of damage.
    write_segment(tmp_path, 1, frame(1), frame(2), bytes(lost), frame(4), bytes(600))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 2, 4], [False])


@pytest.mark.parametrize("remote", [False, True])
def test_a_log_on_a_local_disk_alone_writes_over_zeros(tmp_path: Path, remote: bool) -> None:
    log = CommitLog(Disk(remote=remote), tmp_path)
    path = tmp_path / segment_name(1)
    sizes = []
    for tick in range(1, 20):
        log.append(tick, [record(tick)])
        sizes.append(path.stat().st_size)
    assert revisions(tmp_path) == list(range(1, 20))
    assert len(set(sizes)) == (19 if remote else 1)
    frames_bytes = len(b"".join(frame(tick, synced_tick=0) for tick in range(1, 20)))
    assert (sizes[-1] == frames_bytes) == remote
    log.close()
    assert path.stat().st_size == log.size_bytes == frames_bytes


@pytest.mark.usefixtures("small_segments")
def test_a_full_segment_is_cut_to_its_frames_before_the_next_one_begins(
    log: CommitLog, tmp_path: Path
) -> None:
    log.append(1, [record(1, bytes(200))])
    full = tmp_path / segment_name(1)
    assert full.stat().st_size > log.size_bytes
    log.append(2, [record(2)])
    assert full.stat().st_size == len(encode_frame(1, [record(1, bytes(200))], synced_tick=0))


def test_a_zombie_that_closes_its_log_takes_no_frame_from_it(tmp_path: Path) -> None:
    log = CommitLog(DISK, tmp_path)
    log.append(1, [record(1)])
    log.prepare_sync()()
    (tmp_path / segment_name(1)).rename(tmp_path / "kept.log")
    log.close()
    assert revisions(tmp_path) == [1]


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=examples(150))
def test_a_flipped_bit_in_the_middle_is_damage_and_later_frames_are_still_read(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    middle = bytearray(frame(2))
    middle[position % len(middle)] ^= 1 << bit
    directory = tmp_path_factory.mktemp("log")
    write_segment(directory, 1, frame(1), middle, frame(3))
    assert (revisions(directory), torn_ends(directory)) == ([1, 3], [False])
    assert read_log(DISK, directory).damage[0].offset == len(frame(1))


@given(st.lists(st.binary(max_size=50) | st.just(encode_frame(7, [record(7)])), max_size=5))
@settings(deadline=None, max_examples=examples(100))
def test_no_bytes_make_reading_fail(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    write_segment(directory, 1, *pieces)
    assert set(revisions(directory)) <= {7}


@pytest.mark.parametrize("body", [5, [5], [[1, 2]], {"a": 1}, None])
def test_a_sound_frame_of_a_foreign_shape_is_damage(tmp_path: Path, body: Any) -> None:
    packed = frames.pack(body)
    checksum = zlib.crc32(packed, zlib.crc32(commit_log._CHECKED.pack(len(packed), 1, 0)))
    foreign = commit_log._HEADER.pack(b"HFlg", len(packed), 1, 0, checksum) + packed
    write_segment(tmp_path, 1, foreign, frame(2))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([2], [False])


def test_a_frame_that_is_missing_in_the_middle_is_noticed(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, frame(1), frame(3))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 3], [False])
    assert [each.reason for each in read_log(DISK, tmp_path).damage] == ["tick 3 follows tick 1"]


def test_a_torn_segment_with_another_after_it_is_damage(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, frame(1), frame(2)[:-3])
    write_segment(tmp_path, 2, frame(3))
    assert revisions(tmp_path) == [1, 3]
    assert set(torn_ends(tmp_path)) == {False}


def test_a_magic_inside_a_value_is_no_frame(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, encode_frame(1, [record(1, frame(9) + b"HFlg")]))
    assert revisions(tmp_path) == [1]


@pytest.mark.parametrize("torn_byte", [0, 30, 400, -1])
def test_a_frame_inside_a_value_is_never_taken_for_one(tmp_path: Path, torn_byte: int) -> None:
    """Else whoever appends it to their own store would write into any other one of the server,
    after a power cut that tears the frame around it."""
    forged = encode_frame(3, [record(2, b"forged")], synced_tick=2)
    hostile = encode_frame(2, [record(1, b"a" * 500 + forged + b"b" * 500)], synced_tick=1)
    torn = bytearray(hostile)
    torn[torn_byte] ^= 1
    write_segment(tmp_path, 1, frame(1), bytes(torn), bytes(1000))
    found = read_log(DISK, tmp_path)
    assert [each.revision for each in found.records] == [1]
    assert [each.torn_end for each in found.damage] == [True]


@pytest.mark.parametrize("store_count", [1, 3, 20])
@pytest.mark.parametrize("excess", [-1, 0, frames.MAX_COPIED_BYTES])
def test_large_payloads_are_framed_as_any_others(
    tmp_path: Path, store_count: int, excess: int
) -> None:
    """Those who read the log, and earlier versions, see the msgpack of one list."""
    large = bytes(frames.MAX_COPIED_BYTES + excess)
    outcomes = [[b"writer", 7, 5, 1000, b"outcome"]]
    records = [record(1, b"small")]
    for number in range(store_count):
        store = StoreId("acme", StoreKind.KV, f"s{number}")
        records.append(LogRecord(store, 1 << 40, 300, 302, [large, b"", b"x"], outcomes))
    whole = encode_frame(1, records)
    packed = frames.pack([(*each.store, *each[1:]) for each in records])
    assert whole[commit_log._HEADER.size :] == packed
    write_segment(tmp_path, 1, whole, frame(2))
    assert read_log(DISK, tmp_path).records == [*records, record(2)]
    assert torn_ends(tmp_path) == []


@pytest.mark.parametrize("at", [0, 70_000, -4])
def test_a_magic_in_a_large_value_is_masked(tmp_path: Path, at: int) -> None:
    large = bytearray(2 * frames.MAX_COPIED_BYTES)
    large[at : at + 4 or None] = b"HFlg"
    written = encode_frame(1, [record(1, bytes(large))])
    assert len(re.findall(b"HFl[gx]", written)) == 1
    write_segment(tmp_path, 1, written)
    assert read_log(DISK, tmp_path).records == [record(1, bytes(large))]


@pytest.mark.parametrize("magic", [b"HFlg", b"HFlx"])
def test_a_value_that_has_a_magic_is_read_back(tmp_path: Path, magic: bytes) -> None:
    """Also one that has a frame which is masked itself, and among other frames."""
    masked = encode_frame(9, [record(9, magic)])
    values = [magic, magic * 1000, b"x" + magic + bytes(16), masked, masked[4:], b""]
    records = [record(number, value) for number, value in enumerate(values, 1)]
    written = [encode_frame(number, [each]) for number, each in enumerate(records, 1)]
    assert all(len(re.findall(b"HFl[gx]", each)) == 1 for each in written)
    write_segment(tmp_path, 1, *written)
    assert read_log(DISK, tmp_path).records == records
    flipped = bytearray(written[2])
    flipped[-1] ^= 1
    write_segment(tmp_path, 1, *written[:2], flipped, *written[3:])
    assert read_log(DISK, tmp_path).records == records[:2] + records[3:]


@pytest.mark.usefixtures("small_segments")
def test_segments_rotate_and_are_read_in_their_order(log: CommitLog, tmp_path: Path) -> None:
    segments = [log.append(tick, [record(tick, bytes(90))]) for tick in range(1, 13)]
    assert segments == sorted(segments)
    assert log.segment == segments[-1] > 3
    assert log.oldest_segment == 1
    log.prepare_sync()()
    assert (revisions(tmp_path), torn_ends(tmp_path)) == (list(range(1, 13)), [])


@pytest.mark.usefixtures("small_segments")
def test_a_retired_segment_is_gone_and_the_rest_stays(log: CommitLog, tmp_path: Path) -> None:
    for tick in range(1, 10):
        log.append(tick, [record(tick, bytes(90))])
    log.prepare_sync()()
    before_bytes = log.size_bytes
    log.retire(1)
    assert log.oldest_segment == 2
    assert log.size_bytes < before_bytes
    contents = read_log(DISK, tmp_path)
    assert contents.damage == []
    assert log.size_bytes <= contents.size_bytes <= log.size_bytes + LOG_ZEROS_BYTES
    assert revisions(tmp_path) == list(range(contents.records[0].revision, 10))


def test_the_limit_of_a_segment_is_the_documented_one(log: CommitLog) -> None:
    segments = [log.append(tick, [record(1, bytes(1_000_000))]) for tick in range(1, 11)]
    full = LOG_SEGMENT_BYTES // 1_000_000 + 1
    assert segments == [1] * full + [2] * (10 - full)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("sync_each", [True, False])
def test_rotation_closes_every_full_segment_and_syncs_every_frame(
    disk: FaultyDisk, log: CommitLog, sync_each: bool
) -> None:
    for tick in range(1, 20):
        log.append(tick, [record(tick, bytes(90))])
        if sync_each:
            log.prepare_sync()()
    log.append(20, [record(20)])
    log.prepare_sync()()
    assert len(disk.files) > 5
    assert all(file.synced for file in disk.files)
    assert [file.closed for file in disk.files] == [True] * (len(disk.files) - 1) + [False]


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_fills_while_it_is_being_synced_is_closed_too(
    disk: FaultyDisk, log: CommitLog
) -> None:
    log.append(1, [record(1, bytes(200))])
    sync = log.prepare_sync()
    log.append(2, [record(2)])
    in_threads(sync)
    log.prepare_sync()()
    assert [file.closed for file in disk.files] == [True, False]


def test_a_refused_append_leaves_nothing_and_the_next_one_follows(
    disk: FaultyDisk, log: CommitLog, tmp_path: Path
) -> None:
    log.append(1, [record(1)])
    size_bytes = log.size_bytes
    disk.refuse_writes = True
    with pytest.raises(StorageFailedError):
        log.append(2, [record(2)])
    assert log.size_bytes == size_bytes
    disk.refuse_writes = False
    log.append(2, [record(2, b"again")])
    log.prepare_sync()()
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 2], [])


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_could_not_be_started_is_tried_again(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    log = CommitLog(disk, tmp_path)
    log.append(1, [record(1, bytes(200))])
    disk.refuse_directory_syncs = True
    for _ in range(2):
        with pytest.raises(StorageFailedError, match="EIO"):
            log.append(2, [record(2)])
    disk.refuse_directory_syncs = False
    assert log.append(2, [record(2)]) == 2
    log.prepare_sync()()
    assert revisions(tmp_path) == [1, 2]
    log.close()
    assert all(file.closed for file in disk.files)


def test_a_failed_sync_says_so_and_one_with_nothing_new_touches_nothing(
    disk: FaultyDisk, log: CommitLog
) -> None:
    disk.refuse_syncs = True
    log.prepare_sync()()
    log.append(1, [record(1)])
    with pytest.raises(StorageFailedError):
        log.prepare_sync()()


def test_a_frame_lost_before_an_unacknowledged_one_ends_the_log_and_is_no_damage(
    tmp_path: Path,
) -> None:
    # A power cut may keep the second of two unsynced frames and not the first.
    third, fifth, sixth = (frame(tick, synced_tick=2) for tick in (3, 5, 6))
    torn = torn_frame(4, synced_tick=2)
    write_segment(tmp_path, 1, frame(1), frame(2), third, torn, fifth)
    write_segment(tmp_path, 2, sixth)
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 2, 3], [True])


def test_a_frame_lost_that_a_later_one_knows_to_be_synced_is_damage(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, frame(1), torn_frame(2), frame(3, synced_tick=2))
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([1, 3], [False])


@pytest.mark.parametrize("same_segment", [True, False])
def test_a_first_frame_torn_before_anything_was_synced_leaves_an_empty_log(
    tmp_path: Path, same_segment: bool
) -> None:
    torn, second = torn_frame(1, synced_tick=0), frame(2, synced_tick=0)
    write_segment(tmp_path, 1, torn, second if same_segment else b"")
    if not same_segment:
        write_segment(tmp_path, 2, second)
    assert (revisions(tmp_path), torn_ends(tmp_path)) == ([], [True])


@pytest.mark.parametrize("zeros_bytes", [0, 1, 4096])
@pytest.mark.parametrize(("synced_tick", "torn_end"), [(0, True), (1, False)])
def test_an_emptied_segment_before_others_is_an_end_only_if_nothing_in_it_was_synced(
    tmp_path: Path, synced_tick: int, torn_end: bool, zeros_bytes: int
) -> None:
    write_segment(tmp_path, 1, bytes(zeros_bytes))
    write_segment(tmp_path, 2, frame(2, synced_tick=synced_tick))
    assert torn_ends(tmp_path) == [torn_end]
    assert revisions(tmp_path) == ([] if torn_end else [2])


def test_a_log_that_is_turned_over_is_whole_and_its_past_can_go(
    log: CommitLog, tmp_path: Path
) -> None:
    # Nothing was appended yet: an empty segment before the newest would count as damage.
    assert [log.begin_segment(), log.begin_segment()] == [1, 1]
    log.append(1, [record(1)])
    assert log.begin_segment() == 2
    assert log.append(2, [record(2)]) == 2
    log.prepare_sync()()
    assert [log.begin_segment(), log.begin_segment()] == [3, 3]
    assert (revisions(tmp_path), read_log(DISK, tmp_path).damage) == ([1, 2], [])
    log.retire(1)
    log.retire(2)
    log.append(3, [record(3)])
    log.prepare_sync()()
    assert (revisions(tmp_path), read_log(DISK, tmp_path).damage) == ([3], [])
