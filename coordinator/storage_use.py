"""Which calls of the storage are under way, and for how long: a mount that hangs shows in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class StorageUse:
    """The calls of one coordinator that should end within moments."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began_at: list[float] = []

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Count the body as such a call."""
        began_at = self._now()
        self._began_at.append(began_at)
        try:
            yield
        finally:
            self._began_at.remove(began_at)

    def longest_seconds(self) -> float:
        """Return for how long the oldest call has lasted; 0 if there is none."""
        return self._now() - min(self._began_at) if self._began_at else 0.0
