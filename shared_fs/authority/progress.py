"""The progress of the state, which tells a current `state.db` from one that a backup brought back.

An old `state.db` is sound in itself, and deadly: it names owners that have long had
successors, so a coordinator that believed it would make two owners of one store. The file
`coordinator.progress` lies beside the coordinator's folder, so that restoring the whole
folder does not restore this file too.

- `state.db` counts its commits. After each commit, and before anybody is told of it, the count is
  written here, durably. So only an old `state.db` is ever behind this file.
- A power cut between the commit and this write leaves `state.db` ahead, which is fine.
- If a coordinator hears of a higher term from a server, and nobody has begun that term on its disk,
  it writes that term here: its own state is the old one, and the next start finds that out.

A state that is behind counts as lost (`lost_state.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.shared_fs.disk.disk import Disk


class OldStateError(Exception):
    """The file is sound but old: commits that followed it are missing."""


class Progress(NamedTuple):
    """How far a state has come; later ones are greater."""

    term: int
    commits: int


_DIGITS: Final = 20


class ProgressFile:
    """The file `coordinator.progress`: the active coordinator reads it
    at its start, then writes it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def read(self) -> Progress | None:
        """Return the recorded progress; None if the file is missing or torn. Raises
        StorageFailedError."""
        try:
            words = self._disk.read(self._path).split()
        except FileNotFoundError:
            return None
        if len(words) != 2 or not all(word.isdigit() and len(word) == _DIGITS for word in words):
            return None
        return Progress(int(words[0]), int(words[1]))

    def write(self, progress: Progress) -> None:
        """Record `progress` durably. Raises StorageFailedError."""
        # The length never changes, so the file can be overwritten in place: see
        # Disk.overwrite_durably.
        content = b"%0*d %0*d\n" % (_DIGITS, progress.term, _DIGITS, progress.commits)
        try:
            self._disk.overwrite_durably(self._path, content)
        except FileNotFoundError:
            self._disk.write_durably(self._path, content)
