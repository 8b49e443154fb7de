"""The followers of one source of events: those that have everything get the same bytes at once.

Invariants: a member has everything up to the place of the source. A member that takes nothing for
now leaves at the first event that it would miss, and a task of its own catches it up. The events of
all end when the source does.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from holdfast.gateway.http.events.event_connection import EventConnection, framed

#: Proxies close connections that carry nothing for a minute.
KEEP_ALIVE_SECONDS: Final = 15.0
#: Pauses between two events: a shorter one is none, and no follower waits longer.
_LEAST_PAUSE_SECONDS: Final = 0.001
_MOST_PAUSE_SECONDS: Final = 0.25
_HERE: Final = framed(b": here\n\n")

#: Catches a follower up and adds it again.
CatchUp = Callable[[EventConnection], Coroutine[Any, Any, None]]


class Followers:
    """Members, and those that are being caught up. `on_empty` is called when the last one left."""

    def __init__(self, catch_up: CatchUp, on_empty: Callable[[], None]) -> None:
        self._catch_up = catch_up
        self._on_empty = on_empty
        self._members: set[EventConnection] = set()
        self._catching_up: dict[EventConnection, asyncio.Task[None]] = {}
        self._ends: list[tuple[float, int, EventConnection]] = []
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._members) + len(self._catching_up)

    def take(self, connection: EventConnection) -> None:
        """Take a follower, wherever it is. Its `on_lost` is called when it is gone."""
        told = connection.on_lost

        def lost(_: EventConnection) -> None:
            self._left(connection)
            if told is not None:
                told(connection)

        connection.on_lost = lost
        if not math.isinf(connection.end_at):
            heapq.heappush(self._ends, (connection.end_at, next(self._count), connection))
        self._behind(connection)

    def has(self, connection: EventConnection) -> bool:
        """Return whether a follower is a member."""
        return connection in self._members

    def add(self, connection: EventConnection) -> None:
        """Make a follower that has everything a member."""
        self._catching_up.pop(connection, None)
        if connection.is_open:
            self._members.add(connection)
        elif not len(self):
            self._on_empty()

    def send(self, events_of: Callable[[str | None], bytes], place: int) -> None:
        """Send an event to all members: `events_of` their variant. Who cannot take it now stays
        at `place`, and is caught up."""
        frames: dict[str | None, bytes] = {}
        behind: list[EventConnection] = []
        for each in self._members:
            if each.is_paused:
                behind.append(each)
                continue
            frame = frames.get(each.variant)
            if frame is None:
                frame = frames[each.variant] = framed(events_of(each.variant))
            each.write(frame)
        for each in behind:
            self._members.discard(each)
            each.place = place
            self._behind(each)

    async def paced(self, began_at: float) -> None:
        """Pause after a `send` that began then (`time.perf_counter`), for as long as that took. A
        write costs some 10 µs, mostly in the kernel, so events that come faster than followers can
        be written to are sent together, and half of the time is left for requests."""
        # The loop writes when the callbacks of this turn are done.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taken_seconds = time.perf_counter() - began_at
        if taken_seconds > _LEAST_PAUSE_SECONDS:
            await asyncio.sleep(min(taken_seconds, _MOST_PAUSE_SECONDS))

    def keep_alive(self) -> None:
        """Send something that means nothing."""
        for each in self._members:
            if not each.is_paused:
                each.write(_HERE)

    def end_due(self, now: float) -> float:
        """End those whose time is up, and return when the next one's is."""
        while self._ends and self._ends[0][0] <= now:
            heapq.heappop(self._ends)[2].end()
        return self._ends[0][0] if self._ends else math.inf

    def end_members(self) -> None:
        """End the events of those that have everything."""
        for each in list(self._members):
            each.end()

    def end_all(self) -> None:
        """End the events of all."""
        for each in [*self._members, *self._catching_up]:
            each.end()

    def _behind(self, connection: EventConnection) -> None:
        if connection.is_open:
            self._catching_up[connection] = asyncio.create_task(self._catch_up(connection))
        else:
            self._left(connection)

    def _left(self, connection: EventConnection) -> None:
        self._members.discard(connection)
        task = self._catching_up.pop(connection, None)
        if task is not None:
            task.cancel()
        if len(self._ends) > 2 * len(self) + 64:
            self._ends = [each for each in self._ends if each[2].is_open]
            heapq.heapify(self._ends)
        if not len(self):
            self._on_empty()
