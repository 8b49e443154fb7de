"""What a process was started with: its environment, and the cores that it may use. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def timer_slack_ns_of(pid: int) -> int | None:
    """How late the system may end sleeps of a process; None where it does not say that of others.
    """
    try:
        return int(Path(f"/proc/{pid}/timerslack_ns").read_text())
    except OSError:
        return None


@contextmanager
def few_cores() -> Iterator[None]:
    """What this thread starts in the body may run on two cores at most."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
