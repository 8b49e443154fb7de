"""When a store is snapshotted, and when its file may leave the file system. Pure.

No store has a timer of its own: snapshots of 10,000 stores every minute would cost five times as
much as the log of the same cluster. A store is snapshotted after it was closed because nobody uses
it, while it is open if much of it has changed or it has been behind for long (`behind.py`), and on
request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.protocol.limits import ARCHIVE_LOOK_SECONDS, MIB
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy

#: When the file system is nearly full, a file that is unchanged for this long goes cold.
_PRESSED_COLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Extent:
    """What is known of a store without reading its file."""

    revision: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What an operator may choose."""

    #: How long closed stores wait for others, to share requests with them. A pass of a thousand
    #: stores changes all 256 shards of the manifests, and so does one of ten thousand: at most
    #: two puts a second.
    snapshot_seconds: float = 120.0
    #: An open store is snapshotted when at least this share of it, and this many
    #: bytes, have changed.
    change_ratio: float = 0.5
    min_change_bytes: int = MIB
    #: The bucket lacks no change for longer than this, of open stores too (`behind.py`).
    max_lag_seconds: float = 300.0
    #: A file goes cold when it has not changed for this long.
    cold_after_seconds: float = 86_400.0
    #: Below this share of free space, files go cold as early as they can.
    min_free_ratio: float = 0.1
    #: How often open stores are checked for messages to archive.
    archive_look_seconds: float = ARCHIVE_LOOK_SECONDS
    keep: KeepPolicy = field(default_factory=KeepPolicy)

    def cold_seconds(self, free_ratio: float) -> float:
        """Return how long a file must have been unchanged to go cold now."""
        if free_ratio < self.min_free_ratio:
            return min(self.cold_after_seconds, _PRESSED_COLD_SECONDS)
        return self.cold_after_seconds

    def sweep_seconds(self) -> float:
        """Return the pause between two sweeps: each one reads every folder."""
        return max(0.25, min(3600.0, self.cold_after_seconds / 2))

    def has_changed_enough(self, now: Extent, snapshot: Extent) -> bool:
        """Tell if an open store has changed enough since its newest snapshot to need another."""
        changed = changed_bytes(now, snapshot)
        return changed >= max(self.min_change_bytes, self.change_ratio * now.bytes)


def changed_bytes(now: Extent, since: Extent) -> int:
    """Return about how many bytes of a store were written since then.

    Each revision counts as one message or entry of mean size, because overwriting a kv again and
    again changes much and adds nothing. The result is at least what was added.
    """
    mean = now.bytes / now.count if now.count else 0.0
    return max(int((now.revision - since.revision) * mean), now.bytes - since.bytes, 0)
