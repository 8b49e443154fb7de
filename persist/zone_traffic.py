"""What crosses zones between a server and its clients, in bytes. Pure.

Broadcasts are not counted: a server publishes each once, and NATS knows who gets it.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import LabelledCounters, Statistics
from holdfast.protocol.work.zones import zone_of_reply

# The values of the label `zone`: where the client is.
SAME: Final = "same"
ANOTHER: Final = "another"
UNTOLD: Final = "untold"


class ZoneTraffic:
    """Counts the bytes between one server and its clients, by where they are. Without a zone of
    its own, a server counts nothing."""

    def __init__(self, zone: str, statistics: Statistics) -> None:
        self._zone = zone
        self._requests: LabelledCounters | None = None
        self._replies: LabelledCounters | None = None
        if zone:
            self._requests = statistics.counters(metrics.REQUEST_BYTES)
            self._replies = statistics.counters(metrics.REPLY_BYTES)

    def request(self, reply: str, size_bytes: int) -> None:
        """Count a request that is to be answered on `reply`."""
        if self._requests is not None:
            self._requests.add(self._place(reply), size_bytes)

    def reply(self, reply: str, size_bytes: int) -> None:
        """Count an answer."""
        if self._replies is not None:
            self._replies.add(self._place(reply), size_bytes)

    def _place(self, reply: str) -> str:
        zone = zone_of_reply(reply)
        if not zone:
            return UNTOLD
        return SAME if zone == self._zone else ANOTHER
