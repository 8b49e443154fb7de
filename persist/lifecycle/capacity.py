"""How many stores a process may keep open, given its descriptors and the machine's memory.

`fitting` is pure; `raise_descriptors` and `memory_bytes` ask the system.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from holdfast.protocol.limits import MAX_AWAKE_FILES

#: An open store has its file and its WAL. While its file rests (`resting.py`), it has one lock.
_STORE_DESCRIPTORS: Final = 2
#: So many files have a connection at most, with room for those that were just used: `resting.py`
#: lets them rest four times a second, and connecting to one takes 0.4 ms.
_MOST_AWAKE_FILES: Final = 3 * MAX_AWAKE_FILES
#: The log, the fence, the connection.
_OTHER_DESCRIPTORS: Final = 64
#: What an open store takes, with SQLite's cache for a small one: 78 kB measured.
_STORE_BYTES: Final = 100_000
#: Stores get a quarter of the memory. The rest is for other servers, the page cache
#: and larger stores.
_MEMORY_SHARE: Final = 4
#: The limit of a container, where there is one.
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def fitting(
    wanted: int, *, descriptors: int | None, memory_bytes: int, files_rest: bool = True
) -> int:
    """Return how many of `wanted` stores may be open: so many that their descriptors fit, and a
    quarter of the memory for all of them, but at least one. `descriptors` is None if there is no
    limit. Without `files_rest`, the file of each open store keeps its connection."""
    fits = memory_bytes // _MEMORY_SHARE // _STORE_BYTES
    if descriptors is not None:
        free = descriptors - _OTHER_DESCRIPTORS
        with_two = free // _STORE_DESCRIPTORS
        if files_rest and with_two > _MOST_AWAKE_FILES:
            with_two = free - (_STORE_DESCRIPTORS - 1) * _MOST_AWAKE_FILES
        fits = min(fits, with_two)
    return max(1, min(wanted, fits))


def raise_descriptors(stores: int) -> int | None:
    """Raise the process's limit of descriptors as far as allowed, and return it, or None if there
    is no limit. A privileged process raises it to what `stores` open stores need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_DESCRIPTORS + _STORE_DESCRIPTORS * stores
    if hard != resource.RLIM_INFINITY and hard < needed:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
            return needed
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def memory_bytes() -> int:
    """Return the memory of this machine, or the container's limit if that is lower."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdecimal() else machine
