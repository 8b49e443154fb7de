"""Erases rows from the table: from its files, from files of its past, and from its log. Others may
take their place: `reencrypting.py`.

    files with such rows ──▶ the same files without them ──▶ one commit ──▶ a checkpoint ──▶ the
    files of earlier versions, and the log before the checkpoint, are removed

After that no earlier version of the table can be read: its log named keys, and its files are gone.
Invariants:

- The commit counts as an export, so that none that began before it, and may have read such rows,
  can commit after it. A compaction cannot either, because the files that it replaces are gone.
- A file is removed only once no version names it, which the commit sees to, and only if it has such
  rows. Those of others stay.
- Nothing is kept in between. Run it again after an interruption.

Needs no Spark.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.archive.table_chain import LEAF
from holdfast.shared_fs.archive.table_files import log_is_gone
from holdfast.shared_fs.archive.table_layout import BY_TENANT, GROUP_COLUMN, TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.spark.errors import TableConflictError
from holdfast.spark.tables.latest_table import LatestTable
from holdfast.spark.tables.order import in_order
from holdfast.spark.tables.table import AddedFile, ChangesTable, DeltaFile, conformed
from holdfast.spark.tables.writing import TableWriter

_LOG: Final = "_delta_log"
_VERSION: Final = re.compile(r"_delta_log/([0-9]{20})\.")
#: The operations of rows whose `seq` is that of one message.
_OF_ONE_MESSAGE: Final = ("set", "delete")
#: What a row that keeps a leaf has nothing of.
_ERASED_COLUMNS: Final = (
    *("key", "headers", "value", "subject", "large_bytes", "large_sha256", "expires"),
    *("stored_headers", "stored_value"),
)
#: Tries of the commit. Each one is lost to another commit.
_TRIES: Final = 5
#: In the description of the commit.
_MARK: Final = "erased_rows"


@dataclass(slots=True)
class TableErasure:
    """What was done to one table."""

    table: str
    #: Parquet files that were looked at, and their rows of the tenant.
    files: int = 0
    rows: int = 0
    erased_rows: int = 0
    rewritten_files: int = 0
    removed_files: int = 0
    removed_log_files: int = 0
    version: int | None = None
    #: Files that still have such rows: an export or a compaction that ran meanwhile left them.
    left: list[str] = field(default_factory=list)
    #: What a versioned bucket keeps of the files that were removed, now or earlier.
    old_versions: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RowErasure(Protocol):
    """Which rows go from a table, and what stays in their place."""

    @property
    def tenant(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that `matches` looks at, besides the tenant's."""

    def matches(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Return for each row whether it is sought. Rows without a tenant are of this one."""

    def without(self, read: pa.Table, layout: TableLayout, *, is_latest: bool) -> pa.Table:
        """Return rows without the sought ones, and with what stays of them, in order."""


class RowFilter:
    """The rows of a tenant, of some stores up to an epoch, or of one value."""

    columns = ("store", "kind", "operation", "epoch", "seq", "key")

    def __init__(self, sought: Sought, place: int | str | None = None) -> None:
        """`place` is the seq or key of one message or entry of the store."""
        self.tenant = sought.tenant
        self._sought = sought
        self._place = place

    def matches(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Return for each row whether it is sought. Rows without a tenant are of this one."""
        mask = rows_of_tenant(rows, self.tenant)
        if self._sought.epochs is None:
            return mask
        of_stores: Any = pa.array([False] * rows.num_rows)
        for store, epoch in self._sought.epochs.items():
            of_one = pc.equal(rows.column("store"), store.name)
            of_one = pc.and_(of_one, pc.equal(rows.column("kind"), StoreKind(store.kind).word))
            of_one = pc.and_(of_one, pc.less_equal(rows.column("epoch"), epoch))
            of_stores = pc.or_(of_stores, of_one)
        mask = pc.and_(mask, of_stores)
        if isinstance(self._place, str):
            mask = pc.and_(mask, pc.equal(rows.column("key"), self._place))
        elif self._place is not None:
            of_one = pc.is_in(rows.column("operation"), value_set=pa.array(_OF_ONE_MESSAGE))
            mask = pc.and_(mask, pc.and_(of_one, pc.equal(rows.column("seq"), self._place)))
        return pc.fill_null(mask, False)

    def without(self, read: pa.Table, layout: TableLayout, *, is_latest: bool) -> pa.Table:
        """Return rows without the sought ones. Of one value, a leaf and the chain after it stay in
        a row that has nothing else: the chain of the store goes on."""
        sought = self.matches(read)
        others = read.filter(pc.invert(sought))
        # The latest table has nothing but what exists.
        if self._place is None or is_latest:
            return others
        erased = read.filter(pc.and_(sought, pc.is_valid(read.column("leaf"))))
        if not erased.num_rows:
            return others
        # Of a set, the chain knows the revision.
        numbers = pc.coalesce(erased.column("seq"), erased.column("revision"))
        erased = with_column(erased, "seq", numbers)
        erased = with_column(erased, "operation", pa.repeat(LEAF, erased.num_rows))
        for name in _ERASED_COLUMNS:
            nothing = pa.nulls(erased.num_rows, read.schema.field(name).type)
            erased = with_column(erased, name, nothing)
        return in_order(pa.concat_tables([others, erased]), layout)


def rows_of_tenant(rows: pa.Table | pa.RecordBatch, tenant: str) -> Any:
    """Return for each row whether it is of a tenant."""
    if "tenant" not in rows.schema.names:
        return pa.array([True] * rows.num_rows)
    return pc.fill_null(pc.equal(rows.column("tenant"), tenant), False)


def with_column(rows: pa.Table, name: str, column: Any) -> pa.Table:
    """Return rows with another column in the place of the one of that name."""
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)


