"""A process that takes of the machine what a backfill takes of it beside the server:
`python -m holdfast.bench.backfill.burner SHARE BYTES_PER_SECOND FILE`.

It uses SHARE of a processor, and reads so many bytes a second of a file of its own that has left
memory, in short slices, until it is killed. It talks to nobody. So what those at the tail notice of
it is the machine's, not the server's.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

#: About what a client needs for a page of 64 KiB.
_SLICE_SECONDS: Final = 0.004
#: What it is late by is made up for, up to this.
_MOST_LATE_SECONDS: Final = 0.1
#: A server fetches so much ahead at a time.
_MOST_BYTES: Final = 4 << 20


def burn(share: float, bytes_per_second: float, path: Path) -> None:
    """Burn for ever. `path` is not read if no bytes are wanted."""
    clock, used = time.monotonic, time.process_time
    began_at, began_used = clock(), used()
    descriptor = os.open(path, os.O_RDONLY) if bytes_per_second else -1
    read_bytes = 0
    while True:
        seconds = clock() - began_at
        if descriptor >= 0:
            read_bytes += _read(descriptor, read_bytes, int(seconds * bytes_per_second))
        # A process that was held up does not take the whole processor afterwards.
        late_seconds = share * seconds - (used() - began_used)
        began_used -= max(0.0, late_seconds - _MOST_LATE_SECONDS)
        while used() - began_used < share * seconds:
            pass
        time.sleep(_SLICE_SECONDS)


def _read(descriptor: int, start: int, end: int) -> int:
    """Read the bytes from `start` to `end`, as if the file had no end, and let them leave memory
    again. Return how many there were."""
    size_bytes = os.fstat(descriptor).st_size
    offset = start % size_bytes
    count = min(end - start, size_bytes - offset, _MOST_BYTES)
    found = len(os.pread(descriptor, count, offset))
    os.posix_fadvise(descriptor, offset, found, os.POSIX_FADV_DONTNEED)
    return found


if __name__ == "__main__":
    burn(float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
