"""The term: which of two coordinators is the later one. It is on disk and is read fresh each time.

What protects what, from the outside in:

- `coordinator/lock` is a record lock held for the life of the process. On one host, the kernel
  keeps it until the process is gone, so a coordinator that is merely stopped has no successor. An
  NFS server drops the locks of a host that was silent for a lease, and that host may come back.
- The lock of `state.db` (`locking_mode=EXCLUSIVE`) is of the same kind and is lost with it. Its
  holder reads from its own cache, so a term *in* `state.db` would never show a successor.
- `coordinator/term` is this file. Every coordinator overwrites it in place before it opens
  `state.db`, and opens, reads and closes it before each transaction, after each commit and before
  each fence. What a deposed coordinator committed before its successor wrote the term, the
  successor reads. What it commits later, it tells nobody. So no assignment takes effect that the
  active coordinator does not know.
- Each control message carries the term; a server refuses one that is
  lower than the highest it has heard.

What remains is the time between a read of the term and the write after it. A coordinator that loses
its locks in this moment may write to `state.db` beside its successor. Such damage is noticed when
the file is read, and the state can be rebuilt from the store files (`lost_state.py`). A fence
written in this moment costs the server a restart and nothing else.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol.errors import DeposedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import PADDED_BYTES


class TermFile:
    """The term file as one coordinator sees it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        #: This coordinator's own term; 0 before `begin`.
        self.term = 0

    def begin(self, at_least: int = 1) -> int:
        """Begin a term durably, which deposes all earlier coordinators; return it.

        It is the next term as far as the file knows. The caller holds the coordinator's lock.
        Raises StorageFailedError.
        """
        self._write(max(self.found() + 1, at_least))
        return self.term

    def raise_to(self, term: int) -> None:
        """Raise the term to the one that `state.db` asks for. Raises StorageFailedError."""
        assert term >= self.term, "a term never goes back"
        if term > self.term:
            self._write(term)

    def check(self) -> None:
        """Pass only if nobody has begun a later term.

        Raises DeposedError, which is final, and StorageFailedError if the file cannot be read now.
        """
        found = self.found()
        if found != self.term:
            raise DeposedError(term=self.term, newer_term=found)

    def found(self) -> int:
        """Return the term in the file; 0 if it is missing or torn, and
        then `state.db` has the term."""
        try:
            text = self._disk.read_start(self._path).strip(b"\0\n ")
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else 0

    def _write(self, term: int) -> None:
        # The length never changes, so the file can be overwritten in place: see
        # Disk.overwrite_durably. With direct reads it is padded, as a fence is.
        content = b"%020d\n" % term
        if self._disk.direct:
            content = content.ljust(PADDED_BYTES, b"\0")
        try:
            self._disk.overwrite_durably(self._path, content)
        except FileNotFoundError:
            self._disk.write_durably(self._path, content)
        self.term = term
