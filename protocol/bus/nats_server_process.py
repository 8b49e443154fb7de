"""How a nats-server that holdfast starts runs: on how many threads, and how exactly it sleeps.

nats-server is written in Go, which runs goroutines on as many threads as there are cores, or on two
where a container has less (GOMAXPROCS). On two cores the second thread is woken for nearly every
message, and takes a core that the client, the gateway or the owner needs. With one, those that come
close together are read, and leave, together. docs/decisions/108 has the figures.

Besides, a thread of Go's watches the others (`sysmon` in runtime/proc.go). While anything runs it
sleeps for 20 µs at a time, to take work from a thread that the system holds up. On two cores that
was a fifth of nats-server's processor time, and each look interrupts another process. Linux ends
sleeps late, by up to the timer slack of a thread (prctl(2)), which is 50 µs and passes to threads
and programs that it starts. With 1 ms the watch is kept as well as one thread needs it. Two threads
need it as it is: one that looks for work sleeps for 3 µs between looks. docs/decisions/115 has the
figures.

As a script this starts a program with a timer slack: `python nats_server_process.py NANOSECONDS
PROGRAM ARGUMENT ...`. It runs without site packages, and becomes the program, which keeps its id.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_VARIABLE: Final = "GOMAXPROCS"
#: With at most so many cores. Nothing was measured on more, where one thread would also bound what
#: nats-server can carry.
FEW_CORES: Final = 2
_TIMER_SLACK_NS: Final = 1_000_000
_PR_SET_TIMERSLACK: Final = 29
#: What a container may use, where cgroups of version 2 limit it: `QUOTA PERIOD` in microseconds, or
#: `max PERIOD`. It sees its own limit there, which is the one that Go reads as well.
_CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def nats_server_environment(environment: Mapping[str, str], cores: float) -> dict[str, str]:
    """Return what to add to `environment` for a nats-server without JetStream, pure.

    `cores` is how many it may use, beside all other processes of its host. A user who has set
    GOMAXPROCS, also to nothing, has decided.
    """
    if _VARIABLE in environment or cores > FEW_CORES:
        return {}
    return {_VARIABLE: "1"}


def nats_server_threads(environment: Mapping[str, str], cores: float) -> int | None:
    """Return the number of threads that such a nats-server is told; None leaves it to Go. Pure."""
    added = nats_server_environment(environment, cores)
    told = added.get(_VARIABLE) or environment.get(_VARIABLE, "")
    # As Go reads it: what is no number above 0 counts for nothing.
    return int(told) or None if told.isdecimal() else None


def nats_server_command(
    command: Sequence[str], environment: Mapping[str, str], cores: float
) -> list[str]:
    """Return the command that runs such a nats-server: with a timer slack of a millisecond where it
    has one thread, on Linux. Pure."""
    if nats_server_threads(environment, cores) != 1 or not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(_TIMER_SLACK_NS), *command]


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


def _main(arguments: Sequence[str]) -> None:
    slack_ns, command = int(arguments[0]), list(arguments[1:])
    import ctypes

    # A sandbox that refuses it leaves nats-server as it always was.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1:])
