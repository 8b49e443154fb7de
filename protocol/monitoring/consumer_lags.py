"""How far consumers are behind, counted up seldom: some clusters have very many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

#: How long a count counts as new.
_COUNTED_MS: Final = 5000


class Lags(NamedTuple):
    """The lags of all consumers of one part."""

    consumers: int = 0
    #: Messages that are not acknowledged: of all consumers, and of the one with the most.
    messages: int = 0
    longest: int = 0


class ConsumerLags:
    """The lags of a part's consumers, as they were some seconds ago."""

    def __init__(self, read: Callable[[], Iterable[int]], clock_ms: Callable[[], int]) -> None:
        """`read` returns how many messages each consumer has not acknowledged."""
        self._read = read
        self._clock_ms = clock_ms
        self._counted_at = -_COUNTED_MS
        self._lags = Lags()

    def now(self) -> Lags:
        """Return them, counted anew if the last count is old."""
        now = self._clock_ms()
        if abs(now - self._counted_at) >= _COUNTED_MS:
            self._counted_at = now
            lags = list(self._read())
            self._lags = Lags(len(lags), sum(lags), max(lags, default=0))
        return self._lags
