"""How stale an export may be: what the servers say of the changes that the bucket lacks.

The marks (`lag_marks.py`) are read before the manifests, so the manifests have at least what the
marks say. A server whose mark is overdue is silent: it has died, or cannot reach the bucket. What
it acknowledged since is unknown until another server has looked for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.shared_fs.snapshots.lag_marks import LagMark


@dataclass(frozen=True, slots=True)
class Staleness:
    """What an export that begins at a certain time may lack."""

    #: How many stores have changes that the bucket lacks, as their servers last said.
    behind: int = 0
    #: The age of the oldest of these changes at most; 0 if there is none.
    oldest_unexported_seconds: float = 0.0
    #: The bucket has every change before this time, in milliseconds since the epoch; None if no
    #: server says so, as with `--disk local`, where the log in the bucket has all changes.
    complete_until: int | None = None
    #: How long the servers let a change wait at most; 0 without servers.
    lag_bound_seconds: float = 0.0
    #: Servers that have not said more for longer than they should.
    silent_servers: list[str] = field(default_factory=list)

    @property
    def is_stale(self) -> bool:
        """Tell if more is missing than the servers' bound allows."""
        is_late = self.oldest_unexported_seconds > self.lag_bound_seconds
        return bool(self.silent_servers) or is_late


def staleness(marks: Iterable[LagMark], now_ms: int) -> Staleness:
    """Return what an export that begins now may lack."""
    found = list(marks)
    silent = [mark for mark in found if mark.is_overdue(now_ms)]
    lacking = [mark for mark in found if mark.behind or mark in silent]
    oldest_ms = max((now_ms - mark.complete_until for mark in lacking), default=0)
    return Staleness(
        behind=sum(mark.behind for mark in found),
        oldest_unexported_seconds=max(0, oldest_ms) / 1000,
        complete_until=min((mark.complete_until for mark in found), default=None),
        lag_bound_seconds=max((mark.bound_ms for mark in found), default=0) / 1000,
        silent_servers=sorted({mark.server for mark in silent}),
    )
