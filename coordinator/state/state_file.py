"""What the coordinator must not forget: one SQLite file, `coordinator/state.db`.

It holds the incarnations of the servers, the owner and epoch of each store, the claims on cold
work, which servers are drained, and the term. Invariants:

- What `transaction` committed survives a power cut (WAL with synchronous=FULL).
- A coordinator that has a successor writes nothing and answers nothing (`term.py`). A successor
  that did not get its lock continues with a copy of the file (`state_copy.py`).
- No data per store is held in memory, and the time to open does not depend on the number of stores.
  The exception are stores that only clients have asked for: a bounded number of them is held in
  memory, and none is in the file.
- A file that is older than what was last committed is refused (`progress.py`), and so is a foreign
  or damaged one (`state_format.py`).
- After an error whose effect is unknown (an I/O error at a commit), only what is read after opening
  the file again counts (`state_connection.py`).

`cluster_record.py`, `server_records.py`, `claim_records.py` and `store_records.py` read and write
the content, within a transaction. This module decides nothing. One thread at a time may use it. Do
not open the file by other means while it is open here: closing any descriptor of it would drop
SQLite's lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.coordinator.state.claim_records import ClaimRecords
from holdfast.coordinator.state.cluster_record import ClusterRecord
from holdfast.coordinator.state.promised_stores import PromisedStores
from holdfast.coordinator.state.server_records import ServerRecords
from holdfast.coordinator.state.state_connection import StateConnection
from holdfast.coordinator.state.state_format import create, is_missing
from holdfast.coordinator.state.store_records import StoreRecords
from holdfast.protocol.errors import DeposedError, StoreDamagedError
from holdfast.shared_fs.authority.progress import OldStateError, Progress, ProgressFile
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.disk.disk import Disk


class StateFile:
    """The open file of the active coordinator, made by `open_state_file`."""

    def __init__(self, path: Path, disk: Disk, progress: Path, terms: TermFile) -> None:
        self.path = path
        self._progress = ProgressFile(disk, progress)
        self._terms = terms
        self._connection = StateConnection(path, disk.vfs)
        execute = self._connection.execute
        promised = PromisedStores()
        self.cluster = ClusterRecord(execute)
        self.servers = ServerRecords(execute, promised)
        self.claims = ClaimRecords(execute)
        self.stores = StoreRecords(execute, self.cluster, self.servers, promised)

    @property
    def term(self) -> int:
        return self._terms.term

    def check_term(self) -> None:
        """Raise DeposedError if this coordinator has a successor.

        Raises StorageFailedError if that cannot be found out.
        """
        self._terms.check()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all that the block does durably, or nothing of it.

        Raises StorageFailedError, after which the effect is unknown until it is read again;
        StoreDamagedError; and DeposedError, after which the effect must not be reported to anybody.
        """
        with self._connection.storage_errors():
            self._terms.check()
            connection = self._connection.opened()
            connection.execute("BEGIN")
            changes = connection.total_changes()
            reached: Progress | None = None
            try:
                yield
                if connection.total_changes() != changes:
                    reached = self.cluster.count_commit(self._connection.base)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            # The term first: one that wakes deposed leaves the file to its successor.
            self._terms.check()
            if reached is not None:
                self._progress.write(reached)
            self._connection.checkpoint_if_due()

    def check_content(self) -> None:
        """Check the whole file. Raises StoreDamagedError, after which the file is closed."""
        with self.transaction():
            found = [str(row[0]) for row in self._connection.execute("PRAGMA quick_check(1)", ())]
        if found != ["ok"]:
            self._connection.drop()
            raise StoreDamagedError(store=str(self.path), reason=found[0])

    def close(self) -> None:
        """Checkpoint and close. A deposed coordinator closes without a checkpoint.

        Raises StorageFailedError; the file is closed all the same.
        """
        with self._connection.storage_errors():
            if self._connection.is_open:
                try:
                    self._terms.check()
                except DeposedError:
                    self._connection.drop()
            self._connection.close()

    def start_term(self) -> None:
        """Begin the next term durably, above all known ones, unless it has begun already.

        Raises OldStateError, after which the file is closed.
        """
        recorded = self._progress.read()
        known_term = self._terms.found()
        has_begun = self._terms.term > 0
        if not has_begun:
            self._terms.begin(recorded.term + 1 if recorded is not None else 1)
        term = self._terms.term
        try:
            with self.transaction():
                found = self.cluster.progress()
                # Without a progress file, only the term tells. It is also behind after a crash
                # between the two writes; then everybody is fenced needlessly.
                expected = recorded or Progress(known_term, 0)
                # A state that was only just made is never old.
                if found.commits + found.term > 0 and found < expected:
                    raise OldStateError(
                        f"term {found.term}, commit {found.commits}, but it was at term "
                        f"{expected.term}, commit {expected.commits}"
                    )
                # A copy has the term already: see `state_copy.py`.
                if not (has_begun and found.term == term):
                    term = self.cluster.begin_term(term)
        except OldStateError:
            self._connection.drop()
            raise
        self._terms.raise_to(term)

    def fall_behind(self, newer_term: int) -> None:
        """Note a newer term that a server has heard of.

        If nobody began that term on this disk, this file is the old one, and the next start finds
        that out. Raises DeposedError, StorageFailedError.
        """
        self._terms.check()
        self._progress.write(Progress(newer_term, 0))
        raise DeposedError(term=self.term, newer_term=newer_term)


def open_state_file(
    path: Path,
    disk: Disk,
    *,
    surveying: bool = False,
    progress: Path | None = None,
    terms: TermFile | None = None,
) -> StateFile:
    """Open `path` and begin the next term. If it is missing, create it with `surveying`.

    `progress` is the file of `progress.py`, by default beside `path`. `terms` may have begun the
    term already. The caller holds the coordinator's lock, or has begun a term. Raises
    StoreDamagedError for an empty, foreign or corrupt file, OldStateError, NewerFormatError,
    StorageFailedError.
    """
    if is_missing(path, disk):
        create(path, disk, surveying)
    elif disk.size_bytes(path) == 0:
        raise StoreDamagedError(store=str(path), reason="it is empty")
    else:
        # Another host may have written it, with the coordinator before this one.
        disk.refresh(path)
        write_ahead_log = path.with_name(path.name + "-wal")
        if disk.exists(write_ahead_log):
            disk.refresh(write_ahead_log)
    state_file = StateFile(
        path,
        disk,
        progress or path.with_name("progress"),
        terms or TermFile(disk, path.with_name("term")),
    )
    state_file.start_term()
    return state_file
