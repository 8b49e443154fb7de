"""The queue of what a stream republishes, in the order of the stream: each copy says which seq its
subject had before.

That is known of subjects that were republished lately. Of another the stream is asked, and what
comes behind it waits. What was stored behind a message whose answer is missing waits for that
(`stored_order.py`). Copies are as lossy as core NATS: what waits has bounds. Beyond them nobody
waits for answers any more, and messages that wait for their subjects are not republished.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.publishing.republishing import Republisher
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.stored_order import StoredOrder
from holdfast.gateway.jetstream.wire.ports import ClientPort
from holdfast.protocol.errors import HoldfastError, InvalidArgumentError, TooLargeError
from holdfast.protocol.limits import (
    MAX_INTEGER,
    MAX_REPUBLISHED_SUBJECTS,
    MAX_WAITING_REPUBLISHED,
)

logger = logging.getLogger("holdfast.gateway")

#: What a message that waits takes besides its value and headers.
_WAITING_BYTES: Final = 512
#: A missing answer comes a round trip after the others, or seconds after them.
_LOOK_SECONDS: Final = 0.02


class RepublishingQueue:
    """What one stream republishes."""

    def __init__(
        self,
        republisher: Republisher,
        store: ServingStream,
        client: ClientPort,
        load: PublishLoad,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._republisher = republisher
        self._store = store
        self._client = client
        self._load = load
        self._spawn = spawn
        self._order = StoredOrder()
        #: Whether a task looks for answers.
        self._looking = False
        self._closed = False
        self._last: OrderedDict[str, int] = OrderedDict()
        self._waiting: deque[tuple[str, ServedMessage]] = deque()
        self._none_waits = asyncio.Event()
        self._none_waits.set()

    def configure(self, republisher: Republisher) -> None:
        """Go by another configuration from now on."""
        self._pass_on(MAX_INTEGER)
        self._republisher = republisher

    def stored(self, message: ServedMessage) -> None:
        """Take a message that was stored, and republish it when it is its turn."""
        if self._order.follows(message.seq):
            self._take(message)
            return
        _, sent = self._store.writes
        if not self._order.hold(message, sent):
            if self._republisher.destination(message.subject) is not None:
                self._not_republished("messages behind it were republished before its answer came")
            return
        size_bytes = _size(message)
        has_room = self._load.can_stage(size_bytes) and self._order.count < MAX_WAITING_REPUBLISHED
        self._load.staged_bytes += size_bytes
        self._pass_on(0 if has_room else MAX_INTEGER)
        if self._order.count and not self._looking:
            self._looking = True
            self._spawn(self._look_for_answers())

    def in_doubt(self) -> None:
        """Nobody can say whether a message was stored: of no subject the last seq is known."""
        self._last.clear()

    async def drained(self) -> None:
        """Wait for no answers any more. Return when all that was stored is republished."""
        self._pass_on(MAX_INTEGER)
        await self._none_waits.wait()

    def close(self) -> None:
        """Republish nothing more: another gateway may."""
        self._closed = True
        self._pass_on(MAX_INTEGER)
        self._load.staged_bytes -= sum(_size(message) for _, message in self._waiting)
        self._waiting.clear()
        self._none_waits.set()

    # Inside

    async def _look_for_answers(self) -> None:
        try:
            while self._order.count:
                settled, _ = self._store.writes
                # Whoever awaits an answer that has come tells of it in the next turn of the loop.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                self._pass_on(settled)
                if self._order.count:
                    await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._looking = False

    def _pass_on(self, settled: int) -> None:
        while (message := self._order.pop(settled)) is not None:
            self._load.staged_bytes -= _size(message)
            self._take(message)

    def _take(self, message: ServedMessage) -> None:
        """Republish the next message of the stream, if its subject is one of those."""
        destination = self._republisher.destination(message.subject)
        if destination is None or self._closed:
            return
        if self._waiting or message.subject not in self._last:
            size_bytes = _size(message)
            if len(self._waiting) < MAX_WAITING_REPUBLISHED and self._load.can_stage(size_bytes):
                self._load.staged_bytes += size_bytes
                self._waiting.append((destination, message))
                if len(self._waiting) == 1:
                    self._none_waits.clear()
                    self._spawn(self._send_waiting())
            return
        self._send(destination, message)

    async def _send_waiting(self) -> None:
        """Look up the last seqs of subjects, and republish what waits for them."""
        while self._waiting:
            destination, message = self._waiting[0]
            if message.subject not in self._last:
                before = await self._seq_before(message)
                if self._closed:
                    return
                self._last[message.subject] = before
            self._waiting.popleft()
            self._load.staged_bytes -= _size(message)
            self._send(destination, message)
        self._none_waits.set()

    async def _seq_before(self, message: ServedMessage) -> int:
        if message.seq == 1:
            return 0
        try:
            page = await self._store.lasts([message.subject], up_to_seq=message.seq - 1)
        except HoldfastError as error:
            logger.warning("jetstream.republish_unsure store=%s reason=%s", self._store.name, error)
            return 0
        return page.messages[-1].seq if page.messages else 0

    def _send(self, destination: str, message: ServedMessage) -> None:
        before, self._last[message.subject] = self._last[message.subject], message.seq
        self._last.move_to_end(message.subject)
        if len(self._last) > MAX_REPUBLISHED_SUBJECTS:
            self._last.popitem(last=False)
        subject, block, payload = self._republisher.made(destination, message, before)
        try:
            self._client.publish(subject, payload, headers=block)
        except (TooLargeError, InvalidArgumentError) as error:
            self._not_republished(error)

    def _not_republished(self, reason: object) -> None:
        logger.warning("jetstream.not_republished store=%s reason=%s", self._store.name, reason)


def _size(message: ServedMessage) -> int:
    return len(message.value) + len(message.headers) + _WAITING_BYTES
