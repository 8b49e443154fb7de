"""How far the state has come: what tells a `state.db` of today from one that a backup brought back.

An older `state.db` is sound in itself, and deadly: it names owners that have long had successors,
so a coordinator that believed it would make two owners of one store. The file
`coordinator.progress` lies beside the coordinator's folder, so that a folder that is restored as a
whole does not bring its own along.

- `state.db` counts its commits. After each, and before anybody is told of it, the count is written
  here, durably. So `state.db` is never behind this file, unless it is an older one.
- A power cut between the commit and this file leaves `state.db` ahead, which is as it should be.
- A coordinator that hears of a higher term from a server, while nobody has begun one on its disk,
  writes that term here: its state is the older one, and the next start finds it so.

A state that is behind counts as lost (`lost_state.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.shared_fs.disk.disk import Disk


class OldStateError(Exception):
    """The file is sound, and an older one: what was committed after it is missing."""


class Progress(NamedTuple):
    """How far a state has come; a later one is greater."""

    term: int
    commits: int


_DIGITS: Final = 20


class ProgressFile:
    """The file, as the active coordinator reads it at its start and writes it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def read(self) -> Progress | None:
        """Return what is recorded; None if there is no file, or a torn one. Raises
        StorageFailedError."""
        try:
            words = self._disk.read(self._path).split()
        except FileNotFoundError:
            return None
        if len(words) != 2 or not all(word.isdigit() and len(word) == _DIGITS for word in words):
            return None
        return Progress(int(words[0]), int(words[1]))

    def write(self, progress: Progress) -> None:
        """Record it durably. Raises StorageFailedError."""
        # Always of one length, so that it can be overwritten in place: see Disk.overwrite_durably.
        content = b"%0*d %0*d\n" % (_DIGITS, progress.term, _DIGITS, progress.commits)
        try:
            self._disk.overwrite_durably(self._path, content)
        except FileNotFoundError:
            self._disk.write_durably(self._path, content)
