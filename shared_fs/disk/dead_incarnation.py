"""The remains of an incarnation that ended: how they go, and what tells that too much went.

    servers/<server>/<incarnation>/
        fence             fenced, or about to be
        log/              needed until every store in it was taken over
        letting-go        no store needs the log any more: all of this is being removed
        loss-accepted     an operator accepts that a damaged or missing log is all there is

Invariants:

- A log goes only by `let_go`, which leaves its mark first. So a fenced incarnation without a log
  and without the mark had a log that somebody else removed.
- What `let_go` was cut short in can be removed by another call, and is not read meanwhile.
- Segments that are moved to quarantine are no part of any log any more; nothing reads them again.

Does not decide when a log may go (`persist/shared_disk/log_reaper.py`).
"""

from __future__ import annotations

import json

from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

#: Where damaged logs go, in the folder of the quarantined: no tenant is named so.
_QUARANTINE = "_logs"


def log_is_missing(disk: Disk, layout: Layout, server: str, incarnation: str) -> bool:
    """Tell if a fenced incarnation has no log, and was not let go. Raises StorageFailedError."""
    fence_path = layout.fence(server, incarnation)
    return (
        disk.exists(fence_path)
        and not fence.is_open(disk, fence_path)
        and not disk.names(layout.log(server, incarnation))
        and not disk.exists(layout.letting_go(server, incarnation))
        # Looked at again last: all of it may have gone while this looked.
        and disk.exists(fence_path)
    )


def is_let_go(disk: Disk, layout: Layout, server: str, incarnation: str) -> bool:
    """Tell if what is left of an incarnation is only to be removed."""
    return disk.exists(layout.letting_go(server, incarnation))


def loss_is_accepted(disk: Disk, layout: Layout, server: str, incarnation: str) -> bool:
    """Tell if an operator accepts that what is missing from a log is lost."""
    return disk.exists(layout.loss_accepted(server, incarnation))


def let_go(disk: Disk, layout: Layout, server: str, incarnation: str) -> None:
    """Remove all that is left of a fenced incarnation. Raises StorageFailedError."""
    folder = layout.incarnation(server, incarnation)
    mark = layout.letting_go(server, incarnation)
    disk.write_durably(mark, b"")
    log = layout.log(server, incarnation)
    for name in disk.names(log):
        disk.remove(log / name)
    disk.remove_directory(log)
    # The fence goes late: as long as there is anything to read, it reads as fenced, and afterwards
    # a missing file reads as fenced too. The mark outlives both, also through a power cut.
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

    One cut short is gone on with by another call. Raises StorageFailedError.
    """
    log = layout.log(server, incarnation)
    folder = layout.quarantine / _QUARANTINE / f"{server}.{incarnation}"
    disk.make_directory(folder)
    report = {"server": server, "incarnation": incarnation, "reason": reason, "time": time}
    disk.write_durably(folder / "report.json", (json.dumps(report, indent=2) + "\n").encode())
    for name in disk.names(log):
        disk.rename(log / name, folder / name)
