"""Quarantine: keeps damaged files, so that repairing loses nothing and nothing reopens them.

    quarantine/<tenant>/<file name>.<time>/
        <number>.log    acknowledged changes that may be in no file (`commit_log.py`)
        report.json     what was wrong
        the file, its WAL, and those of other generations

A server never reads a quarantined file again; an operator may. The changes are read: by a later
owner if a file of the store is put back in its place, and by `holdfast restore`. The changes are
durable before the report is, and the report before anything is moved. Moving is atomic per file and
durable when `quarantine` returns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord, segment_name
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

_REPORT: Final = "report.json"


@dataclass(frozen=True, slots=True)
class QuarantineReport:
    """What is known of a quarantined file. `time` is int milliseconds since the epoch."""

    tenant: str
    kind: str
    name: str
    file: str
    reason: str
    time: int
    server: str
    size_bytes: int
    #: The last revision of the changes beside it; 0 if there are none.
    last_revision: int = 0


def quarantine(
    disk: Disk,
    layout: Layout,
    store: StoreId,
    path: Path,
    *,
    reason: str,
    time: int,
    server: str,
    records: Sequence[LogRecord] = (),
    others: Sequence[Path] = (),
) -> Path:
    """Move a damaged file to quarantine and return the folder that it is in now.

    Its WAL and the `others`, which count less, are moved too, and `records` are kept with them.
    Only the caller may have the file open. If the file is missing, only the records are kept.
    Raises StorageFailedError.
    """
    folder = layout.quarantine / store.tenant / f"{path.name}.{time}"
    disk.make_directory(folder)
    if records:
        _keep(disk, folder, records)
    report = QuarantineReport(
        tenant=store.tenant,
        kind=StoreKind(store.kind).word,
        name=store.name,
        file=path.name,
        reason=reason,
        time=time,
        server=server,
        size_bytes=disk.size_bytes(path) if disk.exists(path) else 0,
        last_revision=max((record.revision for record in records), default=0),
    )
    disk.write_durably(folder / _REPORT, (json.dumps(asdict(report), indent=2) + "\n").encode())
    # The file that counts is moved last. Otherwise a crash could leave
    # an older state that looks whole.
    for each in (*others, path):
        wal = each.with_name(each.name + "-wal")
        for part in (wal, each):
            if disk.exists(part):
                disk.rename(part, folder / part.name)
    return folder


def _keep(disk: Disk, folder: Path, records: Sequence[LogRecord]) -> None:
    """Write the records as a log, which shows if one of them is damaged later."""
    log = CommitLog(disk, folder)
    for tick, record in enumerate(records, 1):
        log.append(tick, [record])
    log.prepare_sync()()
    # This frame states that those before it are synced, so a bad one among them is not a torn end.
    log.append(len(records) + 1, [])
    log.prepare_sync()()
    log.close()


def kept_records(disk: Disk, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield `(tenant, folder name)` of each complete quarantine folder that has changes."""
    for tenant in disk.names(layout.quarantine):
        if tenant.startswith("_"):
            # Not a tenant: logs, or the coordinator's state.
            continue
        for name in disk.names(layout.quarantine / tenant):
            folder = layout.quarantine / tenant / name
            if disk.exists(folder / segment_name(1)) and disk.exists(folder / _REPORT):
                yield tenant, name


def quarantined(disk: Disk, layout: Layout, store: StoreId) -> list[Path]:
    """Return the quarantine folders of a store, oldest first."""
    start = f"{store.name}.{StoreKind(store.kind).word}."
    folder = layout.quarantine / store.tenant
    return [folder / name for name in disk.names(folder) if name.startswith(start)]
