"""How long a durable stream exists: until a time, or for so long after its last use.

The last use is kept in memory, and now and then in the store: a row for each gateway, so none
overwrites what another has recorded. A gateway knows its own uses exactly and those of others to
within a part of the ttl, by which it waits longer: a stream never ends early.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgpack

from holdfast.gateway.http.durable.stream_record import StreamConfig

#: A use is recorded if the last one that was is older than this part of the ttl.
_RECORDED_EACH: Final = 4
#: Rows of gateways that have not used the stream for so many ttls are removed.
_FORGOTTEN_AFTER: Final = 3


@dataclass(frozen=True, slots=True)
class UseRecord:
    """What to change in the store: rows to set, and those to remove."""

    rows: list[tuple[int, bytes]]
    removed: list[int]


@dataclass(slots=True)
class LastUse:
    """When a stream was last used, as this gateway knows it. Times are int milliseconds."""

    #: The number of this gateway's row.
    row: int
    used_ms: int = 0
    recorded_ms: int = 0
    #: By the rows of other gateways: when these recorded a use.
    others: dict[int, int] = field(default_factory=dict)

    def heard(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Take what the store says. Raises ValueError."""
        times = {row: int(msgpack.unpackb(data)) for row, data in rows}
        self.recorded_ms = times.pop(self.row, 0)
        self.used_ms = max(self.used_ms, self.recorded_ms)
        self.others = times

    def to_record(self, config: StreamConfig, now_ms: int) -> UseRecord | None:
        """Note a use now, and return what to record of it, or None."""
        self.used_ms = max(self.used_ms, now_ms)
        if config.ttl_seconds is None:
            return None
        ttl_ms = config.ttl_seconds * 1000
        if now_ms - self.recorded_ms < ttl_ms // _RECORDED_EACH:
            return None
        self.recorded_ms = now_ms
        old_ms = now_ms - _FORGOTTEN_AFTER * ttl_ms
        old = [row for row, used_ms in self.others.items() if used_ms < old_ms]
        return UseRecord([(self.row, msgpack.packb(now_ms))], old)

    def is_over(self, config: StreamConfig, now_ms: int) -> bool:
        """Tell whether the stream has expired."""
        ends_ms = self.ends_ms(config)
        return ends_ms is not None and now_ms >= ends_ms

    def ends_ms(self, config: StreamConfig) -> int | None:
        """Return when the stream expires if nobody uses it until then; None: never."""
        if config.expires_at_ms is not None:
            return config.expires_at_ms
        if config.ttl_seconds is None:
            return None
        ttl_ms = config.ttl_seconds * 1000
        others_ms = max(self.others.values(), default=0)
        slack_ms = ttl_ms // _RECORDED_EACH if others_ms else 0
        used_ms = max(self.used_ms, config.created_ms)
        return max(used_ms + ttl_ms, others_ms + ttl_ms + slack_ms)
