"""The times at which consumers want to be looked at: one timer for all of a stream.

Consumers move their times with each event, mostly later. So an alarm that is set earlier than
needed is left alone, and set anew when it rings.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumers.ledger import NEVER

#: Later times are looked at again then: a timer counts the seconds of the loop, not of the clock.
_LONGEST_MS: Final = 3_600_000


class Alarms:
    """The alarms of one stream's consumers. `ring` is called for each that is due, and sets the
    next one."""

    def __init__(self, now_ms: Callable[[], int], ring: Callable[[ServedConsumer], None]) -> None:
        self._now_ms = now_ms
        self._ring = ring
        self._heap: list[tuple[int, int, ServedConsumer]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def set(self, consumer: ServedConsumer, at_ms: int) -> None:
        """Let it ring for a consumer at this time, or before."""
        if at_ms >= consumer.alarm_at or consumer.gone:
            return
        consumer.alarm_at = at_ms
        heappush(self._heap, (at_ms, next(self._order), consumer))
        if at_ms < self._timer_at:
            self._start()

    def close(self) -> None:
        """Ring no more."""
        self._heap.clear()
        self._start()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = self._heap[0][0] if self._heap else NEVER
        if self._timer_at != NEVER:
            delay_ms = min(max(0, self._timer_at - self._now_ms()), _LONGEST_MS)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        # While it rings, nobody starts the timer.
        self._timer_at = -1
        now = self._now_ms()
        heap = self._heap
        due = []
        while heap and heap[0][0] <= now:
            at_ms, _, consumer = heappop(heap)
            if consumer.alarm_at == at_ms and not consumer.gone:
                consumer.alarm_at = NEVER
                due.append(consumer)
        try:
            for consumer in due:
                self._ring(consumer)
        finally:
            self._start()
