"""Puts what one gateway stored in a stream in the order of its seqs, as far as that can be known.

Appends are stored in the order in which they are sent. But the answer to one may be lost, and comes
when it was sent again: then the answers to later ones are here first. Where a seq is missing, what
comes behind it is held until each write that was sent before is answered or given up. A seq that is
still missing then was not given to this gateway: somebody else's message has it, or one whose
answer never comes.

Pure.
"""

from __future__ import annotations

import heapq

from holdfast.client.handles.serving_wire import ServedMessage


class StoredOrder:
    """The messages that are held, and how far the others were passed on."""

    def __init__(self) -> None:
        #: The seq behind the last message that was passed on; 0 before the first.
        self._next_seq = 0
        #: By seq, and with the mark of `hold`.
        self._held: list[tuple[int, int, ServedMessage]] = []

    @property
    def count(self) -> int:
        """How many messages are held."""
        return len(self._held)

    def follows(self, seq: int) -> bool:
        """Return whether a message is the next one; it is passed on then. Else `hold` it."""
        if self._held or seq != self._next_seq:
            return False
        self._next_seq = seq + 1
        return True

    def hold(self, message: ServedMessage, mark: int) -> bool:
        """Hold a message until all writes below `mark` are settled. Return False if messages behind
        it were passed on: then it is not held."""
        if message.seq < self._next_seq:
            return False
        heapq.heappush(self._held, (message.seq, mark, message))
        return True

    def pop(self, settled: int) -> ServedMessage | None:
        """Return the next message to pass on, if it is known that none comes before it: all writes
        below `settled` are settled, and whoever waited for them has told what was stored."""
        if not self._held:
            return None
        seq, mark, message = self._held[0]
        if seq != self._next_seq and mark > settled:
            return None
        heapq.heappop(self._held)
        self._next_seq = seq + 1
        return message
