"""What a run needs of the machine, asked before anything is made."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from holdfast.cli.cluster.nats_binary import MissingNatsServerError, find_nats_server
from tests.hosts.file_systems.file_system import LocalFileSystem

#: Programs, and the Debian packages that have them.
_PROGRAMS: Final = {
    "ip": "iproute2",
    "ss": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "pgrep": "procps",
}


def missing(file_system: type[LocalFileSystem]) -> list[str]:
    """Return what is missing, as sentences."""
    if not sys.platform.startswith("linux"):
        return ["it needs Linux"]
    found = [] if os.geteuid() == 0 else ["it needs root, for namespaces and mounts"]
    found += [
        f"there is no program {program} (Debian: apt install {package})"
        for program, package in (_PROGRAMS | file_system.programs).items()
        if shutil.which(program) is None
    ]
    if file_system.has_server and not Path("/dev/fuse").exists():
        found.append("there is no /dev/fuse")
    try:
        find_nats_server()
    except MissingNatsServerError as error:
        found.append(str(error))
    return found
