"""What is recorded of the cluster as a whole: one row.

The term, how far the state has come (`progress.py`), what is still to be surveyed
(`lost_state.py`), and the highest epoch of the stores whose rows went.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.coordinator.state.progress import Progress

#: Runs one statement with its bindings in the open transaction, and returns its rows.
Execute = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]

#: What `surveying` says.
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
        """Return how far the state has come."""
        ((term, commits),) = self._execute(_PROGRESS, ())
        return Progress(term, commits)

    def count_commit(self, base: int) -> Progress:
        """Count this transaction; `base` is the count in the file itself, without its WAL."""
        ((term, commits),) = self._execute(_COUNT_COMMIT, (base,))
        return Progress(term, commits)

    def begin_term(self, at_least: int) -> int:
        """Return the next term, recorded."""
        ((term,),) = self._execute(_NEXT_TERM, (at_least,))
        return int(term)

    def surveying(self) -> bool:
        """Tell if the store files are still to be looked through."""
        return self._pending_survey() == _FILES_PENDING

    def knows_all_stores(self) -> bool:
        """Tell if a store that is not recorded does not exist, neither here nor in the bucket."""
        return self._pending_survey() == 0

    def set_surveying(self, surveying: bool) -> None:
        """Record that the store files are to be looked through, or have been: the manifests in the
        bucket, if there is one, are yet to be then."""
        self._execute(SET_SURVEYING, (_FILES_PENDING if surveying else _MANIFESTS_PENDING,))

    def set_manifests_surveyed(self) -> None:
        """Record that the manifests have been looked through as well."""
        self._execute(SET_SURVEYING, (0,))

    def _pending_survey(self) -> int:
        return sum(pending for (pending,) in self._execute(_SURVEYING, ()))

    def last_forgotten_epoch(self) -> int:
        """Return the highest epoch of a store that was forgotten."""
        ((epoch,),) = self._execute(_FORGOTTEN, ())
        return int(epoch)

    def forget_epoch(self, epoch: int) -> None:
        """Record the epoch of a store whose row goes: no epoch of a name is ever used twice."""
        self._execute(_FORGET_EPOCH, (epoch,))
