"""What a gateway has received and not answered yet: of all its streams, and of one."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.gateway.jetstream.publishing.reading_pace import ReadingPace
from holdfast.gateway.jetstream.wire.ports import ClientPort
from holdfast.protocol.limits import (
    MAX_STAGED_PUBLISH_BYTES,
    MAX_UNANSWERED_PUBLISH_BYTES,
    MAX_UNANSWERED_PUBLISHES,
)

#: Whoever is answered so many at once has more publishers than these: what the others have sent
#: meanwhile is worth gathering too.
_CROWD: Final = 8


class PublishLoad:
    """What one gateway has received and not answered yet."""

    __slots__ = (
        *("_pace", "answered", "bytes", "count", "fast_batches", "staged_bytes"),
        "taken_bytes",
    )

    def __init__(self) -> None:
        self._pace = ReadingPace()
        self.count = 0
        #: What waits takes in memory.
        self.bytes = 0
        self.answered = 0
        #: The values and headers of all that was received so far.
        self.taken_bytes = 0
        #: The open fast batches of all streams.
        self.fast_batches = 0
        #: What all streams hold for later: the begun atomic batches, what waits behind an upload,
        #: and what waits to be republished.
        self.staged_bytes = 0

    @property
    def taken(self) -> int:
        """How many messages were received so far."""
        return self.answered + self.count

    def can_stage(self, size_bytes: int) -> bool:
        """Tell whether there is room to hold so much for later."""
        return self.staged_bytes + size_bytes <= MAX_STAGED_PUBLISH_BYTES

    def rest_seconds(self) -> float:
        """Return how long the next messages may gather; called after each piece that arrives."""
        return self._pace.after_piece(self.answered + self.count, self.count)


class Unanswered:
    """The unanswered messages of one stream, which count among those of its gateway."""

    def __init__(self, load: PublishLoad, client: ClientPort) -> None:
        self.load = load
        self._client = client
        self._count = 0
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the gateway takes no more."""
        load = self.load
        return (
            load.count >= MAX_UNANSWERED_PUBLISHES or load.bytes >= MAX_UNANSWERED_PUBLISH_BYTES
        )

    def take(self, content_bytes: int, size_bytes: int) -> None:
        """Count a message whose value and headers have `content_bytes` and which takes
        `size_bytes`."""
        load = self.load
        load.count += 1
        load.bytes += size_bytes
        load.taken_bytes += content_bytes
        self._count += 1

    def take_all(self, count: int, content_bytes: int, size_bytes: int) -> bool:
        """Count so many messages together, unless there may be no room for the last of them; return
        whether they were counted."""
        load = self.load
        if (
            load.count + count > MAX_UNANSWERED_PUBLISHES
            or load.bytes + size_bytes > MAX_UNANSWERED_PUBLISH_BYTES
        ):
            return False
        load.count += count
        load.bytes += size_bytes
        load.taken_bytes += content_bytes
        self._count += count
        return True

    def settle(self, count: int, size_bytes: int) -> None:
        """Count so many as answered."""
        load = self.load
        load.count -= count
        load.answered += count
        load.bytes -= size_bytes
        if not load.count and count < _CROWD:
            self._client.end_rest()
        self._count -= count
        if not self._count and self._drained is not None:
            drained, self._drained = self._drained, None
            if not drained.done():
                drained.set_result(None)

    async def drained(self) -> None:
        """Return once none is unanswered."""
        while self._count:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await self._drained
