"""The cold work that servers share out: its pieces, by name. Pure.

Servers with the role `tier` have those that concern files and objects, and servers with the role
`archive` in each zone have parts of the archived history. The coordinator grants each piece to one
server at a time, with an epoch (`coordinator/decisions/claims.py`), and knows no more of it than
the name.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
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
#: How many parts the archived history is divided into for each zone, by the hash of stream and day:
#: as many servers of a zone can read it.
ARCHIVE_PARTS: Final = 32
#: The longest name of a piece, and the most pieces that a server may offer to do.
MAX_WORK_BYTES: Final = 32
MAX_WORKS: Final = 64


def sweep(shard: int) -> str:
    """Return the work that is due for the stores of a shard of the manifests, a number below 256:
    to snapshot those without an owner that lack one, and to let them go cold."""
    return SWEEPS[shard * _SWEEP_PARTS // 256]


@lru_cache(maxsize=64)
def archive_works(zone: str) -> tuple[str, ...]:
    """Return the parts of the archived history that servers of a zone read for its owners."""
    # A zone may have a longer name than a piece of work.
    mark = blake2b(zone.encode(), digest_size=4).hexdigest()
    return tuple(f"archive-{mark}-{part}" for part in range(ARCHIVE_PARTS))


def archive_work(zone: str, stream: str, day: int) -> str:
    """Return the part that messages of a stream of one day belong to."""
    text = f"{day}\n{stream}".encode(errors="surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=4).digest(), "big")
    return archive_works(zone)[number % ARCHIVE_PARTS]


assert len(SWEEPS) + 3 + ARCHIVE_PARTS <= MAX_WORKS
