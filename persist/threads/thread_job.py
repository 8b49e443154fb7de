"""A call that a thread makes for a loop, and the way of its outcome into the future of whoever
waits for it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

#: What to call, and the loop and the future that its outcome goes to.
ThreadJob = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


def outcome_of(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call `function`; return its result, or None and what it raised."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 (raised again where it is awaited)
        return None, error


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give an outcome to whoever still waits for it. Call it in the loop of `future`."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
