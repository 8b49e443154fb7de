"""When a store is snapshotted, and when its file may leave the file system. Pure.

Nothing here is on a timer of its own for each store: snapshots of 10,000 stores a minute would cost
five times what the log of the same cluster costs. A store is snapshotted when it has been closed,
since nobody uses it; while it is open, when much of it has changed; and when somebody asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.protocol.limits import ARCHIVE_LOOK_SECONDS, MIB
from holdfast.shared_fs.snapshots.manifest import KeepPolicy

#: When the file system is nearly full, whatever was not changed for so long goes cold.
_PRESSED_COLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Extent:
    """What is known of a store without looking at its file."""

    revision: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What an operator may choose."""

    #: Closed stores wait so long for others, to share requests with them: a pass of a thousand
    #: changes all 256 shards of the manifests, and one of ten thousand no more. So two puts a
    #: second at the most.
    snapshot_seconds: float = 120.0
    #: An open store is snapshotted when so large a share of it has changed, and at least so much.
    change_ratio: float = 0.5
    min_change_bytes: int = MIB
    #: A file that was not changed for so long goes cold.
    cold_after_seconds: float = 86_400.0
    #: Below this share of free space files go cold as early as they can.
    min_free_ratio: float = 0.1
    #: How often open stores are looked at for messages that may leave for the archive.
    archive_look_seconds: float = ARCHIVE_LOOK_SECONDS
    keep: KeepPolicy = field(default_factory=KeepPolicy)

    def cold_seconds(self, free_ratio: float) -> float:
        """Return for how long a file must have been unchanged to go cold now."""
        if free_ratio < self.min_free_ratio:
            return min(self.cold_after_seconds, _PRESSED_COLD_SECONDS)
        return self.cold_after_seconds

    def sweep_seconds(self) -> float:
        """Return how often the files are looked through: each walk reads every folder."""
        return max(0.25, min(3600.0, self.cold_after_seconds / 2))

    def has_changed_enough(self, now: Extent, snapshot: Extent) -> bool:
        """Tell if an open store has changed enough since its newest snapshot for another."""
        changed = changed_bytes(now, snapshot)
        return changed >= max(self.min_change_bytes, self.change_ratio * now.bytes)


def changed_bytes(now: Extent, since: Extent) -> int:
    """Return about how many bytes of a store have been written since.

    Each revision counts as one message or entry of mean size: overwriting a kv again and again
    changes much and adds nothing. What was added counts at least.
    """
    mean = now.bytes / now.count if now.count else 0.0
    return max(int((now.revision - since.revision) * mean), now.bytes - since.bytes, 0)
