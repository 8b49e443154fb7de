"""The merge: broadcasts and pages of changes in, one sequence by revision out.

Pure. Broadcasts may be lost, late, doubled or out of order; a page from the owner is the truth as of
its revision. `cursor` is how far the sequence has got: every change at or below its revision was
given out (or lies in `ready`), none above it. Invariants:

- Revisions given out grow: no change comes twice, none out of order.
- A broadcast is applied only if it continues exactly at the cursor, or overlaps it. Otherwise the
  merge is `behind`, and asks for pages until one reaches the head. Nothing is ever guessed.
- At most `limit` changes are held; beyond it broadcasts are dropped and the merge is behind.

A page may leave out revisions: of a message that was set twice it has the last state only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.protocol.frames import CHANGE_SET_MESSAGE, ChangeBatch, WireChange
from holdfast.protocol.limits import SUBSCRIPTION_BUFFER_CHANGES


class Cursor(NamedTuple):
    """How far a follower has got. `seq` is the highest message number it knows of."""

    revision: int
    seq: int


class Pending(NamedTuple):
    """A change to be given out."""

    revision: int
    time: int
    change: WireChange


class Merge:
    """One follower's view of one store's changes."""

    def __init__(self, limit: int = SUBSCRIPTION_BUFFER_CHANGES) -> None:
        #: None until `start`: broadcasts are held meanwhile.
        self.cursor: Cursor | None = None
        #: Changes in order, to be taken by the consumer.
        self.ready: deque[Pending] = deque()
        #: Something is missing: the owner has to be asked from `cursor` on.
        self.behind = False
        self._limit = limit
        self._held: list[ChangeBatch] = []
        self._held_count = 0
        self._epoch = 0

    def start(self, cursor: Cursor) -> None:
        """Give out what comes after `cursor`; what was given out so far is void if it was another.

        Behind at first: what was broadcast before the bus knew of the listener may be missed.
        """
        self.cursor = cursor
        self.behind = True
        self.ready.clear()

    def broadcast(self, batch: ChangeBatch) -> None:
        """A broadcast arrived."""
        if batch.epoch < self._epoch:
            return  # a former owner's, late: the present one has all that is true of it
        cursor = self.cursor
        if cursor is None:
            self._hold(batch)
            return
        new_owner = batch.epoch > self._epoch > 0
        self._epoch = batch.epoch
        if batch.previous_revision == cursor.revision:
            if not self._apply(batch):
                self.behind = True
        elif batch.previous_revision > cursor.revision or new_owner:
            self.behind = True
            self._hold(batch)
        elif not self._apply(batch):
            self.behind = True

    def page(self, page: Sequence[Any], asked: Cursor) -> bool:
        """The owner's answer to CHANGES from `asked`, the cursor of then. Returns False if it says
        `reset`."""
        changes, next_revision, next_seq, head_revision, reset = page[:5]
        if reset:
            return False
        assert self.cursor is not None
        revision, seq = self.cursor
        if asked.revision == 0 < revision:
            # Who asks from nothing is not told of deletes. A broadcast has since brought
            # something, which one of them may have removed: the page is void, and asked for anew.
            return True
        for change_revision, time, change in changes:
            if change_revision > revision:
                self.ready.append(Pending(change_revision, time, change))
                seq = _highest_seq(seq, change)
        self.cursor = Cursor(max(revision, next_revision), max(seq, next_seq or 0))
        if next_revision >= head_revision:
            self.behind = False
            held, self._held, self._held_count = self._held, [], 0
            for batch in sorted(held, key=lambda each: (each.epoch, each.previous_revision)):
                self.broadcast(batch)
        return True

    def head(self, revision: int) -> None:
        """The owner's revision, asked for because nothing was heard for a while."""
        if self.cursor is not None and revision != self.cursor.revision:
            self.behind = True

    def lost(self) -> None:
        """Broadcasts may have been lost."""
        if self.cursor is not None:
            self.behind = True

    def _apply(self, batch: ChangeBatch) -> bool:
        """Take what is above the cursor. Returns False if there is no room for it."""
        assert self.cursor is not None
        revision, seq = self.cursor
        skip = revision - batch.previous_revision
        changes = batch.changes[skip:] if skip else batch.changes
        if len(self.ready) + len(changes) > self._limit:
            return False
        self.ready.extend(_numbered(changes, revision, batch.time))
        for change in changes:
            seq = _highest_seq(seq, change)
        self.cursor = Cursor(revision + len(changes), seq)
        return True

    def _hold(self, batch: ChangeBatch) -> None:
        self._held_count += len(batch.changes)
        self._held.append(batch)
        if self._held_count + len(self.ready) > self._limit:
            self._held, self._held_count = [], 0


def _numbered(changes: Iterable[WireChange], revision: int, time: int) -> Iterable[Pending]:
    for offset, change in enumerate(changes, 1):
        yield Pending(revision + offset, time, change)


def _highest_seq(seq: int, change: WireChange) -> int:
    return max(seq, change[1]) if change[0] == CHANGE_SET_MESSAGE else seq
