"""Cancellations that nats-py loses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise CancelledError at the end of the body if the task was cancelled within, and the body
    has taken no notice.

    nats-py waits with `asyncio.wait_for`. On Python 3.11 that forgets a cancellation that comes in
    the turn of the loop in which the wait ends, and some of nats-py's own handlers forget others.
    Then a deadline passes without effect, and a task that was told to end goes on for ever.
    """
    task = asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    before_count = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before_count:
            raise asyncio.CancelledError
