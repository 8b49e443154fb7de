"""A process tree with namespaces of its own, that leaves nothing behind.

When the first process of a pid namespace ends, however it ends, the kernel kills all others of it,
daemons among them; and with the last one the network, the namespaces of hosts and the mounts
vanish. The first process ends with its parent. So nothing needs to be torn down.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from types import FrameType
from typing import Final

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWPID: Final = 0x20000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_isolated(main: Callable[[], int]) -> int:
    """Run `main` in such a tree. Return its exit code in this process, and in the child that has
    run it as well, which exits with it. Raises OSError without the rights."""
    _call("unshare", _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWPID)
    first = os.fork()
    if first:
        return _wait_for(first)
    _enter()
    # The first process inherits what daemons leave behind, and has to bury it: a daemon that was
    # killed counts as running as long as it is a zombie.
    child = os.fork()
    if child:
        os._exit(_wait_for(child))
    return main()


def _wait_for(child: int) -> int:
    """Pass on signals to a child until it ends, and return its exit code, as a shell has it."""

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    while True:
        pid, status = os.wait()
        if pid == child:
            exit_code = os.waitstatus_to_exitcode(status)
            return exit_code if exit_code >= 0 else 128 - exit_code


def _enter() -> None:
    """Make the first process of the namespaces at home in them."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Ctrl-C in a terminal reaches the outer process alone, which passes it on.
    os.setsid()
    for command in (
        "mount --make-rprivate /",
        "mount -t proc proc /proc",
        # Daemons keep their sockets here, and `ip` the namespaces.
        "mount -t tmpfs tmpfs /run",
        "ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)


def _call(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
