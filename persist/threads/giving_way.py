"""Giving way: how work that is done in slices lets the loop do what others wait for.

A write takes several turns of the loop: its frame is received, a tick is built, the sync is begun
and heard of, the answer leaves. If a slice of other work ran in each of these turns, the write
would wait for all of them. So a slice is followed by as many turns as a write needs.
"""

from __future__ import annotations

import asyncio
from typing import Final

#: The turns of the loop that a write takes from its arrival to its answer, besides its sync.
WRITE_TURNS: Final = 5


async def give_way() -> None:
    """Let the loop turn as often as a write needs."""
    for _ in range(WRITE_TURNS):
        await asyncio.sleep(0)
