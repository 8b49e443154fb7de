"""The merge: broadcasts and pages of changes in, one sequence by revision out.

Pure. Broadcasts may be lost, late, doubled or out of order; a page from the owner is complete up to
its revision. `cursor` is the end of the sequence so far: every change at or below its revision was
given out or is in `ready`, and none above it. Invariants:

- Revisions given out grow: no change comes twice or out of order.
- A broadcast is applied only if it continues exactly at the cursor, or overlaps it. Otherwise the
  merge is `behind`, and the owner is asked for pages until one reaches the head. Nothing
  is guessed.
- At most `limit` changes are held, and no more than the follower's share of the client's buffers
  allows. Broadcasts beyond that are dropped, and the merge is behind. What is held may be dropped
  at any time (`shed`): the cursor then goes back to the last change that the consumer took.
- A malformed broadcast or page changes nothing: it is converted as a whole before any of it
  is taken.

A page may leave out revisions: of a message that was set twice it has only the last state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from holdfast.client.following.buffers import Buffers, Share, size_of
from holdfast.protocol.changes import (
    CHANGE_DELETE_ENTRIES,
    CHANGE_SET_MESSAGE,
    STATELESS_CHANGES,
    change_from_wire,
    is_unseen,
    number_of,
)
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import ChangeBatch, WireChange
from holdfast.protocol.limits import SUBSCRIPTION_BUFFER_CHANGES
from holdfast.protocol.messages import Change

#: A tuple, because a malformed change may have something unhashable in place of its number.
_STATELESS: Final = tuple(STATELESS_CHANGES)

_new: Final = tuple.__new__

View = Callable[[Change], Change | None]
"""Returns what the consumer sees of a change, or None for nothing."""


class Cursor(NamedTuple):
    """How far a follower has got. `seq` is the highest seq that it knows of, 0 if none."""

    revision: int
    seq: int


class _Held(NamedTuple):
    """A broadcast as a follower takes it, at once or once the gap before it is filled."""

    epoch: int
    previous_revision: int
    #: The number of revisions, of which the consumer sees only those in `visible`.
    length: int
    visible: list[Change]
    size_bytes: int


class Broadcast:
    """A broadcast for all followers of its store, converted once for all of them."""

    __slots__ = ("_held", "changes", "epoch", "previous_revision", "time")

    def __init__(self, batch: ChangeBatch) -> None:
        self.epoch, self.previous_revision, self.time, self.changes, _ = batch
        self._held: _Held | None = None

    def held(self, view: View | None) -> _Held:
        """Return the broadcast as a follower with this view takes
        it. Raises MalformedFrameError."""
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
        #: None until `start`; broadcasts are held until then.
        self.cursor: Cursor | None = None
        #: Changes in order, for the consumer to `take`.
        self.ready: deque[Change] = deque()
        #: Whether something is missing, so that the owner has to be asked from `cursor` on.
        self.behind = False
        #: Whether a broadcast since `start` had changes beyond the cursor that could not be given
        #: out.
        self.heard_more = False
        #: A moving average of the bytes that a change takes.
        self.change_bytes = 1024
        self._limit = SUBSCRIPTION_BUFFER_CHANGES if limit is None else limit
        self._share = share or Buffers().share(self.shed)
        self._view = view
        #: The place of the last change that the consumer took.
        self._taken = Cursor(0, 0)
        self._held: list[_Held] = []
        self._held_count = 0
        self._epoch = 0

    def start(self, cursor: Cursor) -> None:
        """Give out what comes after `cursor`. Forget what is held.

        The merge is behind at first, because broadcasts before the bus knew of the listener were
        missed. On a later start the owner is asked for what was held too, which may be of a store
        that was deleted since.
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
            # Nothing is held any more: the usual case, and the cheapest.
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

    def take_all(self) -> list[Change]:
        """Give out all of `ready`."""
        found = list(self.ready)
        if not found:
            return found
        self.ready.clear()
        if self._held:
            self._share.remove(sum(map(size_of, found)))
        else:
            self._share.clear()
        assert self.cursor is not None
        self._taken = self.cursor
        return found

    @property
    def taken(self) -> Cursor:
        """The cursor up to which everything was taken."""
        return self._taken if self.ready or self.cursor is None else self.cursor

    @property
    def settled(self) -> Cursor | None:
        """The cursor if everything was taken and nothing is known to be missing, else None."""
        return None if self.behind or self.ready or self._held else self.cursor

    def broadcast(self, broadcast: Broadcast) -> None:
        """Take a broadcast. Raises MalformedFrameError, and then changes nothing."""
        # A former owner's broadcast is too late: the present owner has all that is true of it.
        if broadcast.epoch >= self._epoch:
            self._merge(broadcast.held(self._view))

    def page(self, page: Sequence[Any], asked: Cursor) -> bool:
        """Take the owner's answer to CHANGES from `asked`, the cursor at that time. Return False if
        it says `reset`. Raises MalformedFrameError, and then changes nothing."""
        wires, next_revision, next_seq, head_revision, reset = _checked_page(page)
        if reset:
            return False
        assert self.cursor is not None
        revision, seq = self.cursor
        if asked.revision == 0 < revision:
            # A page from revision 0 leaves out deletes. A broadcast has since brought changes, and
            # a delete may have removed one of them. So the page is void, and is asked for anew.
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
        """Compare with the owner's revision, which was asked for after some silence."""
        if self.cursor is not None and revision != self.cursor.revision:
            self.behind = True

    def lost(self) -> None:
        """Broadcasts may have been lost."""
        if self.cursor is not None:
            self.behind = True

    def shed(self) -> None:
        """Drop everything that is held. The owner is asked again for what follows the last
        change taken."""
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
        """Take the changes above the cursor. Return False if there is no room for them."""
        assert self.cursor is not None
        revision, seq = self.cursor
        _, previous_revision, length, visible, size_bytes = batch
        if previous_revision != revision:
            length -= revision - previous_revision
            visible = [change for change in visible if change.revision > revision]
            size_bytes = sum(map(size_of, visible))
        # A doubled or late broadcast may lie below the cursor as a whole.
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
            # Drop what was held too: the owner has to be asked for all of it in any case.
            self._forget_held()
            return
        self._held.append(batch)
        self._held_count += batch.length
        self._share.add(batch.size_bytes)

    def _forget_held(self) -> None:
        held, self._held, self._held_count = self._held, [], 0
        self._share.remove(sum(batch.size_bytes for batch in held))


def _converted(wire: WireChange, revision: int, time: int, view: View | None) -> Change | None:
    """Return what the consumer sees of a change, or None. Raises MalformedFrameError."""
    if type(wire) is list and wire:
        number = number_of(wire)
        if number != CHANGE_SET_MESSAGE and number in _STATELESS:
            return None
        if number == CHANGE_DELETE_ENTRIES and len(wire) > 1 and is_unseen(wire):
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
        raise MalformedFrameError(reason="a page of changes with a field that is not an integer")
    return wires, next_revision, next_seq, head_revision, bool(reset)
