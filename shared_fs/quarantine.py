"""Quarantine: where damaged files go, so that nothing is lost by repairing and nothing reopens them.

    quarantine/<tenant>/<file name>.<time>/   the file, its WAL, and report.json

A quarantined file is never read again by a server; an operator may. Moving is atomic per file and
durable when `quarantine` returns.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.layout import Layout


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


def quarantine(
    disk: Disk, layout: Layout, store: StoreId, path: Path, *, reason: str, time: int, server: str
) -> Path:
    """Move the file at `path` and its WAL out of the way; return the folder they are in now.

    Nobody may have the file open. Raises FileNotFoundError, StorageFailedError.
    """
    folder = layout.quarantine / store.tenant / f"{path.name}.{time}"
    disk.make_directory(folder)
    report = QuarantineReport(
        tenant=store.tenant,
        kind=StoreKind(store.kind).word,
        name=store.name,
        file=path.name,
        reason=reason,
        time=time,
        server=server,
        size_bytes=disk.size_bytes(path),
    )
    disk.write_durably(
        folder / "report.json", (json.dumps(asdict(report), indent=2) + "\n").encode()
    )
    wal = path.with_name(path.name + "-wal")
    if disk.exists(wal):
        disk.rename(wal, folder / wal.name)
    disk.rename(path, folder / path.name)
    return folder


def quarantined(disk: Disk, layout: Layout, store: StoreId) -> list[Path]:
    """Return the quarantine folders of a store, oldest first."""
    start = f"{store.name}.{StoreKind(store.kind).word}."
    folder = layout.quarantine / store.tenant
    return [folder / name for name in disk.names(folder) if name.startswith(start)]
