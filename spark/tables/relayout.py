"""Replaces all files of a table, and how they are divided, in one commit.

deltalake commits no new partition columns beside files that others have written, so this writes the
commit as Delta's protocol has it: a file of the log under the next version's number, which is put
only if nobody else has put one. Invariants:

- Every file of the version before is removed and every new one is added in this commit, so a reader
  sees the rows once, in the former layout or in the new one.
- It counts as an export: no run that has read the table before, and has files of the former layout,
  can commit any more. Nor can a compaction, whose files are gone.
- Versions before stay readable for as long as `collect` keeps their files.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.spark.errors import ForeignTableError, TableConflictError
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.table import APPLICATION, AddedFile, ChangesTable, delta_schema

#: Paths that the log writes as they are. It escapes other characters, and not every engine escapes
#: the same ones.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_=/.-]+")


def relayout(table: ChangesTable, layout: TableLayout, added: Sequence[AddedFile]) -> None:
    """Commit `added`, whose rows are those of the table, in place of all files.

    Raises TableConflictError if anybody has committed since the table was refreshed,
    ForeignTableError, OSError, and errors of deltalake and boto3.
    """
    table.check_features()
    before = table.files()
    for path in [*(each.path for each in before), *(each.path for each in added)]:
        if _PLAIN_PATH.fullmatch(path) is None:
            raise ForeignTableError(table=table.location.uri, feature=f"the name {path!r}")
    run = watermarks.next_version(table.export_version)
    _put_marks(table, layout, run)
    table.look_at(added)
    now_ms = int(time.time() * 1000)
    actions: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": "REPLACE TABLE",
                "operationParameters": {"partitionBy": json.dumps(layout.partition_columns)},
                "holdfast": json.dumps({"run": watermarks.run_of(run), "rows": 0}),
            }
        },
        {"metaData": _metadata(table, layout)},
        {"txn": {"appId": APPLICATION, "version": run, "lastUpdated": now_ms}},
    ]
    actions += [
        {
            "remove": {
                "path": each.path,
                "deletionTimestamp": now_ms,
                # The rows are the same.
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": each.partition,
                "size": each.size_bytes,
            }
        }
        for each in before
    ]
    actions += [
        {
            "add": {
                "path": each.path,
                "partitionValues": each.partition,
                "size": each.size_bytes,
                "modificationTime": now_ms,
                "dataChange": False,
                "stats": each.statistics(),
            }
        }
        for each in added
    ]
    body = "".join(f"{json.dumps(each)}\n" for each in actions).encode()
    version = (table.version or 0) + 1
    if not table.location.put_new(f"_delta_log/{version:020d}.json", body):
        reason = f"version {version} is there already"
        raise TableConflictError(table=table.location.uri, reason=reason)
    table.location.sync_log()
    table.refresh()


def _put_marks(table: ChangesTable, layout: TableLayout, run: int) -> None:
    """Put the watermarks again, as those of the new layout."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        folder = Path(name)
        draft = folder / "next"
        none = watermarks.ShardRows()
        watermarks.write(draft, table.watermarks(folder), lambda number, marks: none, layout)
        table.location.put_file(draft, watermarks.path_of(run))


def _metadata(table: ChangesTable, layout: TableLayout) -> dict[str, Any]:
    known = table.delta.metadata()
    return {
        "id": str(known.id),
        "name": known.name,
        "description": known.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": delta_schema(layout).to_json(),
        "partitionColumns": list(layout.partition_columns),
        "configuration": {**known.configuration, **layout.properties},
        "createdTime": known.created_time,
    }
