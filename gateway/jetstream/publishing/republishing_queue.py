"""The queue of what a stream republishes: each copy says which seq its subject had before.

That is known of subjects that were republished lately. Of another the stream is asked, and what
comes behind it waits, so that copies keep the order of the stream. They are as lossy as core NATS.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.publishing.republishing import Republisher
from holdfast.gateway.jetstream.wire.ports import ClientPort
from holdfast.protocol.errors import HoldfastError, TooLargeError
from holdfast.protocol.limits import MAX_REPUBLISHED_SUBJECTS, MAX_WAITING_REPUBLISHED

logger = logging.getLogger("holdfast.gateway")


class RepublishingQueue:
    """What one stream republishes."""

    def __init__(
        self,
        republisher: Republisher,
        store: ServingStream,
        client: ClientPort,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._republisher = republisher
        self._store = store
        self._client = client
        self._spawn = spawn
        self._last: OrderedDict[str, int] = OrderedDict()
        self._waiting: deque[tuple[str, ServedMessage]] = deque()

    def stored(self, message: ServedMessage) -> None:
        """Republish a message, if its subject is one of those."""
        destination = self._republisher.destination(message.subject)
        if destination is None:
            return
        if self._waiting or message.subject not in self._last:
            if len(self._waiting) < MAX_WAITING_REPUBLISHED:
                self._waiting.append((destination, message))
                if len(self._waiting) == 1:
                    self._spawn(self._send_waiting())
            return
        self._send(destination, message)

    async def _send_waiting(self) -> None:
        """Look up the last seqs of subjects, and republish what waits for them."""
        while self._waiting:
            destination, message = self._waiting[0]
            if message.subject not in self._last:
                self._last[message.subject] = await self._seq_before(message)
            self._waiting.popleft()
            self._send(destination, message)

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
        except TooLargeError as error:
            logger.warning("jetstream.not_republished store=%s reason=%s", self._store.name, error)
