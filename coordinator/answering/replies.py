"""Replies that wait to be sent. Each is packed when it is added, so one
that cannot be packed fails alone."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import HoldfastError, TooLargeError, internal_error
from holdfast.protocol.frames import encode_control, encode_control_error
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.coordinator")

#: Refusals that may wait to be sent. Further ones are dropped, and their senders time out.
MAX_WAITING_REFUSALS: Final = 16384


class Replies:
    """The replies of one active coordinator, in order."""

    def __init__(
        self, bus: Bus, cluster: str, mishaps: Mishaps, wakeup: Wakeup, statistics: Statistics
    ) -> None:
        self._bus = bus
        self._cluster = cluster
        self._mishaps = mishaps
        self._wakeup = wakeup
        self._packed: deque[tuple[str, bytes]] = deque()
        self._losing = Trouble(logger, "coordinator.reply_lost")
        self._answered = statistics.counter(metrics.REQUESTS)
        self._errors = statistics.counters(metrics.ERRORS)

    def add(self, reply_to: str, reply: Reply) -> None:
        """Answer a request that was taken from the inbox."""
        self._answered.value += 1
        try:
            if isinstance(reply, HoldfastError):
                self._errors.add(reply.code)
                payload = encode_control_error(reply, cluster=self._cluster)
            else:
                payload = encode_control(cluster=self._cluster, **reply)
        except Exception as cause:  # noqa: BLE001 (what cannot be packed fails alone)
            self._mishaps.note("coordinator.reply_failed", reply_to, cause)
            payload = encode_control_error(internal_error("a reply", cause))
        limit_bytes = self._bus.max_payload_bytes
        if len(payload) > limit_bytes:
            error = TooLargeError(what="reply", size=len(payload), limit=limit_bytes)
            payload = encode_control_error(error)
        self._packed.append((reply_to, payload))
        self._wakeup.set()

    def tell(self, subject: str, **fields: object) -> None:
        """Send something that nobody asked for, before the replies that are added later."""
        self._packed.append((subject, encode_control(cluster=self._cluster, **fields)))

    def refuse(self, reply_to: str, error: HoldfastError) -> None:
        """Answer a request that was not taken, unless too many replies wait already."""
        if len(self._packed) < MAX_WAITING_REFUSALS:
            self.add(reply_to, error)

    async def send(self) -> None:
        """Send all replies that wait."""
        while self._packed:
            subject, payload = self._packed.popleft()
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_SECONDS):
                    await self._bus.publish(subject, payload)
            except TimeoutError:
                # The client asks again, as after any lost reply.
                self._losing.note("subject=%s", subject)
            else:
                self._losing.over()
