"""The one row about the cluster as a whole.

It holds the term, the progress of the state (`progress.py`), which surveys are pending
(`lost_state.py`), and the highest epoch of the stores whose rows were deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.shared_fs.authority.progress import Progress

#: Runs one statement with its bindings in the open transaction, and returns its rows.
Execute = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]

#: Values of the column `surveying`; 0 means that no survey is pending.
_FILES_PENDING: Final = 1
_MANIFESTS_PENDING: Final = 2

_NEXT_TERM: Final = "UPDATE cluster SET term = max(term + 1, ?) RETURNING term"
_PROGRESS: Final = "SELECT term, commits FROM cluster"
_COUNT_COMMIT: Final = "UPDATE cluster SET commits = commits + 1, base = ? RETURNING term, commits"
_SURVEYING: Final = "SELECT surveying FROM cluster"
SET_SURVEYING: Final = "UPDATE cluster SET surveying = ?"
_FORGOTTEN: Final = "SELECT forgotten_epoch FROM cluster"
_FORGET_EPOCH: Final = "UPDATE cluster SET forgotten_epoch = max(forgotten_epoch, ?)"


class ClusterRecord:
    """Reads and writes the row, always within a transaction."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def progress(self) -> Progress:
        """Return the progress of the state."""
        ((term, commits),) = self._execute(_PROGRESS, ())
        return Progress(term, commits)

    def count_commit(self, base: int) -> Progress:
        """Count this transaction. `base` is the commit count in the
        file itself, without its WAL."""
        ((term, commits),) = self._execute(_COUNT_COMMIT, (base,))
        return Progress(term, commits)

    def begin_term(self, at_least: int) -> int:
        """Begin and record the next term, and return it."""
        ((term,),) = self._execute(_NEXT_TERM, (at_least,))
        return int(term)

    def surveying(self) -> bool:
        """Tell whether the store files have yet to be surveyed."""
        return self._pending_survey() == _FILES_PENDING

    def knows_all_stores(self) -> bool:
        """Tell whether all stores are recorded: any other store exists
        neither here nor in the bucket."""
        return self._pending_survey() == 0

    def set_surveying(self, surveying: bool) -> None:
        """Record whether the store files have yet to be surveyed.

        Once they have been, the manifests in the bucket, if there is one, are still to be surveyed.
        """
        self._execute(SET_SURVEYING, (_FILES_PENDING if surveying else _MANIFESTS_PENDING,))

    def set_manifests_surveyed(self) -> None:
        """Record that the manifests have been surveyed as well."""
        self._execute(SET_SURVEYING, (0,))

    def _pending_survey(self) -> int:
        return sum(pending for (pending,) in self._execute(_SURVEYING, ()))

    def last_forgotten_epoch(self) -> int:
        """Return the highest epoch of all forgotten stores."""
        ((epoch,),) = self._execute(_FORGOTTEN, ())
        return int(epoch)

    def forget_epoch(self, epoch: int) -> None:
        """Keep the epoch of a store whose row is deleted: no epoch of a name is ever used twice."""
        self._execute(_FORGET_EPOCH, (epoch,))
