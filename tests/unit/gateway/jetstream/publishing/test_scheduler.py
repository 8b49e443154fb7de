"""Which schedules of a stream a gateway knows of."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.headers import build
from holdfast.gateway.jetstream.publishing.scheduler import ScheduleListener, Scheduler
from holdfast.protocol.limits import MAX_INTEGER

_NOW_MS = 1_800_000_000_000


class _Listener(ScheduleListener):
    def stored(self, message: ServedMessage) -> None: ...

    def in_doubt(self) -> None: ...

    def deposed(self) -> None: ...

    def now_ms(self) -> int:
        return _NOW_MS

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


def _schedule(seq: int, hours: int) -> ServedMessage:
    block = build([("Nats-Schedule", f"@every {hours}h"), ("Nats-Schedule-Target", "target")])
    return ServedMessage(seq, "s", _NOW_MS, block, b"")


async def test_a_schedule_that_is_heard_of_late_does_not_replace_a_newer_one() -> None:
    """The answer to its append was lost, and came when it was asked for again."""
    scheduler = Scheduler(ServingStream.__new__(ServingStream), _Listener())
    scheduler.heard(_schedule(2, 5))
    scheduler.heard(_schedule(1, 1))
    [due] = scheduler._due.take(MAX_INTEGER)
    assert (due.seq, due.due_ms) == (2, _NOW_MS + 5 * 3_600_000)
    # One that comes later does.
    scheduler.heard(_schedule(3, 5))
    scheduler.heard(_schedule(4, 1))
    [due] = scheduler._due.take(MAX_INTEGER)
    assert (due.seq, due.due_ms) == (4, _NOW_MS + 3_600_000)
    scheduler.close()
