"""The proof: the number beside a fence, by which a server shows that it reads fresh.

A fence is safe only if its server sees it as soon as it is durable. Whether it does depends on the
mount. So beside each fence is a file that the coordinator overwrites in the same way, and that the
server reads in the same way. In each round

    the server reads the file, and asks for a number that it never asked for before
    the coordinator writes the number durably, and says so
    the server reads the file again: it must find the number

An older number shows a mount that keeps what it has read before, and would hide a fence likewise.
Only the order of these steps counts, no clock: the number was durable before it was said.

`judge` is pure. It must not blame the mount for what others wrote: a coordinator that was stopped
in the middle of a write and then deposed may put back its own, lower term.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_padded

_FORMAT: Final = "{:020d} {:020d}\n"


class ProofNumber(NamedTuple):
    """What the file says. Later ones are higher, and none is written twice."""

    #: That of the coordinator that wrote it.
    term: int
    #: As the server asked for it: from 1, each above the last.
    number: int


#: What the file says at first. No coordinator writes it.
NO_NUMBER: Final = ProofNumber(0, 0)


class Sight(StrEnum):
    """What a round showed."""

    FRESH = "fresh"
    STALE = "stale"
    #: Somebody else wrote meanwhile: the round does not count.
    UNCLEAR = "unclear"


def create_proof(disk: Disk, path: Path) -> None:
    """Write the file of a new incarnation. Its folder must exist. Raises StorageFailedError."""
    create_padded(disk, path, _text(NO_NUMBER))


def write_proof(disk: Disk, path: Path, number: ProofNumber) -> None:
    """Write a number, unless the file has a later one, which a delayed request must not take back.

    Durable when this returns. The caller writes one number of an incarnation at a time. Raises
    FileNotFoundError, StorageFailedError.
    """
    if _read(disk, path) <= number:
        disk.overwrite_durably(path, _text(number))


def read_proof(disk: Disk, path: Path) -> ProofNumber:
    """Return what the file says, read just as `fence.is_open` reads a fence; NO_NUMBER if this host
    does not see the file. Raises StorageFailedError."""
    try:
        return _read(disk, path)
    except FileNotFoundError:
        return NO_NUMBER


def judge(before: ProofNumber, told: ProofNumber, found: ProofNumber) -> Sight:
    """Return what a round showed: `before` was read before `told` was asked for, and `found` after
    `told` was said."""
    if found >= told:
        return Sight.FRESH
    if found == before or found.term == told.term:
        # `told` has replaced it, and the numbers of one term only rise.
        return Sight.STALE
    return Sight.UNCLEAR


def _read(disk: Disk, path: Path) -> ProofNumber:
    line = disk.read_start(path).partition(b"\n")[0].split(b" ")
    if len(line) == 2 and all(each.isdigit() for each in line):
        return ProofNumber(int(line[0]), int(line[1]))
    # Torn by a write that is under way.
    return NO_NUMBER


def _text(number: ProofNumber) -> bytes:
    return _FORMAT.format(*number).encode()
