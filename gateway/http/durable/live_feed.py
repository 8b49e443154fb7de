"""The events of one durable stream, made once for all followers that have everything.

One task follows the stream while anybody is here. A follower is caught up from the stream to where
this task is, and is a member then (`events/followers.py`): a thousand followers of one stream cost
one read of each message, and one write to each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.http.durable.bodies import control_event, data_event
from holdfast.gateway.http.durable.durable_stream import DurableStream, Found, now_ms
from holdfast.gateway.http.durable.live_tail import LiveTail
from holdfast.gateway.http.durable.offsets import OffsetWord, next_cursor
from holdfast.gateway.http.durable.stream_record import CLOSED, MARKERS
from holdfast.gateway.http.events.event_connection import EventConnection, framed
from holdfast.gateway.http.events.followers import KEEP_ALIVE_SECONDS, Followers
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

#: How long a follower that is ahead waits before it looks where the others are.
_LOOK_SECONDS: Final = 1.0

#: Reads a stream from a place on.
Read = Callable[[DurableStream, int | OffsetWord], Awaitable[Found]]


class LiveFeed:
    """What the followers of one stream get. Made with the first, and ends with the last."""

    def __init__(self, stream: DurableStream, read: Read) -> None:
        self._stream = stream
        self._read = read
        self._found: Found | None = None
        self._moved: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.followers = Followers(self._catch_up, self._stop)

    async def started(self) -> None:
        """Return once it follows the stream. Raises ProblemError, HoldfastError."""
        if self._task is None:
            self._found = None
            self._task = asyncio.create_task(self._run())
        while self._found is None and self._task is not None:
            await self._step()

    def join(self, connection: EventConnection, next_seq: int) -> None:
        """Send a follower all that comes from `next_seq` on."""
        connection.place = next_seq
        self.followers.take(connection)

    # The task

    async def _run(self) -> None:
        end = self.followers.end_all
        try:
            async with self._stream.tail.used() as tail:
                await self._follow(tail)
            # Of a closed stream, members have all. Others are caught up to its end.
            end = self.followers.end_members
        except (ProblemError, HoldfastError):
            # It was deleted, or cannot be read now: followers come again, and are told why.
            pass
        except Exception:
            logger.exception("gateway.feed_failed store=%s", self._stream.name)
        finally:
            if self._task is asyncio.current_task():
                self._task = None
                self._woken()
                end()

    async def _follow(self, tail: LiveTail) -> None:
        loop = asyncio.get_running_loop()
        changes, disturbances = tail.changes, tail.disturbances
        found = await self._read(self._stream, OffsetWord.END)
        used_at = loop.time()
        self._at(found)
        while not found.closed:
            if found.up_to_date:
                due_at = self.followers.end_due(loop.time())
                left = min(due_at - loop.time(), KEEP_ALIVE_SECONDS)
                await tail.wait(changes, max(0.01, left))
            if loop.time() - used_at > KEEP_ALIVE_SECONDS:
                used_at = loop.time()
                if not len(self.followers):
                    return
                self.followers.keep_alive()
                await self._stream.used(found.config, found.epoch)
            changes = tail.changes
            known = tail.after(found.next_seq) if tail.disturbances == disturbances else None
            before = found.next_seq
            if known is None:
                disturbances = tail.disturbances
                found = await self._read(self._stream, before)
            elif known:
                found = found_live(found, known)
            else:
                continue
            began_at = time.perf_counter()
            self._send(found, before)
            await self.followers.paced(began_at)

    def _send(self, found: Found, before: int) -> None:
        if found.contents or found.closed:
            self.followers.send(lambda cursor: event_of(found, cursor), before)
        self._at(found)

    def _at(self, found: Found) -> None:
        # What is in it was sent.
        self._found = replace(found, contents=[])
        self._woken()

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    # One follower

    async def _catch_up(self, connection: EventConnection) -> None:
        """Send a follower what it misses, and make it a member."""
        try:
            while await connection.drained() and (here := self._found) is not None:
                at, is_running = connection.place, self._task is not None and not here.closed
                if is_running and at == here.next_seq:
                    self.followers.add(connection)
                    return
                if is_running and at > here.next_seq:
                    await self._step()
                    continue
                if is_running:
                    found = await self._missed(at, here)
                else:
                    found = await self._read(self._stream, at)
                if found.contents or found.closed:
                    connection.write(framed(event_of(found, connection.variant)))
                connection.place = found.next_seq
                if found.closed or (found.up_to_date and not is_running):
                    # At the end of the stream; or nobody follows it any more, and the follower
                    # comes again.
                    break
        except (ProblemError, HoldfastError):
            pass
        except Exception:
            logger.exception("gateway.feed_failed store=%s", self._stream.name)
        connection.end()

    async def _missed(self, at: int, here: Found) -> Found:
        """Return what comes at a place, up to where the members are, if that is in memory."""
        known = self._stream.tail.after(at)
        if known:
            known = [each for each in known if each.seq < here.next_seq]
        if known and known[-1].headers != CLOSED:
            return found_live(replace(here, next_seq=at), known)
        return await self._read(self._stream, at)

    async def _step(self) -> None:
        """Wait until the members are somewhere else."""
        if self._moved is None:
            self._moved = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await asyncio.shield(self._moved)

    def _woken(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)


def found_live(found: Found, messages: Sequence[ServedMessage]) -> Found:
    """Return what comes behind `found`."""
    closed = messages[-1].headers == CLOSED
    contents = [each.value for each in messages if each.headers not in MARKERS]
    next_seq = messages[-1].seq if closed else messages[-1].seq + 1
    return Found(found.config, found.epoch, contents, found.next_seq, next_seq, True, closed)


def event_of(found: Found, cursor: str | None) -> bytes:
    """Return the events that tell a reader what was found, and where it is then."""
    control = control_event(
        found.next_offset,
        next_cursor(cursor, now_ms()),
        up_to_date=found.up_to_date,
        closed=found.closed,
    )
    if not found.contents:
        return control
    return data_event(found.contents, found.config.content_type) + control
