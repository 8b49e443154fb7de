"""The number beside a fence: written and read as a fence is, and judged by order alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.disk.disk import BLOCK_BYTES, Disk
from holdfast.shared_fs.disk.fence import PADDED_BYTES
from holdfast.shared_fs.disk.proof import (
    NO_NUMBER,
    ProofNumber,
    Sight,
    create_proof,
    judge,
    read_proof,
    write_proof,
)

DISK = Disk()


class PaddingDisk(Disk):
    """Writes as a direct Disk does, and reads whatever the file system takes."""

    def __init__(self) -> None:
        super().__init__()
        self.direct = True

    def read_start(self, path: Path) -> bytes:
        return path.read_bytes()[:BLOCK_BYTES]


@pytest.fixture(params=[DISK, PaddingDisk()], ids=["plain", "padded"])
def disk(request: pytest.FixtureRequest) -> Disk:
    assert isinstance(request.param, Disk)
    return request.param


@pytest.fixture
def path(disk: Disk, tmp_path: Path) -> Path:
    create_proof(disk, tmp_path / "proof")
    return tmp_path / "proof"


def test_a_number_is_read_as_it_was_written(disk: Disk, path: Path) -> None:
    assert read_proof(disk, path) == NO_NUMBER
    for number in (ProofNumber(1, 1), ProofNumber(1, 2), ProofNumber(7, 1), ProofNumber(7, 2**62)):
        write_proof(DISK, path, number)
        assert read_proof(disk, path) == number


def test_it_is_overwritten_in_place(disk: Disk, path: Path) -> None:
    before = path.stat()
    write_proof(DISK, path, ProofNumber(1, 1))
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert (path.stat().st_size == PADDED_BYTES) is disk.direct


@pytest.mark.parametrize("late", [ProofNumber(3, 4), ProofNumber(2, 9)])
def test_a_request_that_comes_late_takes_nothing_back(path: Path, late: ProofNumber) -> None:
    write_proof(DISK, path, ProofNumber(3, 5))
    write_proof(DISK, path, late)
    assert read_proof(DISK, path) == (3, 5)


def test_a_file_that_a_host_does_not_see_says_nothing_and_cannot_be_written(tmp_path: Path) -> None:
    assert read_proof(DISK, tmp_path / "proof") == NO_NUMBER
    with pytest.raises(FileNotFoundError):
        write_proof(DISK, tmp_path / "proof", ProofNumber(1, 1))
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("content", [b"", b"1 \n", b"1\n", b"1 x\n", b"\xff\xff 1\n", b"1 2 3\n"])
def test_a_torn_line_says_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_proof(DISK, path) == NO_NUMBER


def test_a_disk_that_refuses_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(disk: Disk, path: Path) -> bytes:
        raise StorageFailedError(reason="input/output error")

    monkeypatch.setattr(Disk, "read_start", refuse)
    with pytest.raises(StorageFailedError):
        read_proof(DISK, path)


@pytest.mark.parametrize(
    ("before", "told", "found", "sight"),
    [
        # The number that was said, or a later one.
        ((1, 4), (1, 5), (1, 5), Sight.FRESH),
        ((1, 4), (1, 5), (1, 6), Sight.FRESH),
        ((1, 4), (1, 5), (2, 1), Sight.FRESH),
        # What was there before, by whomever it was written.
        ((1, 4), (1, 5), (1, 4), Sight.STALE),
        ((1, 4), (2, 5), (1, 4), Sight.STALE),
        (NO_NUMBER, (1, 1), NO_NUMBER, Sight.STALE),
        # Something older of the same term, also if it was never read.
        ((1, 3), (1, 5), (1, 4), Sight.STALE),
        ((1, 4), (1, 5), (1, 2), Sight.STALE),
        # Another coordinator may have written it after the number was said.
        ((1, 4), (2, 6), (1, 5), Sight.UNCLEAR),
        ((2, 4), (2, 5), NO_NUMBER, Sight.UNCLEAR),
    ],
)
def test_a_round_is_judged_by_order(
    before: tuple[int, int], told: tuple[int, int], found: tuple[int, int], sight: Sight
) -> None:
    assert judge(ProofNumber(*before), ProofNumber(*told), ProofNumber(*found)) is sight


@given(
    terms=st.lists(st.integers(1, 3), min_size=1, max_size=12).map(sorted),
    shown=st.data(),
)
def test_a_mount_that_shows_anything_older_for_two_rounds_is_found(
    terms: list[int], shown: st.DataObject
) -> None:
    """Coordinators write what is asked for, in order; the mount shows anything that ever was
    there, older than what was said."""
    written = [NO_NUMBER]
    before = NO_NUMBER
    sights = []
    for number, term in enumerate(terms, start=1):
        written.append(ProofNumber(term, number))
        found = shown.draw(st.sampled_from(written[:-1]))
        sights.append(judge(before, written[-1], found))
        assert sights[-1] is not Sight.FRESH
        # A mount that goes on showing the same is found in the next round.
        assert judge(found, ProofNumber(term, number + 1), found) is Sight.STALE
        before = found
    assert Sight.STALE in sights or len(set(terms)) > 1


@given(terms=st.lists(st.integers(1, 4), min_size=1, max_size=20))
def test_a_true_mount_is_never_blamed(terms: list[int]) -> None:
    """Deposed coordinators that were stopped in the middle of a write put back lower terms."""
    found = NO_NUMBER
    newest = 0
    for number, term in enumerate(terms, start=1):
        before = found
        if term < newest:
            # It overwrites what was said a moment ago, and is read instead.
            told = ProofNumber(newest, number)
            found = ProofNumber(term, number)
        else:
            newest = term
            told = found = ProofNumber(term, number)
        assert judge(before, told, found) is not Sight.STALE
