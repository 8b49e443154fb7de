"""The cold work that servers with the role `tier` share out: its pieces, by name. Pure.

The coordinator grants each piece to one server at a time, with an epoch
(`coordinator/decisions/claims.py`), and knows no more of it than the name.
"""

from __future__ import annotations

from typing import Final

#: Removing what nothing in the bucket names any more, and log slots that no store needs.
COLLECT: Final = "collect"
#: Removing the logs of dead servers once no store needs them.
REAP: Final = "reap"
#: Snapshots of what dead servers left behind.
CATCH_UP: Final = "catch-up"
#: How many parts the files of stores without an owner are divided into, by the hash of the store.
_SWEEP_PARTS: Final = 8
SWEEPS: Final = tuple(f"sweep-{part}" for part in range(_SWEEP_PARTS))
#: The longest name of a piece, and the most pieces that a server may offer to do.
MAX_WORK_BYTES: Final = 32
MAX_WORKS: Final = 64


def sweep(shard: int) -> str:
    """Return the work that is due for the stores of a shard of the manifests, a number below 256:
    to snapshot those without an owner that lack one, and to let them go cold."""
    return SWEEPS[shard * _SWEEP_PARTS // 256]
