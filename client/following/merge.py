"""The merge: broadcasts and pages of changes in, one sequence by revision out.

Pure. Broadcasts may be lost, late, doubled or out of order; a page from the owner is the truth as
of its revision. `cursor` is how far the sequence has got: every change at or below its revision was
given out (or lies in `ready`), none above it. Invariants:

- Revisions given out grow: no change comes twice, none out of order.
- A broadcast is applied only if it continues exactly at the cursor, or overlaps it. Otherwise the
  merge is `behind`, and asks for pages until one reaches the head. Nothing is ever guessed.
- At most `limit` changes are held, and no more than the follower's share of the client's buffers
  allows; beyond it broadcasts are dropped and the merge is behind. What is held may be taken back
  at any time (`shed`): the cursor then goes back to what the consumer was given last.
- What cannot be read changes nothing: it is converted as a whole before any of it is taken.

A page may leave out revisions: of a message that was set twice it has the last state only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from holdfast.client.following.buffers import Buffers, Share, size_of
from holdfast.protocol.changes import STATELESS_CHANGES, change_from_wire, number_of
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import ChangeBatch, WireChange
from holdfast.protocol.limits import SUBSCRIPTION_BUFFER_CHANGES
from holdfast.protocol.messages import Change

#: As a tuple: what stands there may be anything, and need not have a hash.
_STATELESS: Final = tuple(STATELESS_CHANGES)

_new: Final = tuple.__new__

View = Callable[[Change], Change | None]
"""What of a change the consumer sees; None: nothing."""


class Cursor(NamedTuple):
    """How far a follower has got. `seq` is the highest message number it knows of, 0 if none."""

    revision: int
    seq: int


class _Held(NamedTuple):
    """A broadcast as a follower takes it, now or when what is missing before it has come."""

    epoch: int
    previous_revision: int
    #: So many revisions; those that are not `visible` are not for the consumer.
    length: int
    visible: list[Change]
    size_bytes: int


class Broadcast:
    """A broadcast, for all who follow its store: what each of them takes is converted once."""

    __slots__ = ("_held", "changes", "epoch", "previous_revision", "time")

    def __init__(self, batch: ChangeBatch) -> None:
        self.epoch, self.previous_revision, self.time, self.changes = batch
        self._held: _Held | None = None

    def held(self, view: View | None) -> _Held:
        """Return what a follower with this view takes. Raises MalformedFrameError."""
        if view is None and self._held is not None:
            return self._held
        visible = []
        for revision, wire in enumerate(self.changes, self.previous_revision + 1):
            change = _converted(wire, revision, self.time, view)
            if change is not None:
                visible.append(change)
        size_bytes = sum(map(size_of, visible))
        length = len(self.changes)
        held = _Held(self.epoch, self.previous_revision, length, visible, size_bytes)
        if view is None:
            self._held = held
        return held


class Merge:
    """One follower's view of one store's changes."""

    def __init__(
        self,
        limit: int | None = None,
        *,
        share: Share | None = None,
        view: View | None = None,
    ) -> None:
        #: None until `start`: broadcasts are held meanwhile.
        self.cursor: Cursor | None = None
        #: Changes in order, to be taken by the consumer, with `take`.
        self.ready: deque[Change] = deque()
        #: Something is missing: the owner has to be asked from `cursor` on.
        self.behind = False
        #: A broadcast since `start` told of changes beyond the cursor that were not given out then.
        self.heard_more = False
        #: How many bytes a change takes, of late.
        self.change_bytes = 1024
        self._limit = SUBSCRIPTION_BUFFER_CHANGES if limit is None else limit
        self._share = share or Buffers().share(self.shed)
        self._view = view
        #: What the consumer was given last.
        self._taken = Cursor(0, 0)
        self._held: list[_Held] = []
        self._held_count = 0
        self._epoch = 0

    def start(self, cursor: Cursor) -> None:
        """Give out what comes after `cursor`; what was given out so far is void if it was another.

        Behind at first: what was broadcast before the bus knew of the listener may be missed. So
        the owner is asked for what was held too, which may be of a store that was deleted since.
        """
        if self.cursor is not None:
            self._forget_held()
        self._share.remove(sum(map(size_of, self.ready)))
        self.ready.clear()
        self.cursor = self._taken = cursor
        self.behind = True
        self.heard_more = False

    def take(self) -> Change:
        """Give out the next change of `ready`."""
        change = self.ready.popleft()
        if not self.ready and not self._held and self.cursor is not None:
            # Nothing is held any more: what most changes leave behind, and the least to be done.
            self._taken = self.cursor
            self._share.clear()
            return change
        self._share.remove(size_of(change))
        message = change.message
        seq = self._taken.seq
        if message is not None and message.seq > seq:
            seq = message.seq
        self._taken = Cursor(change.revision, seq)
        return change

    @property
    def taken(self) -> Cursor:
        """Up to where everything was given out."""
        return self._taken if self.ready or self.cursor is None else self.cursor

    @property
    def settled(self) -> Cursor | None:
        """Where everything was given out and nothing is known to be missing; None elsewhere."""
        return None if self.behind or self.ready or self._held else self.cursor

    def broadcast(self, broadcast: Broadcast) -> None:
        """A broadcast arrived. Raises MalformedFrameError, and has changed nothing then."""
        # A former owner's comes too late: the present one has all that is true of it.
        if broadcast.epoch >= self._epoch:
            self._merge(broadcast.held(self._view))

    def page(self, page: Sequence[Any], asked: Cursor) -> bool:
        """The owner's answer to CHANGES from `asked`, the cursor of then. Returns False if it says
        `reset`. Raises MalformedFrameError, and has changed nothing then."""
        wires, next_revision, next_seq, head_revision, reset = _checked_page(page)
        if reset:
            return False
        assert self.cursor is not None
        revision, seq = self.cursor
        if asked.revision == 0 < revision:
            # Who asks from nothing is not told of deletes. A broadcast has since brought
            # something, which one of them may have removed: the page is void, and asked for anew.
            return True
        found = [
            _converted(wire, change_revision, time, self._view)
            for change_revision, time, wire in wires
            if change_revision > revision
        ]
        visible = [change for change in found if change is not None]
        self.cursor = Cursor(max(revision, next_revision), max(seq, next_seq))
        self._extend(visible, sum(map(size_of, visible)))
        if next_revision >= head_revision:
            self.behind = False
            held = self._held
            self._forget_held()
            for each in sorted(held, key=lambda each: (each.epoch, each.previous_revision)):
                if each.epoch >= self._epoch:
                    self._merge(each)
        return True

    def head(self, revision: int) -> None:
        """The owner's revision, asked for because nothing was heard for a while."""
        if self.cursor is not None and revision != self.cursor.revision:
            self.behind = True

    def lost(self) -> None:
        """Broadcasts may have been lost."""
        if self.cursor is not None:
            self.behind = True

    def shed(self) -> None:
        """Drop everything that is held; the owner has it, from what was given out last."""
        if self.cursor is not None and (self.ready or self._held):
            if self.ready:
                self.cursor = self._taken
            self.behind = True
        self.ready.clear()
        self._held, self._held_count = [], 0
        self._share.clear()

    def _merge(self, batch: _Held) -> None:
        cursor = self.cursor
        if cursor is None:
            self._hold(batch)
            return
        new_owner = batch.epoch > self._epoch > 0
        self._epoch = batch.epoch
        if batch.previous_revision > cursor.revision or (
            new_owner and batch.previous_revision != cursor.revision
        ):
            self.behind = self.heard_more = True
            self._hold(batch)
        elif not self._apply(batch):
            self.behind = self.heard_more = True

    def _apply(self, batch: _Held) -> bool:
        """Take what is above the cursor. Returns False if there is no room for it."""
        assert self.cursor is not None
        revision, seq = self.cursor
        _, previous_revision, length, visible, size_bytes = batch
        if previous_revision != revision:
            length -= revision - previous_revision
            visible = [change for change in visible if change.revision > revision]
            size_bytes = sum(map(size_of, visible))
        # One that is doubled or late may lie below the cursor as a whole.
        length = max(0, length)
        if len(self.ready) + length > self._limit or not self._share.fits(size_bytes):
            return False
        for change in visible:
            if change.message is not None and change.message.seq > seq:
                seq = change.message.seq
        self.cursor = _new(Cursor, (revision + length, seq))
        self._extend(visible, size_bytes)
        return True

    def _extend(self, visible: list[Change], size_bytes: int) -> None:
        if not visible:
            if not self.ready and self.cursor is not None:
                self._taken = self.cursor
            return
        self.ready.extend(visible)
        self.change_bytes = (self.change_bytes + size_bytes // len(visible)) // 2
        self._share.add(size_bytes)

    def _hold(self, batch: _Held) -> None:
        room = self._share.fits(batch.size_bytes)
        if not room or self._held_count + batch.length + len(self.ready) > self._limit:
            # What was held goes too: the owner has to be asked for all of it in any case.
            self._forget_held()
            return
        self._held.append(batch)
        self._held_count += batch.length
        self._share.add(batch.size_bytes)

    def _forget_held(self) -> None:
        held, self._held, self._held_count = self._held, [], 0
        self._share.remove(sum(batch.size_bytes for batch in held))


def _converted(wire: WireChange, revision: int, time: int, view: View | None) -> Change | None:
    """Return what of a change the consumer sees. Raises MalformedFrameError."""
    if type(wire) is list and wire and number_of(wire) in _STATELESS:
        return None
    change = change_from_wire(wire, revision, time)
    return change if view is None else view(change)


def _checked_page(page: Any) -> tuple[list[Any], int, int, int, bool]:
    """Return the fields of a page. Raises MalformedFrameError."""
    try:
        wires, next_revision, next_seq, head_revision, reset = page[:5]
        next_seq = next_seq or 0
        good = (
            {type(next_revision), type(next_seq), type(head_revision)} == {int}
            and type(wires) is list
            and all(type(r) is int and type(t) is int for r, t, _ in wires)
        )
    except (TypeError, ValueError) as error:
        raise MalformedFrameError(reason=f"a page of changes: {error}") from error
    if not good:
        raise MalformedFrameError(reason="a page of changes with a number that is none")
    return wires, next_revision, next_seq, head_revision, bool(reset)
