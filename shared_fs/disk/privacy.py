"""Who may read holdfast's files: only the user that the servers run as.

The servers, and commands that create files, run with a umask that gives files mode 0600 and folders
0700. The umask is used instead of explicit modes, so that a default ACL of a folder (`setfacl -d`)
can still admit others if an operator wants that. Files that an earlier holdfast made more open are
closed at their root: nobody can reach anything below a folder that they may not enter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: Nothing for the group, nothing for others.
UMASK: Final = 0o077
_OTHERS: Final = 0o077
_ACL: Final = "system.posix_acl_access"


@contextmanager
def private_files() -> Iterator[None]:
    """Make files and folders that the body creates private."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> int | None:
    """Return the mode of a folder that other users may enter or read.

    None if they may not, or if an operator set an ACL for it. Raises OSError.
    """
    mode = folder.stat().st_mode & 0o7777
    return mode if mode & _OTHERS and not _has_acl(folder) else None


def tighten(folder: Path) -> None:
    """Close a folder of this user to others. Raises OSError.

    A folder of another user is left to its owner; `holdfast doctor` reports it.
    """
    mode = open_to_others(folder)
    if mode is not None and folder.stat().st_uid == os.geteuid():
        folder.chmod(mode & ~_OTHERS)


def _has_acl(folder: Path) -> bool:
    if not hasattr(os, "listxattr"):
        return False
    try:
        return _ACL in os.listxattr(folder)
    except OSError:
        # A file system without extended attributes has no such ACLs.
        return False
