"""The term: which of several coordinators is the last one. It is on disk and is read fresh.

What protects what, from the outside in:

- `coordinator/lock` is a record lock held for the life of the process. It keeps a standby from
  needless work, and proves nothing: an NFS server drops the locks of a host that was silent for a
  lease, and a standby may take over past the lock of a coordinator that cannot work
  (`succession.py`).
- The lock of the state file (`locking_mode=EXCLUSIVE`) is of the same kind. Its holder reads from
  its own cache, so a term *in* that file would never show a successor.
- `coordinator/term.N` is the claim of the term N. It is created once, never over another, and says
  `open` and whose it is. A successor overwrites it in place with `fenced`, as it does with the
  fence of a server. A claim never opens again, so no write that hangs can bring its term back.
- `coordinator/term` names the last term. Coordinators of earlier versions know this file alone.

A coordinator begins a term in this order, before it opens or copies the state:

    claim the next term    fence the claims of all earlier terms    write the number

It reads its own claim, and the number, before each transaction, after each commit, before each
fence, proof and seal, and twice a second. So what a coordinator told anybody was committed before
its claim was fenced, and its successor, which reads the state afterwards, knows it. What it commits
later, it tells nobody. No clock is involved. Each control message carries the term too; a server
refuses one that is lower than the highest it has heard.

What remains is the time between a read of the claim and what follows it. A fence written in this
moment costs the server a restart and nothing else. A coordinator that loses its *locks* in this
moment may write to the state file beside a successor that continues with the same file. Such damage
is noticed when the file is read, and the state can be rebuilt from the store files
(`lost_state.py`). A successor past the lock continues with a copy instead (`state_copy.py`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import DeposedError, StorageFailedError
from holdfast.shared_fs.authority import fresh_file
from holdfast.shared_fs.disk.disk import Disk

_OPEN: Final = b"open   "
_FENCED: Final = b"fenced "
assert len(_OPEN) == len(_FENCED)
_CLAIM: Final = re.compile(r"term\.([0-9]{1,18})")
_MAX_ID_BYTES: Final = 40


class TermTakenError(Exception):
    """Another coordinator has claimed the term that was wanted, or a later one."""


class TermFile:
    """The terms of a cluster as one coordinator sees them."""

    def __init__(self, disk: Disk, path: Path, owner: str = "") -> None:
        """`path` is that of `coordinator/term`. `owner` distinguishes this coordinator from all
        others, also where a file can be created over another (a file system without links)."""
        self._disk = disk
        self._path = path
        name = (owner or secrets.token_hex(8)).encode()[:_MAX_ID_BYTES]
        self._open_text = _OPEN + name.ljust(_MAX_ID_BYTES) + b"\n"
        self._fenced_text = _FENCED + name.ljust(_MAX_ID_BYTES) + b"\n"
        #: This coordinator's own term; 0 before `begin`.
        self.term = 0

    def begin(self, at_least: int = 1) -> int:
        """Begin the next term durably, which deposes all earlier coordinators; return it. The
        caller holds the coordinator's lock. Raises StorageFailedError."""
        first = term = max(self.highest() + 1, at_least)
        while not self._claimed(term):
            term += 1
        return self._begin(term, known=range(first, term))

    def succeed(self, term: int) -> int:
        """Begin the term after `term`, whose coordinator holds the lock, as `begin` does.

        Of several that want to succeed the same term, one does. Raises TermTakenError for the
        others, which have changed nothing, and StorageFailedError.
        """
        if self.highest() != term or not self._claimed(term + 1):
            raise TermTakenError(f"term {term} has a successor already")
        return self._begin(term + 1, known=(term,))

    def raise_to(self, term: int) -> None:
        """Raise the term to the one that the state asks for. Raises StorageFailedError."""
        assert term >= self.term, "a term never goes back"
        if term > self.term:
            self.begin(term)

    def check(self) -> None:
        """Pass only if nobody has begun a later term.

        Raises DeposedError, which is final, and StorageFailedError if the files cannot be read now.
        """
        found = self.found()
        # A lower one is the late write of a coordinator that hung, and deposes nobody.
        if found > self.term or not self._is_mine():
            raise DeposedError(term=self.term, newer_term=max(found, self.term + 1))

    def found(self) -> int:
        """Return the number in `coordinator/term`; 0 if it is missing or torn, and then the claims
        and the state tell."""
        text = fresh_file.read(self._disk, self._path).strip()
        return int(text) if text.isdigit() else 0

    def highest(self) -> int:
        """Return the highest term that anybody has claimed, as far as the files tell; 0 for none.
        Raises StorageFailedError."""
        return max(self.found(), *self._claims(), 0)

    def _begin(self, term: int, known: Iterable[int]) -> int:
        """Fence all claims before `term`; `known` ones may not be listed yet on a mount that caches
        names."""
        for older in sorted({*self._claims(), self.found(), *known}):
            if older < term:
                self._fence(older)
        fresh_file.overwrite(self._disk, self._path, b"%020d\n" % term)
        self.term = term
        return term

    def _claims(self) -> list[int]:
        matches = map(_CLAIM.fullmatch, self._disk.names(self._path.parent))
        return [int(match[1]) for match in matches if match]

    def _claim(self, term: int) -> Path:
        return self._path.with_name(f"term.{term}")

    def _claimed(self, term: int) -> bool:
        """Claim a term; return False if it has been claimed. Raises StorageFailedError."""
        content = fresh_file.padded(self._disk, self._open_text)
        try:
            self._disk.write_durably(self._claim(term), content, new=True)
        except StorageFailedError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            raise
        return True

    def _fence(self, term: int) -> None:
        """Fence an earlier term. The claim of one that was fenced before is not needed any more: a
        missing one counts as fenced."""
        claim = self._claim(term)
        text = fresh_file.read(self._disk, claim)
        if text.startswith(_FENCED):
            self._disk.remove(claim)
        elif text:
            content = fresh_file.padded(self._disk, self._fenced_text)
            # Another one that begins a term may have removed it.
            with contextlib.suppress(FileNotFoundError):
                self._disk.overwrite_durably(claim, content)

    def _is_mine(self) -> bool:
        return fresh_file.read(self._disk, self._claim(self.term)) == self._open_text