def erase_rows(
    location: TableLocation, sought: Sought, place: int | str | None = None
) -> TableErasure:
    """Erase what is sought from a table of changes and its past, and from the latest table beside
    it.

    Raises TableConflictError if others commit again and again, ForeignTableError,
    TableDamagedError, OSError, and errors of deltalake and boto3.
    """
    return erase_from(location, RowFilter(sought, place))


def erase_from(location: TableLocation, rows: RowErasure) -> TableErasure:
    """Erase rows from a table of changes, its past, and the latest table beside it. Raises as
    `erase_rows`, and what `rows` raises."""
    done = TableErasure(location.url)
    table = ChangesTable(location)
    if not table.exists:
        return done
    _erase_from(table, rows, done)
    done.version = table.version
    kept = LatestTable(table)
    if kept.exists:
        kept.refuse_earlier()
        _erase_from(kept, rows, done)
    return done


def _erase_from(table: ChangesTable, rows: RowErasure, done: TableErasure) -> None:
    table.evolve()
    location = table.location
    with TemporaryDirectory(prefix="holdfast-") as folder:
        found = _erase_files(table, rows, Path(folder), done)
        for path in found:
            location.delete(path)
            done.removed_files += 1
        if found or _was_interrupted(location):
            done.removed_log_files += _begin_history_anew(table)
        again = TableErasure(location.url)
        done.left += sorted(path for path, _ in _files_with(table, rows, Path(folder), again))
    done.old_versions += sum(
        location.old_version_count(folder)
        for folder in {BY_TENANT.folder(rows.tenant), table.layout.folder(rows.tenant)}
    )


def _erase_files(
    table: ChangesTable, rows: RowErasure, folder: Path, done: TableErasure
) -> dict[str, int]:
    """Commit files without the sought rows in place of those that have some. Return all files that
    have some, which no version names any more, with their number."""
    lost: Exception | None = None
    for _ in range(_TRIES):
        table.refresh()
        try:
            found = dict(_files_with(table, rows, folder, done))
        except TableConflictError as error:
            lost = error
            continue
        if not found:
            return {}
        try:
            named = [one for one in table.files() if one.path in found]
            added = _rewritten(table, named, rows, folder)
            table.erase(named, added, {_MARK: sum(found.values())})
        except (TableConflictError, FileNotFoundError) as error:
            # An export, a compaction or another erasure was faster, or the answer was lost: look
            # again. What was written has none of the rows, and may be in the table.
            lost = error
            continue
        done.erased_rows += sum(found.values())
        done.rewritten_files += len(named)
        return found
    raise TableConflictError(table=table.location.uri, reason=str(lost)) from lost


