"""The names of the state's files: which of several is the state.

Nearly always there is one, `state.db`. A coordinator that takes over although its predecessor has
that file open and locked continues with a copy, `state.<term>.db`, named by its own term
(`state_copy.py`). The copy has that term in it from the beginning, and no file of a lower name can
ever have it. So the highest name is the state, and all others are what it was copied from.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from holdfast.shared_fs.disk.disk import Disk

FIRST_NAME: Final = "state.db"
_STATE: Final = re.compile(r"state(?:\.([0-9]{1,18}))?\.db")
#: What lies beside a state file: its logs, and one that is not complete.
_PART: Final = re.compile(r"(state(?:\.[0-9]{1,18})?\.db)(?:\.new)?(?:-wal|-journal)?")


def state_path(folder: Path, term: int = 0) -> Path:
    """Return the path of the copy that the coordinator of `term` made; without one, the first."""
    return folder / (f"state.{term}.db" if term else FIRST_NAME)


def current_state(folder: Path, disk: Disk) -> Path:
    """Return the path of the state; that of the first file if there is none. Raises
    StorageFailedError."""
    names = [name for name in disk.names(folder) if _STATE.fullmatch(name)]
    return folder / max(names, key=_term, default=FIRST_NAME)


def remove_earlier_states(current: Path, disk: Disk) -> list[str]:
    """Remove the files that `current` has replaced, and return their names.

    Call it once `current` has the caller's term, durably. A process that has one of them open goes
    on with a file without a name. Raises StorageFailedError.
    """
    removed = []
    for name in disk.names(current.parent):
        match = _PART.fullmatch(name)
        if match is not None and _term(match[1]) < _term(current.name):
            disk.remove(current.parent / name)
            removed.append(name)
    return removed


def _term(name: str) -> int:
    match = _STATE.fullmatch(name)
    return int(match[1] or 0) if match is not None else 0
