"""Start a program that dies with its parent: `python die_with_parent.py PARENT_PID PROGRAM ...`.

The script asks Linux for a SIGKILL when the parent ends, however it ends, and then becomes the
program (`exec` keeps the request). It asks for SIGKILL, because nobody is left to follow up on a
SIGTERM after the parent was killed. On other systems `tethered` returns the command as it is, and a
killed parent leaves its children behind.

It runs as a plain script without site packages, because it precedes each start of each part.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9


def tethered(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` tied to the calling process."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _main(arguments: Sequence[str]) -> None:
    parent_pid, command = int(arguments[0]), list(arguments[1:])
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
    if os.getppid() != parent_pid:
        # The parent ended before the request was made, so no signal would ever come.
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1:])
