"""The blocks that a server has in its memory: which stay, and which go. Pure.

Invariants:

- The blocks have at most `limit_bytes` in all. What was not used for the longest time goes first.
- A block that nobody used for IDLE_SECONDS goes, and any block after MAX_AGE_SECONDS: nobody pays
  for what was read yesterday, and an erasure leaves nothing here for longer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from holdfast.protocol.limits import CACHE_BLOCK_BYTES, CACHE_IDLE_SECONDS, CACHE_MAX_AGE_SECONDS

_Place = tuple[str, int]
#: What an entry takes besides its bytes.
_ENTRY_BYTES: Final = 512


@dataclass(slots=True)
class _Block:
    body: bytes
    made_at: float
    used_at: float

    def is_old(self, now: float) -> bool:
        return (
            self.used_at <= now - CACHE_IDLE_SECONDS or self.made_at <= now - CACHE_MAX_AGE_SECONDS
        )


class BlockMemory:
    """Blocks by key and number, the least recently used one first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: OrderedDict[_Place, _Block] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, key: str, number: int, now: float) -> bytes | None:
        """Return a block, or None."""
        found = self._blocks.get((key, number))
        if found is None or found.is_old(now):
            return None
        found.used_at = now
        self._blocks.move_to_end((key, number))
        return found.body

    def keep(self, key: str, first: int, body: bytes, now: float) -> None:
        """Keep what was read from the start of block `first` on: whole blocks, or up to the
        object's end."""
        for at in range(0, len(body), CACHE_BLOCK_BYTES):
            place = key, first + at // CACHE_BLOCK_BYTES
            self._remove(place)
            part = body[at : at + CACHE_BLOCK_BYTES]
            self._blocks[place] = _Block(part, now, now)
            self.size_bytes += len(part) + _ENTRY_BYTES
        while self.size_bytes > self._limit_bytes:
            self._remove(next(iter(self._blocks)))

    def drop(self, key: str) -> None:
        """Remove what is kept of an object: a reader found that it is wrong."""
        for place in [place for place in self._blocks if place[0] == key]:
            self._remove(place)

    def expire(self, now: float) -> None:
        """Remove what was kept for too long."""
        for place in [place for place, block in self._blocks.items() if block.is_old(now)]:
            self._remove(place)

    def validate(self) -> None:
        """Check the invariants. Raises AssertionError."""
        sizes = [len(block.body) + _ENTRY_BYTES for block in self._blocks.values()]
        assert sum(sizes) == self.size_bytes
        assert self.size_bytes <= self._limit_bytes
        used = [block.used_at for block in self._blocks.values()]
        assert used == sorted(used)

    def _remove(self, place: _Place) -> None:
        found = self._blocks.pop(place, None)
        if found is not None:
            self.size_bytes -= len(found.body) + _ENTRY_BYTES
