"""Tests wait for what they know will be, and say what it was if it never comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_SECONDS = 40.0


async def until(
    holds: Callable[[], object], what: str = "it is so", *, seconds: float = DEADLINE_SECONDS
) -> None:
    """Return once `holds()` is true."""

    async def looked() -> object:
        return holds()

    await eventually(looked, what, seconds=seconds)


async def eventually(
    holds: Callable[[], Awaitable[object]], what: str, *, seconds: float = DEADLINE_SECONDS
) -> None:
    """Return once what `holds` asks for is true."""
    try:
        async with asyncio.timeout(seconds):
            while not await holds():
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"waited in vain until {what}") from error
