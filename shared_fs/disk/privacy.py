"""Who may read what holdfast keeps: the user that the servers run as, and nobody else.

The servers, and commands that make files, run with a umask under which files are 0600 and folders
0700. Modes are left to the umask, and not given to each file, so that a default ACL of a folder
(`setfacl -d`) still lets others in where an operator wants that. What an earlier holdfast made more
openly is closed at its root: a folder that nobody may enter hides all that is below it.
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
    """Make files and folders of this process private while the body runs."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> int | None:
    """Return the mode of a folder that other users may enter or read; None if they may not, or if
    an operator has said by an ACL who may. Raises OSError."""
    mode = folder.stat().st_mode & 0o7777
    return mode if mode & _OTHERS and not _has_acl(folder) else None


def tighten(folder: Path) -> None:
    """Close a folder of this user's to others. What belongs to another user is left to its owner,
    and `holdfast doctor` tells of it. Raises OSError."""
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