def _files_with(
    table: ChangesTable, rows: RowErasure, folder: Path, done: TableErasure
) -> Iterator[tuple[str, int]]:
    """Yield every file that has sought rows, of the table or not, and how many."""
    location = table.location
    for path in _files_of(table, rows.tenant):
        try:
            local = location.get_file(path, folder / "looked-at.parquet")
            with pq.ParquetFile(local) as opened:
                of_file = ["tenant"] if "tenant" in opened.schema_arrow.names else []
                columns = opened.read([*of_file, *rows.columns])
        except FileNotFoundError:
            continue  # It was collected meanwhile.
        done.files += 1
        done.rows += pc.sum(rows_of_tenant(columns, rows.tenant)).as_py() or 0
        count = pc.sum(rows.matches(columns)).as_py() or 0
        if count:
            yield path, count


def _files_of(table: ChangesTable, tenant: str) -> list[str]:
    """Return the files that may have rows of a tenant, also of a layout that the table had before.
    Those of other groups that the table names have none."""
    folders = {f"{layout.folder(tenant)}/" for layout in (BY_TENANT, table.layout)}
    named = {one.path for one in table.files()}
    return [
        listed.path
        for listed in list(table.location.list())
        if listed.path.endswith(".parquet")
        and (
            listed.path.startswith(tuple(folders))
            or (listed.path.startswith(f"{GROUP_COLUMN}=") and listed.path not in named)
        )
    ]


def _rewritten(
    table: ChangesTable, files: list[DeltaFile], rows: RowErasure, folder: Path
) -> list[AddedFile]:
    """Write files again without the sought rows, and return those that have any row left."""
    is_latest = isinstance(table, LatestTable)
    added: list[AddedFile] = []
    location, layout = table.location, table.layout
    for file in files:
        local = location.get_file(file.path, folder / "rewritten.parquet")
        name = f"erasure-{secrets.token_hex(8)}"
        with TableWriter(location, name, layout) as writer, pq.ParquetFile(local) as opened:
            for group in range(opened.num_row_groups):
                read = conformed(opened.read_row_group(group), layout)
                kept = rows.without(read, layout, is_latest=is_latest)
                for batch in kept.to_batches():
                    if batch.num_rows:
                        writer.write_file_rows(file.known_partition, batch)
            added += writer.finish()
    return added


def _was_interrupted(location: TableLocation) -> bool:
    """Tell whether an erasure has committed and left the log before it in place."""
    versions = sorted(_log_files(location))
    return any(
        f'"{_MARK}'.encode() in body.replace(b"\\", b"")
        for version, path in versions[1:]
        if path.endswith(".json") and (body := location.read(path)) is not None
        if version > versions[0][0]
    )


def _begin_history_anew(table: ChangesTable) -> int:
    """Put a checkpoint, and remove the log before it. Return how many files that were."""
    for left in reversed(range(_TRIES)):
        table.refresh()
        try:
            table.delta.create_checkpoint()
            break
        except DeltaError as error:
            # Another erasure does the same.
            if not left or not log_is_gone(error):
                raise
    table.location.sync_log()
    current = table.version or 0
    removed = 0
    for version, path in _log_files(table.location):
        # The commit of the present version names what was removed, and no key.
        if version < current:
            table.location.delete(path)
            removed += 1
    table.refresh()
    return removed


def _log_files(location: TableLocation) -> Iterator[tuple[int, str]]:
    for listed in list(location.list(_LOG)):
        found = _VERSION.match(listed.path)
        if found is not None:
            yield int(found[1]), listed.path
