"""A subscription: history or state first, then changes, each once, in the order of revisions.

How it starts, and starts again after a reset:

1. listen on the change subject, so that nothing is missed while the rest happens;
2. ask for the head: (R0, S0) is where the live part begins;
3. page through the messages from `start_seq` to S0, or the entries of the prefix, leaving out those
   with a revision above R0: they come as live changes;
4. ask the owner for changes since (R0, S0), then merge by revision (`merge.py`).

All requests run inside the consumer's own `anext`: no task, and no state lost if it is cancelled.
Once started, a subscription outlives every outage: errors that a retry can help are retried for ever,
and so is a disk that fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.client.link import Link
from holdfast.client.merge import Cursor, Pending
from holdfast.client.operations import entry_from_wire, head_from_wire, message_from_wire
from holdfast.protocol.errors import HoldfastError, StorageFailedError, UnavailableError
from holdfast.protocol.frames import (
    CHANGES,
    GET_ENTRIES,
    GET_MESSAGES,
    HEAD,
    STATELESS_CHANGES,
    change_from_wire,
    pack,
)
from holdfast.protocol.messages import Change, ChangeKind
from holdfast.protocol.names import StoreKind

if TYPE_CHECKING:
    from holdfast.client.follower import Feed, Follower

_PACKED_HEAD: Final = pack([HEAD])
#: A pause between tries that fail at once.
_RETRY_SECONDS: Final = 0.2
#: What passes, if only when the owner's disk has been seen to.
_OUTAGES: Final = (UnavailableError, StorageFailedError)


class Subscription:
    """An async iterator of Change. Made by `Stream.subscribe` and `KV.watch`; for one consumer.

    End it with `async with` or `aclose()`; `Client.close` ends it too, and so does dropping the last
    reference to it. The iteration then stops. Raises, while starting, what any read raises
    (NoCoordinatorError, OperationTimeoutError, ...), and later only what no retry can help.
    """

    def __init__(
        self,
        follower: Follower,
        link: Link,
        feed: Feed,
        *,
        start_seq: int | None,
        prefix: str,
        start_revision: int | None,
        marks_ready: bool,
    ) -> None:
        """With `marks_ready` a READY change tells where history or state is complete."""
        self._follower = follower
        self._link = link
        self._feed = feed
        self._is_kv = feed.key[0] == StoreKind.KV
        self._start_seq = start_seq
        self._prefix = prefix
        self._start_revision = start_revision
        self._marks_ready = marks_ready
        self._started = False
        self._announce: Change | None = None
        #: What comes before the merge: a RESET, and rows of history or state.
        self._first: deque[Change] = deque()
        #: Whether history is left to be read, and where: from this seq, or after this key.
        self._reading = False
        self._next_row: int | str | None = None
        self._page: asyncio.Future[Any] | None = None
        self._until = Cursor(0, 0)

    def __aiter__(self) -> Subscription:
        return self

    async def __aenter__(self) -> Self:
        """Start now, so that every change from here on will be given out."""
        if not self._started:
            await self._start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening; the iteration ends. Idempotent."""
        await self._follower.ended(self._feed)

    async def __anext__(self) -> Change:
        feed, merge = self._feed, self._feed.merge
        while not feed.closed:
            if not self._started:
                await self._start()
            elif self._first:
                return self._first.popleft()
            elif self._reading:
                await self._read_history()
            elif merge.ready:
                change = self._visible(merge.ready.popleft())
                if change is not None:
                    return change
            elif feed.error is not None:
                raise feed.error
            elif merge.behind:
                await self._catch_up()
            elif self._announce is not None:
                ready, self._announce = self._announce, None
                return ready._replace(revision=merge.cursor.revision if merge.cursor else 0)
            else:
                await feed.wait()
        raise StopAsyncIteration

    async def _start(self) -> None:
        await self._feed.listen()
        self._follower.started(self._feed)
        if self._start_revision is not None:
            self._begin_live(Cursor(self._start_revision, 0))
        else:
            await self._begin(self._start_seq)
        self._started = True

    async def _begin(self, start_seq: int | None) -> None:
        """Find out where the live part begins, and what comes before it. Changes nothing unless
        the owner has answered."""
        wire, *_ = await self._link.call(self._feed.key, _PACKED_HEAD, False)
        head = head_from_wire(wire)
        self._until = Cursor(head.revision, head.last_seq)
        self._next_row = None if self._is_kv else start_seq
        self._reading = self._is_kv or (start_seq is not None and start_seq <= head.last_seq)
        self._begin_live(self._until)

    def _begin_live(self, cursor: Cursor) -> None:
        self._feed.merge.start(cursor)
        if self._marks_ready:
            self._announce = Change(ChangeKind.READY, 0, 0)

    async def _read_history(self) -> None:
        """Read one page, with the next one on its way while the consumer works."""
        page, self._page = self._page or self._fetch(), None
        try:
            answer = await page
        except asyncio.CancelledError:
            page.cancel()
            raise
        try:
            (rows, self._next_row), *_ = self._link.unwrap(answer)
        except _OUTAGES as error:
            await self._pause(error)
            return
        self._reading = self._next_row is not None
        if self._reading:
            self._page = self._fetch()
        until = self._until.revision
        for wire in rows:
            if wire[1] > until:
                continue
            if self._is_kv:
                entry = entry_from_wire(wire)
                change = Change(ChangeKind.SET, entry.revision, entry.time, entry=entry)
            else:
                message = message_from_wire(wire)
                change = Change(ChangeKind.SET, message.revision, message.time, message=message)
            self._first.append(change)

    def _fetch(self) -> asyncio.Future[Any]:
        if self._is_kv:
            packed = pack([GET_ENTRIES, self._prefix, self._next_row, None, True])
        else:
            packed = pack([GET_MESSAGES, self._next_row, self._until.seq])
        return self._link.submit(self._feed.key, packed, False)

    async def _catch_up(self) -> None:
        merge = self._feed.merge
        asked = merge.cursor
        assert asked is not None
        try:
            page, *_ = await self._link.call(self._feed.key, pack([CHANGES, *asked, None]), False)
            if merge.page(page, asked):
                return
            await self._begin(self._start_seq or 1)
        except _OUTAGES as error:
            await self._pause(error)
            return
        self._first.append(Change(ChangeKind.RESET, self._until.revision, 0))

    async def _pause(self, error: HoldfastError) -> None:
        """Wait before the next try of what failed with `error`."""
        if self._feed.closed:
            return
        if self._link.closed:
            raise error
        await asyncio.sleep(_RETRY_SECONDS)

    def _visible(self, pending: Pending) -> Change | None:
        """Return the change as the consumer sees it; None if it concerns no key of the prefix, or
        no part of the state."""
        if pending.change[0] in STATELESS_CHANGES:
            return None
        change = change_from_wire(pending.change, pending.revision, pending.time)
        prefix = self._prefix
        if not prefix or change.kind is ChangeKind.TRIM:
            return change
        if change.entry is not None:
            return change if change.entry.key.startswith(prefix) else None
        keys = tuple(key for key in change.keys if key.startswith(prefix))
        return change._replace(keys=keys) if keys else None
