"""Deadlines for what is waited for once the load is over, and what is said of who misses one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.support.supervised_cluster import ClientProcess
from tests.torture.workload import KVS, STREAMS

_CATCH_UP_SECONDS: Final = 60.0
#: A follower that was told to end closes its subscriptions and its connection.
_END_SECONDS: Final = 30.0


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Cancel the body after `seconds`. Raises TimeoutError, which names `what`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"{what} takes longer than {seconds:g} s") from None


async def heard(
    word: str, processes: Sequence[ClientProcess[Any]], seconds: float = _CATCH_UP_SECONDS
) -> None:
    """Wait until all have said `word`. Raises TimeoutError, which tells who has not, and why."""
    try:
        async with asyncio.timeout(seconds):
            for process in processes:
                await process.hear(word)
    except TimeoutError:
        silent = [
            standing(process.task.name, process.said)
            for process in processes
            if word not in process.said
        ]
        raise TimeoutError(f"not {word} within {seconds:g} s: {'; '.join(silent)}") from None


async def all_ended(
    running: Mapping[asyncio.Task[None], ClientProcess[Any]], seconds: float = _END_SECONDS
) -> list[str]:
    """Wait until processes that were told to end have ended, and kill those that do not. Return
    what is wrong: who was killed, and how far it was."""
    _, unfinished = await asyncio.wait(running, timeout=seconds)
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished)
    return [
        f"not ended within {seconds:g} s, so killed: {standing(process.task.name, process.said)}"
        for task, process in running.items()
        if task in unfinished
    ]


def standing(name: str, said: Mapping[str, Any]) -> str:
    """Return a process's name and how far it is: the stores of a follower that caught up, and those
    that did not."""
    if "waiting" not in said:
        return name
    parts = []
    if said["beginning"]:
        parts.append(f"subscribing to {', '.join(said['beginning'])}")
    count = len(STREAMS + KVS)
    caught_up = f"{count - len(said['waiting'])} of {count} stores caught up"
    if said["waiting"]:
        caught_up += f", not {', '.join(said['waiting'])}"
    parts.append(caught_up)
    return f"{name} ({'; '.join(parts)})"
