"""How many threads a nats-server that holdfast starts runs at a time.

nats-server is written in Go, which runs goroutines on as many threads as there are cores, or on two
where a container has less (GOMAXPROCS). JetStream's clients write each message by itself, and on
two cores that wakes the second thread for nearly every one; it takes a core that the client, the
gateway or the owner needs. With one thread a message costs nats-server half as much, because those
that come close together are read, and leave, together. docs/decisions/108 has the figures.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_VARIABLE: Final = "GOMAXPROCS"
#: With at most so many cores. Nothing was measured on more, where one thread would also bound what
#: nats-server can carry.
FEW_CORES: Final = 2
#: What a container may use, where cgroups of version 2 limit it: `QUOTA PERIOD` in microseconds, or
#: `max PERIOD`. It sees its own limit there, which is the one that Go reads as well.
_CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def nats_server_environment(
    environment: Mapping[str, str], cores: float, *, gateway: bool
) -> dict[str, str]:
    """Return what to add to `environment` for a nats-server, pure.

    `cores` is how many it may use, beside all other processes of its host, and `gateway` whether it
    carries messages to a JetStream gateway: clients of holdfast write many operations at once, and
    gain nothing. A user who has set GOMAXPROCS, also to nothing, has decided.
    """
    if not gateway or _VARIABLE in environment or cores > FEW_CORES:
        return {}
    return {_VARIABLE: "1"}


def nats_server_threads(
    environment: Mapping[str, str], cores: float, *, gateway: bool
) -> int | None:
    """Return the number of threads that such a nats-server is told; None leaves it to Go. Pure."""
    added = nats_server_environment(environment, cores, gateway=gateway)
    told = added.get(_VARIABLE) or environment.get(_VARIABLE, "")
    # As Go reads it: what is no number above 0 counts for nothing.
    return int(told) or None if told.isdecimal() else None


def usable_cores() -> float:
    """Return how many cores this process and its children may use at a time: those that it may run
    on, or its container's share of processor time if that is less."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota = cores_of_quota(_CGROUP_QUOTA.read_text())
    except OSError:
        return cores
    return cores if quota is None else min(cores, quota)


def cores_of_quota(text: str) -> float | None:
    """Return the cores that a cgroup's `cpu.max` allows, or None if it sets no limit. Pure."""
    match text.split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            return int(quota) / int(period)
    return None
