"""The track: the changes of one store as a consumer gets them, history first, then live.

    begin ──▶ history or state, page by page ──▶ what the merge gives, for ever
                     ▲                                │
                     └────────── reset ◀──────────────┘

1. ask for the head: (R0, S0) is where the live part begins;
2. page through the messages from `start_seq` to S0, or the entries of the prefix, leaving out those
   with a revision above R0: they come as live changes;
3. ask the owner for changes since (R0, S0), then merge by revision (`merge.py`).

A consumer that resumes from a revision starts at 3, from there. `pop` never waits. If `wants_owner`
is True, `advance` asks the owner for the next piece; cancelling it loses nothing. What is held can
be shed at any time, and is then asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple

from holdfast.client.following.buffers import Buffers, size_of
from holdfast.client.following.merge import Cursor, Merge, View
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    PACKED_HEAD,
    PACKED_WATCH_META,
    entry_from_wire,
    head_from_wire,
    message_from_wire,
)
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import (
    HoldfastError,
    MalformedFrameError,
    StaleFileSystemError,
    StorageFailedError,
    UnavailableError,
)
from holdfast.protocol.frames import CHANGES, GET_BY_SUBJECT, GET_ENTRIES, GET_MESSAGES, pack
from holdfast.protocol.messages import Change, ChangeKind, Entry
from holdfast.protocol.names import StoreKind
from holdfast.protocol.subject_filters import Filters

#: A pause between tries, for errors that come at once.
_RETRY_SECONDS: Final = 0.2
#: Errors that pass, if only once an operator has repaired the owner's disk.
OUTAGES: Final = (UnavailableError, StorageFailedError, StaleFileSystemError)


class Wanted(NamedTuple):
    """What the consumer of a store wants to hear of it."""

    #: Messages of history from here on; None: none.
    start_seq: int | None = None
    #: Resume after this revision, or at this cursor.
    start_revision: int | Cursor | None = None
    #: Which keys and subjects.
    prefix: str = ""
    filters: list[str] | None = None
    #: A READY change marks the end of history or state. After the reset of a kv, one always does.
    marks_ready: bool = False
    #: Without it a kv begins with what happens from now on. After a reset its state is read all the
    #: same.
    with_state: bool = True
    #: Entries have no values and no headers.
    meta_only: bool = False


class Track:
    """One follower's way through one store."""

    def __init__(self, link: Link, buffers: Buffers, key: StoreKey, wanted: Wanted) -> None:
        start_seq, start_revision, prefix, filters, marks_ready, with_state, meta_only = wanted
        self.begun = False
        self.closed = False
        self._deleted = False
        self._link = link
        self._buffers = buffers
        self._key = key
        self._is_kv = key[0] == StoreKind.KV
        self._start_seq = start_seq
        self._prefix = prefix
        if isinstance(start_revision, int):
            start_revision = Cursor(start_revision, 0)
        self._start = start_revision
        self._marks_ready = marks_ready
        self._filters = filters
        self._with_state = with_state
        self._meta_only = meta_only
        #: Whether the owner is asked to broadcast changes without values.
        self.is_meta = meta_only
        self._share = buffers.share(self.shed)
        view: View | None = None
        if prefix or meta_only:
            view = self._visible
        elif filters is not None:
            view = _view_of(Filters(filters))
        self.merge = Merge(share=self._share, view=view)
        self._reset: Change | None = None
        self._announce: Change | None = None
        #: Rows of history or state, which are given out before the changes of the merge.
        self._rows: deque[Change] = deque()
        #: Whether history is left to read, and where: from this seq, or after this key.
        self._reading = False
        self._next_row: int | str | None = None
        #: The same as of the last row that was given out.
        self._row_given: int | str | None = None
        self._page: asyncio.Future[Any] | None = None
        self._until = Cursor(0, 0)

    @property
    def wants_owner(self) -> bool:
        """Whether there is nothing to give out, and `advance` may find something."""
        if not self.begun:
            return True
        if self._reset is not None or self._rows:
            return False
        return self._reading or (self.merge.behind and not self.merge.ready)

    @property
    def has_something(self) -> bool:
        """Whether `pop` will return a change."""
        if not self.begun:
            return False
        if self._reset is not None or self._rows:
            return True
        merge = self.merge
        if self._reading:
            return False
        return bool(merge.ready) or (self._announce is not None and not merge.behind)

    @property
    def deleted(self) -> bool:
        """Whether the store was deleted: its owner knows nothing of it, and no broadcast has come
        of a new store with its name."""
        merge = self.merge
        cursor = merge.cursor
        # A new store's revisions may continue those of the deleted one, and its broadcasts are held
        # then.
        return (
            self._deleted
            and cursor is not None
            and cursor.revision == 0
            and not merge.heard_more
        )

    @property
    def revision(self) -> int | None:
        """The revision up to which every change was given out, from which one can resume; None
        while history or state is read."""
        merge = self.merge
        if not self.begun or self._reset is not None or self._rows or self._reading:
            return None
        return merge.taken.revision

    @property
    def settled(self) -> Cursor | None:
        """The cursor if everything was given out and nothing is known to be missing, else None."""
        if not self.begun or self._reset or self._rows or self._reading or self._announce:
            return None
        return self.merge.settled

    def pop(self) -> Change | None:
        """Return the next change, if it is here."""
        if self._reset is not None:
            change, self._reset = self._reset, None
            return change
        if self._rows:
            change = self._rows.popleft()
            self._share.remove(size_of(change))
            self._row_given = _place_after(change)
            return change
        merge = self.merge
        if self._reading or not self.begun:
            return None
        if merge.ready:
            return merge.take()
        if self._announce is not None and not merge.behind:
            ready, self._announce = self._announce, None
            return ready._replace(revision=merge.cursor.revision if merge.cursor else 0)
        return None

    def pop_all(self) -> list[Change]:
        """Return all changes that are here. In a loop, `pop` would ask for the size of each."""
        merge = self.merge
        if self.begun and self._reset is None and not self._rows and not self._reading:
            found = merge.take_all()
            if found or self._announce is None:
                return found
        change = self.pop()
        return [] if change is None else [change]

    async def advance(self) -> None:
        """Ask the owner for the next piece. While it begins, it raises what any read raises. Later
        it waits for outages to pass, and raises only what no retry can help."""
        if not self.begun:
            await self._begin()
        elif self._reading:
            await self._read_history()
        else:
            await self._catch_up()

    def close(self) -> None:
        """Drop all that is held. Idempotent."""
        self.closed = True
        self.shed()

    async def _begin(self) -> None:
        if self._start is not None:
            if self.is_meta:
                await self._link.call(self._key, PACKED_WATCH_META, False)
            self._begin_live(self._start)
        else:
            await self._begin_at_head(self._start_seq)
        self.begun = True

    async def _begin_at_head(self, start_seq: int | None) -> None:
        """Ask the owner where the live part begins, and what comes before it. Changes nothing until
        the owner has answered."""
        packed = PACKED_WATCH_META if self.is_meta else PACKED_HEAD
        wire, *_ = await self._link.call(self._key, packed, False)
        head = head_from_wire(wire)
        self._until = Cursor(head.revision, head.last_seq)
        self._next_row = self._row_given = None if self._is_kv else start_seq
        if self._is_kv:
            self._reading = self._with_state or self.begun
        else:
            self._reading = start_seq is not None and start_seq <= head.last_seq
        self._deleted = self.begun and head.revision == 0
        self._begin_live(self._until)

    def _begin_live(self, cursor: Cursor) -> None:
        self.merge.start(cursor)
        if self._marks_ready or (self._is_kv and self.begun):
            self._announce = Change(ChangeKind.READY, 0, 0)

    async def _read_history(self) -> None:
        """Read one page, and request the next one while the consumer works."""
        page, self._page = self._page or self._fetch(), None
        try:
            answer = await page
        except asyncio.CancelledError:
            page.cancel()
            raise
        try:
            (wires, next_row), *_ = self._link.unwrap(answer)
        except OUTAGES as error:
            await self._pause(error)
            return
        rows = self._rows_from_wire(wires)
        if isinstance(next_row, int) and next_row > self._until.seq:
            # Messages beyond come as live changes.
            next_row = None
        self._next_row = next_row
        self._reading = next_row is not None
        if self._reading and self._buffers.page_rows(self.merge.change_bytes) is None:
            self._page = self._fetch()
        self._rows.extend(rows)
        self._share.add(sum(map(size_of, rows)))

    def _rows_from_wire(self, wires: list[Any]) -> list[Change]:
        rows = []
        until = self._until.revision
        try:
            for wire in wires:
                if wire[1] > until:
                    continue
                if self._is_kv:
                    entry = entry_from_wire(wire)
                    if self._meta_only:
                        entry = _without_value(entry)
                    rows.append(Change(ChangeKind.SET, entry.revision, entry.time, entry=entry))
                else:
                    message = message_from_wire(wire)
                    change = Change(ChangeKind.SET, message.revision, message.time, message=message)
                    rows.append(change)
        except (LookupError, TypeError) as error:
            raise MalformedFrameError(reason=f"a page of rows: {error}") from error
        return rows

    def _fetch(self) -> asyncio.Future[Any]:
        limit = self._buffers.page_rows(self.merge.change_bytes)
        if self._is_kv:
            with_values = not self._meta_only
            packed = pack([GET_ENTRIES, self._prefix, self._next_row, limit, with_values])
        elif self._filters is not None:
            packed = pack([GET_BY_SUBJECT, self._filters, self._next_row, None, limit, None])
        else:
            packed = pack([GET_MESSAGES, self._next_row, self._until.seq, None, limit])
        return self._link.submit(self._key, packed, False)

    async def _catch_up(self) -> None:
        merge = self.merge
        asked = merge.cursor
        assert asked is not None
        limit = self._buffers.page_rows(merge.change_bytes)
        # Without a known seq, the owner finds it.
        operation = [CHANGES, asked.revision, asked.seq or None, limit]
        packed = pack([*operation, None, True] if self.is_meta else operation)
        try:
            page, *_ = await self._link.call(self._key, packed, False)
            if merge.page(page, asked):
                return
            await self._begin_at_head(self._start_seq or 1)
        except OUTAGES as error:
            await self._pause(error)
            return
        self._reset = Change(ChangeKind.RESET, self._until.revision, 0)

    async def _pause(self, error: HoldfastError) -> None:
        """Wait before the next try after `error`."""
        if self.closed:
            return
        if self._link.closed:
            raise error
        await asyncio.sleep(_RETRY_SECONDS)

    def shed(self) -> None:
        """Drop all that is held. It will be asked for again."""
        if self._page is not None:
            self._page.cancel()
            self._page = None
        if self._rows:
            self._rows.clear()
            self._next_row = self._row_given
            self._reading = True
        self.merge.shed()

    def _visible(self, change: Change) -> Change | None:
        """Return the part of a change that the consumer of a kv wants, or None."""
        if change.entry is not None:
            if not change.entry.key.startswith(self._prefix):
                return None
            if self._meta_only:
                return change._replace(entry=_without_value(change.entry))
            return change
        if change.kind is ChangeKind.TRIM:
            return change
        keys = tuple(key for key in change.keys if key.startswith(self._prefix))
        return change._replace(keys=keys) if keys else None


def _without_value(entry: Entry) -> Entry:
    return Entry(entry.key, b"", {}, entry.revision, entry.time)


def _view_of(filters: Filters) -> View:
    """Return a view that leaves out messages of other subjects."""

    def view(change: Change) -> Change | None:
        message = change.message
        return change if message is None or filters.matches(message.subject) else None

    return view


def _place_after(change: Change) -> int | str:
    """Return where the page after a row begins: from this seq, or after this key."""
    if change.message is not None:
        return change.message.seq + 1
    assert change.entry is not None
    return change.entry.key
