"""One direction of a cable that delays frames and loses some. Pure: `now` is passed in."""

from __future__ import annotations

import random
from collections import deque
from typing import Final

#: As many frames as a switch may hold; what comes on top is lost. At 100 ms this is 80 MB/s.
CAPACITY_FRAMES: Final = 5_000


class Wire:
    """Frames enter by `put` and leave by `due`, in the same order, all after the same delay."""

    def __init__(self, delay_seconds: float, loss_ratio: float, seed: int) -> None:
        self.lost_count = 0
        self._delay_seconds = delay_seconds
        self._loss_ratio = loss_ratio
        self._random = random.Random(seed)
        self._frames: deque[tuple[float, bytes]] = deque()

    @property
    def next_at(self) -> float | None:
        """When the next frame leaves; None while there is none."""
        return self._frames[0][0] if self._frames else None

    def put(self, frame: bytes, now: float) -> None:
        """Take a frame, or lose it."""
        # Drawn for every frame: which ones are lost depends on the seed and their order alone.
        is_lost = self._random.random() < self._loss_ratio
        if is_lost or len(self._frames) >= CAPACITY_FRAMES:
            self.lost_count += 1
        else:
            self._frames.append((now + self._delay_seconds, frame))

    def due(self, now: float) -> list[bytes]:
        """Remove and return the frames whose time has come."""
        found = []
        while self._frames and self._frames[0][0] <= now:
            found.append(self._frames.popleft()[1])
        return found
