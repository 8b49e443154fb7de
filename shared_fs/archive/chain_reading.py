"""Reads what a table of changes tells of the chains of its stores.

    chains = TableChains(TableLocation("s3://acme/holdfast/tables/changes"))
    report = chains.check(StoreId("acme", StoreKind.STREAM, "ledger"), [kept])

Only reads, and sees one version of the table. Of each row it keeps hashes alone, some 300 bytes, so
a store with millions of messages needs as many. Needs the packages pyarrow and deltalake, which are
imported at the first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import (
    ArchiveUnreadableError,
    InvalidArgumentError,
    NotFoundError,
)
from holdfast.protocol.messages import Ack
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive import table_chain
from holdfast.shared_fs.archive.table_chain import LinkRow, TableChain, check_table_chain
from holdfast.shared_fs.archive.table_files import open_delta
from holdfast.shared_fs.archive.table_layout import UnknownLayoutError, layout_of
from holdfast.shared_fs.archive.table_location import TableLocation

#: Rows that are in memory with their values.
_BATCH_ROWS: Final = 1024
_PLACE: Final = ("tenant", "store", "kind")
_COLUMNS: Final = (
    *("operation", "run", "revision", "seq", "key", "time", "headers", "value", "subject"),
    *("large_bytes", "large_sha256"),
    *table_chain.COLUMNS,
)
#: After one of these, earlier runs do not count.
_BEGINNINGS: Final = ("reset", "drop")
_WORDS: Final = {kind.word: kind for kind in StoreKind}


class _File(NamedTuple):
    path: str
    #: That of all of its rows, where the table has a folder for each; else None.
    tenant: str | None
    #: The least and the greatest name of a store in it, if that is known.
    first_store: str | None
    last_store: str | None

    def may_have(self, store: str) -> bool:
        # Delta may have cut the greatest name short.
        return (self.first_store is None or self.first_store <= store) and (
            self.last_store is None or store[: len(self.last_store)] <= self.last_store
        )


class TableChains:
    """The chains in the newest version of a table."""

    def __init__(self, location: TableLocation) -> None:
        self.location = location

    def stores(self) -> list[StoreId]:
        """Return the stores that the table has rows of. Raises as `check`."""
        import pyarrow.parquet as pq

        found: set[StoreId] = set()
        for file in self._files:
            with pq.ParquetFile(self.location.to_read_parts(file.path)) as opened:
                wanted = [name for name in _PLACE if name in opened.schema_arrow.names]
                for batch in opened.iter_batches(_BATCH_ROWS * 64, columns=wanted):
                    names = [batch.column(name).to_pylist() for name in ("store", "kind")]
                    tenants = (
                        batch.column("tenant").to_pylist()
                        if file.tenant is None
                        else [file.tenant] * batch.num_rows
                    )
                    for tenant, store, kind in set(zip(tenants, *names, strict=True)):
                        if kind in _WORDS:
                            found.add(StoreId(tenant, _WORDS[kind], store))
        return sorted(found)

    def check(self, store: StoreId, kept: Iterable[ChainLink | Ack] = ()) -> TableChain:
        """Compute the chain of a store anew from its rows, and compare it with what was kept.

        Raises NotFoundError if there is no table, ArchiveUnreadableError if a package is missing,
        InvalidArgumentError for what was kept, OSError, and errors of deltalake and boto3.
        """
        is_kv = store.kind == StoreKind.KV
        return check_table_chain(self.rows(store), kept, is_kv=is_kv)

    def rows(self, store: StoreId) -> list[LinkRow]:
        """Return what the rows of a store's present life tell of its chain. Raises as `check`."""
        is_kv = store.kind == StoreKind.KV
        begins = 0
        found: list[tuple[int, LinkRow]] = []
        for file in self._files:
            if file.tenant in (None, store.tenant) and file.may_have(store.name):
                for row in self._rows_of(file, store):
                    if row["operation"] in _BEGINNINGS:
                        begins = max(begins, row["run"])
                    else:
                        found.append((row["run"], table_chain.link_of_row(row, is_kv=is_kv)))
        return [link for run, link in found if run >= begins]

    def _rows_of(self, file: _File, store: StoreId) -> Iterator[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        sought = {"store": store.name, "kind": StoreKind(store.kind).word, "tenant": store.tenant}
        if file.tenant is not None:
            del sought["tenant"]
        with pq.ParquetFile(self.location.to_read_parts(file.path)) as opened:
            known = [name for name in _COLUMNS if name in opened.schema_arrow.names]
            groups = _groups_with(opened, store.name)
            columns = [*sought, *known]
            for batch in opened.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
                mask = None
                for name, value in sought.items():
                    equal = pc.equal(batch.column(name), value)
                    mask = equal if mask is None else pc.and_(mask, equal)
                rows = batch.filter(mask)
                if rows.num_rows == 0:
                    continue
                time = rows.column("time").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
                time = pc.divide(time, 1000)
                rows = rows.set_column(rows.schema.get_field_index("time"), "time", time)
                yield from rows.select(known).to_pylist()

    @cached_property
    def _files(self) -> list[_File]:
        try:
            import pyarrow as pa
            from deltalake.exceptions import TableNotFoundError
        except ImportError as error:
            raise ArchiveUnreadableError(
                store=self.location.uri, reason=f"{error}. Try: {how_to_install('archive')}"
            ) from error
        try:
            table = open_delta(self.location)
        except TableNotFoundError as error:
            raise NotFoundError(what="table", name=self.location.uri) from error
        metadata = table.metadata()
        try:
            layout = layout_of(metadata.partition_columns, metadata.configuration)
        except UnknownLayoutError as error:
            raise InvalidArgumentError(argument="table", reason=str(error)) from error
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [
            _File(
                row["path"],
                None if layout.is_grouped else row["partition.tenant"],
                row.get("min.store"),
                row.get("max.store"),
            )
            for row in sorted(actions, key=lambda each: str(each["path"]))
        ]


def _groups_with(opened: Any, store: str) -> list[int]:
    """Return the row groups of a file that may have rows of a store."""
    metadata = opened.metadata
    column = next(
        index
        for index in range(metadata.num_columns)
        if metadata.schema.column(index).path == "store"
    )
    found = []
    for number in range(metadata.num_row_groups):
        known = metadata.row_group(number).column(column).statistics
        if known is None or not known.has_min_max or known.min <= store <= known.max:
            found.append(number)
    return found
