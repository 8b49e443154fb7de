"""The changes of a stream or a kv as events, made once for all followers that have everything.

One subscription serves all who follow the same: a store, and a prefix or a subject. Its last events
are kept, so a follower that was away for a moment is caught up from memory. One that wants history,
or was away for longer, has a subscription of its own until it is where the others are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.client.following.subscription import Subscription
from holdfast.gateway.http.events.event_connection import EventConnection, framed
from holdfast.gateway.http.events.followers import KEEP_ALIVE_SECONDS, Followers
from holdfast.gateway.http.native.rows import change_row, line
from holdfast.protocol.errors import HoldfastError, internal_error
from holdfast.protocol.messages import Change, ChangeKind

logger = logging.getLogger("holdfast.gateway")

#: What the id of an event begins with that is the seq of a message, not a revision.
SEQ_ID: Final = "seq-"
#: The last event of a gateway that stops.
ENDING: Final = b'event: ending\ndata: {"kind":"ending"}\n\n'
#: What is kept for followers that are a little behind.
_KEPT_BYTES: Final = 1 << 20
_KEPT_EVENTS: Final = 4096
#: Changes that are sent as one chunk at the most.
_BATCH: Final = 1024
#: How often a follower that reads history looks if it is where the others are.
_FIRST_LOOK_SECONDS: Final = 0.01
_MOST_LOOK_SECONDS: Final = 1.0

#: Subscribes from a revision on, or with None from now on.
Subscribe = Callable[[int | None], Subscription[bytes]]


class _Kept(NamedTuple):
    #: None: of a state that is read.
    revision: int | None
    event: bytes


class ChangeFeed:
    """What the followers of one store get. Made with the first, and ends with the last."""

    def __init__(self, name: str, subscribe: Subscribe) -> None:
        self._name = name
        self._subscribe = subscribe
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._changes: Subscription[bytes] | None = None
        #: The next change; and whether some were taken and not yet sent.
        self._coming: asyncio.Task[Change] | None = None
        self._batching = False
        #: Every change behind `_from` is in `_kept`, up to the revision `_at`. None: not known, as
        #: after a reset while the state is read.
        self._at: int | None = None
        self._from: int | None = None
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._histories: dict[EventConnection, Subscription[bytes]] = {}
        self._error: HoldfastError | None = None
        self.followers = Followers(self._catch_up, self._stop)

    async def started(self) -> None:
        """Return once it follows the store. Raises HoldfastError."""
        if self._task is None:
            self._ready.clear()
            self._error = None
            self._task = asyncio.create_task(self._run())
        await self._ready.wait()
        if self._error is not None:
            raise self._error

    def join(self, connection: EventConnection, history: Subscription[bytes] | None) -> None:
        """Send a follower what `history` has, which has been started, and all that comes then.
        Without it, what comes."""
        connection.farewell = ENDING
        if self._task is None:
            # It ended between two steps: the follower comes again.
            connection.end()
            return
        if history is not None:
            self._histories[connection] = history
        else:
            connection.place = self._here() or self._at or 0
        self.followers.take(connection)

    # The task

    async def _run(self) -> None:
        try:
            async with self._subscribe(None) as changes:
                self._changes, self._coming = changes, None
                self._kept.clear()
                self._kept_bytes = 0
                self._from = self._at = changes.revision
                self._ready.set()
                await self._follow(changes)
        except HoldfastError as error:
            # It cannot be followed: followers come again, and are told why.
            self._error = error
        except Exception as error:
            logger.exception("gateway.feed_failed store=%s", self._name)
            self._error = internal_error("following a store", error)
        finally:
            if self._task is asyncio.current_task():
                self._task = None
                self._ready.set()
                self.followers.end_all()

    async def _follow(self, changes: Subscription[bytes]) -> None:
        loop = asyncio.get_running_loop()
        kept_alive_at = loop.time()
        self._coming = asyncio.create_task(_next(changes))
        try:
            while True:
                await asyncio.wait([self._coming], timeout=KEEP_ALIVE_SECONDS)
                if loop.time() - kept_alive_at > KEEP_ALIVE_SECONDS:
                    kept_alive_at = loop.time()
                    if not len(self.followers):
                        return
                    self.followers.keep_alive()
                batch: list[_Kept] = []
                while self._coming.done() and len(batch) < _BATCH:
                    change, revision = self._coming.result(), changes.revision
                    batch.append(_Kept(revision, event_of(change, revision)))
                    self._batching = True
                    self._coming = asyncio.create_task(_next(changes))
                    # It is done by then, if there is another one.
                    await asyncio.sleep(0)
                if batch:
                    began_at = time.perf_counter()
                    self._send(batch)
                    await self.followers.paced(began_at)
        except StopAsyncIteration:
            return
        finally:
            await _cancelled(self._coming)
            self._batching = False

    def _send(self, batch: Sequence[_Kept]) -> None:
        """Keep events, and send them: in one step, so a follower gets each once."""
        self._batching = False
        before = self._at
        for each in batch:
            if each.revision is None:
                self._from = None
                self._kept.clear()
                self._kept_bytes = 0
            elif self._from is None:
                self._from = each.revision
            else:
                self._kept.append(each)
                self._kept_bytes += len(each.event)
            self._at = each.revision
        while self._kept_bytes > _KEPT_BYTES or len(self._kept) > _KEPT_EVENTS:
            dropped = self._kept.popleft()
            self._from = dropped.revision
            self._kept_bytes -= len(dropped.event)
        events = b"".join(each.event for each in batch)
        self.followers.send(lambda _: events, before or 0)

    def _here(self) -> int | None:
        """Return the revision up to which members have everything; None while it is not known."""
        if self._at is None or self._changes is None or self._coming is None:
            return None
        if not self._batching and not self._coming.done():
            # Changes that are of no concern here count, too.
            self._at = self._changes.revision
        return self._at

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    # One follower

    async def _catch_up(self, connection: EventConnection) -> None:
        """Send a follower what it misses, and make it a member."""
        history = self._histories.pop(connection, None)
        try:
            if history is None and not await self._from_memory(connection):
                history = self._subscribe(connection.place)
            if history is None:
                return
            async with history:
                await self._from_history(connection, history)
        except HoldfastError:
            pass
        except Exception:
            logger.exception("gateway.feed_failed store=%s", self._name)
        finally:
            if history is not None:
                await history.aclose()
        if not self.followers.has(connection):
            connection.end()

    async def _from_memory(self, connection: EventConnection) -> bool:
        """Make a follower a member with what is kept. False: it misses more than that."""
        if await connection.drained():
            if not self._is_kept(connection.place):
                return False
            self._join(connection)
        return True

    def _is_kept(self, revision: int | None) -> bool:
        here = self._here()
        return (
            revision is not None
            and here is not None
            and self._from is not None
            and self._from <= revision <= here
        )

    def _join(self, connection: EventConnection) -> None:
        """Send what is kept behind its place, and make it a member."""
        missed = [each.event for each in self._kept if (each.revision or 0) > connection.place]
        if missed:
            connection.write(framed(b"".join(missed)))
        self.followers.add(connection)

    async def _from_history(
        self, connection: EventConnection, history: Subscription[bytes]
    ) -> None:
        """Send what a subscription has until that is what is kept."""
        coming = asyncio.create_task(_next(history))
        look_seconds = _FIRST_LOOK_SECONDS
        try:
            while await connection.drained() and self._task is not None:
                # A change that came and was not sent is part of the revision.
                if not coming.done() and self._is_kept(history.revision):
                    connection.place = history.revision or 0
                    self._join(connection)
                    return
                await asyncio.wait([coming], timeout=look_seconds)
                look_seconds = min(look_seconds * 2, _MOST_LOOK_SECONDS)
                if coming.done():
                    connection.write(framed(event_of(coming.result(), history.revision)))
                    coming = asyncio.create_task(_next(history))
        except StopAsyncIteration:
            return
        finally:
            await _cancelled(coming)


async def _cancelled(task: asyncio.Task[Change] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, HoldfastError):
            await task


async def _next(changes: Subscription[bytes]) -> Change:
    return await anext(changes)


def event_of(change: Change, revision: int | None) -> bytes:
    """Return the event of a change; its id says where a reader resumes."""
    kind = "set" if change.kind is ChangeKind.SET else str(change.kind)
    found = id_of(change, revision)
    number_line = b"" if found is None else b"id: %s\n" % found.encode()
    return b"event: %s\n%sdata: %s\n" % (kind.encode(), number_line, line(change_row(change)))


def id_of(change: Change, revision: int | None) -> str | None:
    """Return the place behind a change, from which a reader can resume."""
    if revision is not None:
        return str(revision)
    if change.message is not None:
        # Of what was there before: it comes in the order of seqs.
        return f"{SEQ_ID}{change.message.seq}"
    return None
