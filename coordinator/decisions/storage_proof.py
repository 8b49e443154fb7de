"""The proof that the storage of the fences does not hang for all.

Pure. A server whose disk hangs is silent. If the disk of the coordinator hangs too, as when the one
server of a network file system stops, all servers would be fenced for one fault, at the moment in
which it has passed. So a silence counts only if a durable write of the coordinator's own has begun
during the silence, and has ended. It begins with the probe; so where nothing hangs, it delays no
fence.
"""

from __future__ import annotations

import math


class StorageProof:
    """What the tests of the storage have shown. At most one is under way."""

    def __init__(self) -> None:
        #: When the last one that has ended began.
        self._proven_at = -math.inf
        self._testing = False

    def begin(self) -> bool:
        """Return whether a test must begin now: none is under way."""
        must_begin, self._testing = not self._testing, True
        return must_begin

    def ended(self, began_at: float) -> None:
        """Note the end of the test that began at `began_at`."""
        self._testing = False
        self._proven_at = began_at

    def holds_since(self, at: float) -> bool:
        """Return whether a test began at `at` or later, and has ended."""
        return self._proven_at >= at
