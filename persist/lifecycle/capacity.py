"""How many stores a process may keep open, given its descriptors and the machine's memory.

`fitting` is pure; `raise_descriptors` and `memory_bytes` ask the system.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

#: An open store has its file and its WAL.
_STORE_DESCRIPTORS: Final = 2
#: The log, the fence, the connection.
_OTHER_DESCRIPTORS: Final = 64
#: What an open store takes, with SQLite's cache for a small one: 78 kB measured.
_STORE_BYTES: Final = 100_000
#: Stores get a quarter of the memory. The rest is for other servers, the page cache
#: and larger stores.
_MEMORY_SHARE: Final = 4
#: The limit of a container, where there is one.
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def fitting(wanted: int, *, descriptors: int | None, memory_bytes: int) -> int:
    """Return how many of `wanted` stores may be open: two descriptors each, and a quarter of the
    memory for all of them, but at least one. `descriptors` is None if there is no limit."""
    fits = memory_bytes // _MEMORY_SHARE // _STORE_BYTES
    if descriptors is not None:
        fits = min(fits, (descriptors - _OTHER_DESCRIPTORS) // _STORE_DESCRIPTORS)
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
