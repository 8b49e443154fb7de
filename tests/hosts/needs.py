"""What a run needs of the machine, asked before anything is made."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.cli.cluster.nats_binary import MissingNatsServerError, find_nats_server
from tests.hosts.faults import HostFault
from tests.hosts.file_systems.file_system import LocalFileSystem
from tests.hosts.slow_link import TUN

#: Programs, and the Debian packages that have them.
_PROGRAMS: Final = {
    "ip": "iproute2",
    "ss": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "pgrep": "procps",
}
#: What a run begins with.
_ISOLATION: Final = (
    *("unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c"),
    "mount --make-rprivate / && mount -t tmpfs tmpfs /run && ip netns add probe",
)


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
    return found or _missing_rights()


def impossible(kinds: Iterable[HostFault]) -> dict[HostFault, str]:
    """Return which of these faults this machine cannot have, and why."""
    reasons: dict[HostFault, str] = {}
    if not TUN.exists():
        lacking = f"there is no {TUN}, so no packets can be delayed or lost"
        reasons |= {HostFault.DELAY: lacking, HostFault.LOSS: lacking}
    if HostFault.ROUTE in kinds and not _can_close_connections():
        reasons[HostFault.ROUTE] = "this kernel closes no connections for `ss -K`"
    return {kind: reason for kind, reason in reasons.items() if kind in kinds}


def _missing_rights() -> list[str]:
    done = subprocess.run(_ISOLATION, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"no namespaces can be made: {done.stderr.strip()}"]


def _can_close_connections() -> bool:
    """Try it with a connection of one's own."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connection,
    ):
        _, port = connection.getsockname()
        closing = ["ss", "-K", "-H", "-t", "sport", "=", f":{port}"]
        return bool(subprocess.run(closing, capture_output=True, check=False).stdout)
