"""The term: which of two coordinators is the later one, on disk and fresh at every look.

What protects what, from the outside in:

- `coordinator/lock`, a record lock held for the life of the process. On one host the kernel keeps
  it until the process is gone, so a coordinator that is merely stopped has no successor. An NFS
  server gives up the locks of a host that it has not heard of for a lease, and that host may come
  back.
- The lock of `state.db` (`locking_mode=EXCLUSIVE`) is one of the same kind and is lost with it. Its
  holder answers itself from its cache, so the term *in* `state.db` would never show a successor.
- `coordinator/term`, this file: every coordinator overwrites it in place before it opens
  `state.db`, and opens, reads and closes it before each transaction, after each commit and before
  each fence. What a deposed one committed before its successor wrote the term, the successor reads;
  what it commits later, it tells nobody. So no assignment is acted upon that the active one does
  not know.
- The term in each control message: a server refuses a lower one than the highest it has heard.

What is left is the time between a look and the write after it. A coordinator that loses its locks
just there may write to `state.db` beside its successor. Damage so done is noticed when the file is
read, and the state can be made anew from the store files (`lost_state.py`). A fence written just
there costs the server a restart, and nothing else.
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
        """Depose whoever went before, durably; return this coordinator's term, as far as the file
        knows. The caller holds the coordinator's lock. Raises StorageFailedError."""
        self._write(max(self.found() + 1, at_least))
        return self.term

    def raise_to(self, term: int) -> None:
        """Go on with a higher term, which `state.db` asks for. Raises StorageFailedError."""
        assert term >= self.term, "a term never goes back"
        if term > self.term:
            self._write(term)

    def check(self) -> None:
        """Return if nobody has begun a later term.

        Raises DeposedError for good, StorageFailedError when the file cannot be read now.
        """
        found = self.found()
        if found != self.term:
            raise DeposedError(term=self.term, newer_term=found)

    def found(self) -> int:
        """Return the term in the file; 0 if there is none, or a torn one. Then `state.db` knows."""
        try:
            text = self._disk.read_start(self._path).strip(b"\0\n ")
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else 0

    def _write(self, term: int) -> None:
        # Always of one length, so that it can be overwritten in place: see Disk.overwrite_durably.
        # Padded as a fence is, where it is read past a cache.
        content = b"%020d\n" % term
        if self._disk.direct:
            content = content.ljust(PADDED_BYTES, b"\0")
        try:
            self._disk.overwrite_durably(self._path, content)
        except FileNotFoundError:
            self._disk.write_durably(self._path, content)
        self.term = term
