"""A reader that is behind, as a process of its own:
`python -m holdfast.bench.backfill.reader SIDE URL MIB_PER_SECOND`.

It reads the large stream from its beginning, as fast as it can or as fast as it may, checks each
value, and begins anew at the end. Each second it prints how many bytes it has read in all, until it
is killed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

import uvloop

from holdfast.bench.backfill.sides import VALUE_BYTES, connected_side, value_of

_TOLD_SECONDS: Final = 1.0
_PAUSE_VALUES: Final = 64


async def read(side_name: str, url: str, mib_per_second: float) -> None:
    """Read for ever. Raises AssertionError if a value is wrong."""
    async with connected_side(side_name, url) as side:
        clock = time.monotonic
        began_at, told_at, count = clock(), 0.0, 0
        while True:
            seq = 0
            async for value in side.values():
                seq += 1
                count += 1
                assert value == value_of(seq), f"message {seq} has another value"
                if count % _PAUSE_VALUES:
                    continue
                now = clock()
                if now - told_at >= _TOLD_SECONDS:
                    told_at = now
                    print(count * VALUE_BYTES, now - began_at, flush=True)
                if mib_per_second:
                    due_at = began_at + count * VALUE_BYTES / (mib_per_second * (1 << 20))
                    await asyncio.sleep(max(0.0, due_at - now))


if __name__ == "__main__":
    uvloop.run(read(sys.argv[1], sys.argv[2], float(sys.argv[3])))
