"""Ctrl-C and SIGTERM as a cancellation of the running task, so that everything is cleaned up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Interruption:
    """Which signal came, if one came."""

    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """The shell's convention for a command that a signal ended."""
        return 128 + self.signal if self.signal is not None else 0


@contextmanager
def cancelled_by_signals() -> Iterator[Interruption]:
    """Cancel the calling task on SIGINT, SIGTERM and SIGHUP; tell which one it was.

    A second signal during the cleanup cancels again, which interrupts the cleanup.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    interruption = Interruption()

    def interrupt(number: signal.Signals) -> None:
        interruption.signal = interruption.signal or number
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        yield interruption
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
