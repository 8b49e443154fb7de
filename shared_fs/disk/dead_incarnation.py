"""The remains of an incarnation that ended: how they are removed, and how a missing log is noticed.

    servers/<server>/<incarnation>/
        fence             fenced, or about to be
        log/              needed until every store in it was taken over; may be sealed (`seal.py`)
        letting-go        no store needs the log any more: everything here is being removed
        loss-accepted     an operator accepts that a damaged or missing log is all there is

Invariants:

- Only `let_go` removes a log, and it puts its mark first. So if a fenced incarnation has neither a
  log nor the mark, somebody else removed the log.
- If `let_go` is interrupted, another call can finish it, and nobody reads the remains meanwhile.
- Segments that were moved to quarantine no longer belong to any log; nothing reads them again.

This module does not decide when a log may be removed (`persist/shared_disk/log_reaper.py`).
"""

from __future__ import annotations

import json

from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.commit_log import segments
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

#: The subfolder of the quarantine for damaged logs. No tenant can have this name.
_QUARANTINE = "_logs"


def log_is_missing(disk: Disk, layout: Layout, server: str, incarnation: str) -> bool:
    """Tell whether a fenced incarnation has no log although it was not let go.

    Raises StorageFailedError.
    """
    fence_path = layout.fence(server, incarnation)
    return (
        disk.exists(fence_path)
        and not fence.is_open(disk, fence_path)
        and not segments(disk, layout.log(server, incarnation))
        and not disk.exists(layout.letting_go(server, incarnation))
        # Checked again at the end: everything may have been removed while this looked.
        and disk.exists(fence_path)
    )


def is_let_go(disk: Disk, layout: Layout, server: str, incarnation: str) -> bool:
    """Tell whether the remains of an incarnation only have to be removed."""
    return disk.exists(layout.letting_go(server, incarnation))


def loss_is_accepted(disk: Disk, layout: Layout, server: str, incarnation: str) -> bool:
    """Tell whether an operator accepts that what is missing from a log is lost."""
    return disk.exists(layout.loss_accepted(server, incarnation))


def let_go(disk: Disk, layout: Layout, server: str, incarnation: str) -> None:
    """Remove all remains of a fenced incarnation. Raises StorageFailedError."""
    folder = layout.incarnation(server, incarnation)
    mark = layout.letting_go(server, incarnation)
    disk.write_durably(mark, b"")
    log = layout.log(server, incarnation)
    for name in disk.names(log):
        disk.remove(log / name)
    disk.remove_directory(log)
    # The fence is removed late: while there is anything to read, it reads as fenced, and a missing
    # file reads as fenced afterwards. The mark outlives both, even through a power cut.
    disk.remove(layout.fence(server, incarnation))
    disk.sync_directory(folder)
    for name in disk.names(folder):
        if name != mark.name:
            disk.remove(folder / name)
    disk.remove(mark)
    disk.remove_directory(folder)


def quarantine_log(
    disk: Disk, layout: Layout, server: str, incarnation: str, *, reason: str, time: int
) -> None:
    """Move the segments of a damaged log, which no store needs, to quarantine, with a report.

    If it is interrupted, call it again to finish. Raises StorageFailedError.
    """
    log = layout.log(server, incarnation)
    folder = layout.quarantine / _QUARANTINE / f"{server}.{incarnation}"
    disk.make_directory(folder)
    report = {"server": server, "incarnation": incarnation, "reason": reason, "time": time}
    disk.write_durably(folder / "report.json", (json.dumps(report, indent=2) + "\n").encode())
    for name in disk.names(log):
        disk.rename(log / name, folder / name)
