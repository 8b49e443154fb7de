"""The changes of a stream for a gateway that serves it: in lists, and with header blocks as bytes.

It uses the same feed and track as a subscription (`subscription.py`), so it misses nothing and
survives every outage in the same way. It gives out what is here in long lists, because a gateway
handles every message of a stream and a call for each would cost more than the message; a list ends
where its large values have the bytes of a page. It never reads history: after a RESET it continues
from the head, and says that something was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from holdfast.client.following.feed import TrackFeed
from holdfast.client.following.follower import Follower
from holdfast.client.following.merge import Cursor
from holdfast.client.following.track import Track, Wanted
from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.messages import Change

_Given = TypeVar("_Given")

#: Changes that are given out at once. Those behind a large value are converted once more.
_AT_ONCE: Final = 1024
#: Above every seq: no history.
_NO_HISTORY: Final = 1 << 62


class ServedChanges(Generic[_Given]):
    """An async iterator of lists of changes. Made by `ServingStream.follow`; for one consumer.

    Each change comes once, in the order of revisions. End it with `async with` or `aclose()`; a
    feed that is dropped ends too.
    """

    def __init__(
        self,
        link: Link,
        follower: Follower,
        key: StoreKey,
        start_revision: int | None,
        convert: Callable[[Sequence[Change]], Awaitable[tuple[list[_Given], int]]],
    ) -> None:
        """`convert` returns what is given out for the first changes, and how many it took."""
        start = None if start_revision is None else Cursor(start_revision, 0)
        wanted = Wanted(start_seq=_NO_HISTORY, start_revision=start)
        track = Track(link, follower.buffers, key, wanted)
        self._follower = follower
        self._feed = TrackFeed(link, follower.listeners, key, track)
        self._convert = convert
        #: What was taken of the track and not given out yet.
        self._taken: list[Change] = []
        self._stopped = False
        follower.end_with(self, self._feed)

    @property
    def revision(self) -> int | None:
        """The revision up to which every change was given out; None before the
        start."""
        return None if self._taken else self._feed.track.revision

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        """Start now: every change from here on is given out."""
        if not self._feed.track.begun:
            await self._start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def stop(self) -> None:
        """End the iteration, from anywhere on the loop. What was not given out yet is dropped."""
        self._stopped = True
        self._feed.wake()

    async def aclose(self) -> None:
        """Stop listening; the iteration ends. Idempotent."""
        await self._follower.ended(self._feed)

    async def __anext__(self) -> list[_Given]:
        feed, track = self._feed, self._feed.track
        while not (feed.closed or self._stopped):
            self._taken = self._taken or track.pop_all()
            if self._taken:
                # It may be cancelled: a large value has to be fetched.
                given, count = await self._convert(self._taken[:_AT_ONCE])
                self._taken = self._taken[count:]
                if given:
                    return given
                continue
            if not track.begun:
                await self._start()
            elif track.wants_owner:
                await track.advance()
            else:
                await feed.wait()
        raise StopAsyncIteration

    async def _start(self) -> None:
        await self._feed.listen()
        self._follower.started(self._feed)
        await self._feed.track.advance()
