"""Whose bytes the commit log holds: one tenant must not fill it, so that all others wait.

Pure. The log is bounded, and refuses everybody when it is full, which happens when stores cannot be
made durable as fast as they are written. Once the log is long, a tenant may have as much in it as
is still free, as in `SharedRoom`. So whoever fills it is refused first, and there is always room
for a tenant that has little in it. Nothing is to be set: how long a log may be is the server's
matter, and a share of it that was fixed for each tenant would waste room when only one is busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from holdfast.protocol.limits import KIB, LOG_CAP_BYTES

#: The log refuses all writes above this size.
LOG_FULL_BYTES: Final = 2 * LOG_CAP_BYTES
#: The log is long above this size, which it passes only while checkpoints lag behind.
_LOG_LONG_BYTES: Final = LOG_FULL_BYTES * 3 // 4
#: What a tenant writes in one tick counts from this size on. A smaller one cannot fill the log,
#: and ten thousand of them would fill the memory.
_COUNTED_BYTES: Final = KIB


class LogShares:
    """What the tenants have in the log of one incarnation, about."""

    def __init__(self) -> None:
        self._of_tenants: dict[str, int] = {}
        self._of_segments: dict[int, defaultdict[str, int]] = {}

    def wrote(self, segment: int, oldest_segment: int, written: Iterable[tuple[str, int]]) -> None:
        """Note what one tick wrote, `(tenant, bytes)`, and what segments there are."""
        counts = self._of_segments.get(segment)
        if counts is None:
            for gone in [each for each in self._of_segments if each < oldest_segment]:
                self._forget(self._of_segments.pop(gone))
            counts = self._of_segments[segment] = defaultdict(int)
        for tenant, size_bytes in written:
            if size_bytes >= _COUNTED_BYTES:
                counts[tenant] += size_bytes
                self._of_tenants[tenant] = self._of_tenants.get(tenant, 0) + size_bytes

    def refuses(self, tenant: str, log_bytes: int) -> bool:
        """Tell whether a tenant has more in a log of that length than it may."""
        return (
            log_bytes > _LOG_LONG_BYTES
            and self._of_tenants.get(tenant, 0) > LOG_FULL_BYTES - log_bytes
        )

    def _forget(self, counts: dict[str, int]) -> None:
        for tenant, size_bytes in counts.items():
            left = self._of_tenants[tenant] - size_bytes
            if left:
                self._of_tenants[tenant] = left
            else:
                del self._of_tenants[tenant]
