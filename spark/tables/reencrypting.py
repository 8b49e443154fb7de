"""Encrypts rows of a table anew that are encrypted with a former key of their tenant.

The rows keep everything but the bytes of value and box, and the table's past goes, as after an
erasure (`erasing.py`). Invariants:

- A row is rewritten only if it decrypts in its place. Others stay, and are counted.
- A table does not say under which name a row of a fork, or of a store that was restored under
  another name, was encrypted. So other names of the tenant's stores in the file are tried.
- Rows in clear stay: nothing tells whether somebody wants them so.

No store may have archived messages among these rows: it would not find them any more. The caller
sees to that. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.protocol.errors import DecryptionFailedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import ReadsKeys
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.encrypted.encrypted_values import (
    box_in_table,
    headers_in_table,
    leaf_in_box,
    read_box,
)
from holdfast.spark.tables.erasing import (
    TableErasure,
    erase_from,
    rows_of_tenant,
    with_column,
)

_CHANGED: Final = ("headers", "value", "large_sha256")
_LATER: Final = "holdfast tenant reencrypt --table, later"
_BY_PURGE: Final = "holdfast purge STORE --kind KIND --epoch EPOCH --only-tables --table URL"
_BY_RULE: Final = "you: a lifecycle rule of the bucket that ends noncurrent versions"
#: Rows of a store that decrypt under no name before no more are tried under all of them.
_TRIED: Final = 100
_MOST_NOTED: Final = 100_000


@dataclass(slots=True)
class TableRewriting:
    """What was done to one table."""

    erasure: TableErasure
    #: Rows that are encrypted, and do not decrypt in their place.
    unreadable: int
    #: Whether rows of the tenant are in clear.
    has_clear: bool

    def to_json(self) -> dict[str, Any]:
        fields = self.erasure.to_json()
        fields["rewritten_rows"] = fields.pop("erased_rows")
        return {**fields, "unreadable_rows": self.unreadable, "has_clear": self.has_clear}

    def remains(self) -> list[tuple[str, int, str]]:
        """Return what is left, how much of it, and what removes it."""
        found = [
            ("rows that do not decrypt", self.unreadable, _BY_PURGE),
            ("rows in clear", int(self.has_clear), _BY_PURGE),
            ("files that an export has left", len(self.erasure.left), _LATER),
            ("old versions of its files", self.erasure.old_versions, _BY_RULE),
        ]
        return [each for each in found if each[1]]


def rewrite_rows(
    location: TableLocation,
    tenant: str,
    registry: ReadsKeys,
    masters: Mapping[str, MasterKey],
) -> TableRewriting:
    """Encrypt the rows of a tenant with its current key, of a table of changes and of the latest
    table beside it, and end the past of both. Run it again after an interruption.

    Raises KeyUnavailableError, TenantShreddedError, StorageError, and as `erase_rows`.
    """
    _, record = registry.read().tenants.get(tenant, (0, KeyRecord(tenant)))
    keys = TenantKeys.unwrapped(record, masters)
    if keys.problem is not None:
        raise keys.problem.with_traceback(None)
    rows = FormerKeyRows(keys)
    done = erase_from(location, rows)
    return TableRewriting(done, len(rows.unreadable), rows.has_clear)


class FormerKeyRows:
    """The rows of a tenant that are encrypted with another key than the current one."""

    #: What tells whether a row is to be rewritten, and which one it is.
    columns = ("store", "kind", "operation", "seq", "key", "revision", "epoch", "headers")

    def __init__(self, keys: TenantKeys) -> None:
        self.tenant = keys.tenant
        self._current = keys.current_id
        self._known_keys = keys.keys.keys()
        self._sessions = CipherSessions(keys)
        self._ciphers: dict[tuple[str, str], StoreCipher] = {}
        self._tries: dict[tuple[str, str], int] = {}
        #: Rows that do not decrypt. Beyond this many, their files are told.
        self.unreadable: set[tuple[Any, ...]] = set()
        self.has_clear = False

    def matches(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Return for each row whether it is to be rewritten."""
        found = [False] * rows.num_rows
        for at, row in self._of_tenant(rows, ()):
            found[at] = self._former_box(row) is not None
        return pa.array(found, pa.bool_())

    def without(self, read: pa.Table, layout: TableLayout, *, is_latest: bool) -> pa.Table:
        """Return the rows, encrypted anew in their places."""
        columns = {name: read.column(name).to_pylist() for name in _CHANGED}
        for at, row in self._of_tenant(read, (*_CHANGED, "large_bytes")):
            box = self._former_box(row)
            if box is None:
                continue
            try:
                again = self._rewritten(row, box, read)
            except DecryptionFailedError:
                self._note_unreadable(row)
                continue
            for name, value in again.items():
                columns[name][at] = value
        for name, values in columns.items():
            of_type = read.schema.field(name).type
            read = with_column(read, name, pa.chunked_array([pa.array(values, of_type)]))
        return read

    def _of_tenant(
        self, rows: pa.Table | pa.RecordBatch, more: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the tenant's rows with a value, with their places."""
        is_set = pc.equal(rows.column("operation"), "set")
        mask = pc.fill_null(pc.and_(rows_of_tenant(rows, self.tenant), is_set), False)
        wanted = [at for at, is_wanted in enumerate(mask.to_pylist()) if is_wanted]
        names = list(dict.fromkeys((*self.columns, *more)))
        taken = rows.select(names).take(pa.array(wanted, pa.int64()))
        yield from zip(wanted, taken.to_pylist(), strict=True)

    def _former_box(self, row: dict[str, Any]) -> bytes | None:
        """Return the box of a row that is to be rewritten; None if it stays."""
        box = box_in_table(dict(row["headers"] or ()))
        if box is None:
            self.has_clear = True
            return None
        if _mark(row) in self.unreadable:
            return None
        try:
            known, _ = read_box(row["store"], row["seq"], box)
        except DecryptionFailedError:
            self._note_unreadable(row)
            return None
        if known.key_id == self._current:
            return None
        if known.key_id not in self._known_keys:
            # It was destroyed: nobody can read the row.
            self._note_unreadable(row)
            return None
        return box

    def _note_unreadable(self, row: dict[str, Any]) -> None:
        if len(self.unreadable) < _MOST_NOTED:
            self.unreadable.add(_mark(row))

    def _rewritten(
        self, row: dict[str, Any], box: bytes, rows: pa.Table | pa.RecordBatch
    ) -> dict[str, Any]:
        place = row["key"] if row["seq"] is None else row["seq"]
        value: Any = row["value"]
        if row["large_sha256"] is not None:
            # As in `rows/decrypting.py`: of a large value the SHA-256 is encrypted in its place.
            value = [b"", row["large_bytes"], bytes.fromhex(row["large_sha256"]), 0]
        cipher, clear, packed = self._opened(row, place, value, box, rows)
        kept, new_box = cipher.kept_row(place, row["revision"], clear, packed, leaf_in_box(box))
        again: dict[str, Any] = {"headers": [*headers_in_table(new_box).items()]}
        if row["large_sha256"] is not None:
            return again | {"large_sha256": kept[2].hex()}
        return again | {"value": kept}

    def _opened(
        self, row: dict[str, Any], place: Any, value: Any, box: bytes, rows: Any
    ) -> tuple[StoreCipher, Any, bytes | None]:
        named = (row["store"], row["kind"])
        cipher = self._ciphers.get(named) or self._cipher(named, ())
        try:
            return cipher, *cipher.row(place, row["revision"], value, box)
        except DecryptionFailedError:
            self._tries[named] = self._tries.get(named, 0) + 1
            if self._tries[named] > _TRIED:
                raise
            others = pc.unique(rows.column("store")).to_pylist()
            wider = self._cipher(named, sorted(set(others) - {row["store"]}))
            found = wider.row(place, row["revision"], value, box)
            self._ciphers[named] = wider
            self._tries.pop(named)
            return wider, *found

    def _cipher(self, named: tuple[str, str], former_names: Sequence[str]) -> StoreCipher:
        store = StoreId(self.tenant, StoreKind[named[1].upper()], named[0])
        return StoreCipher(self._sessions, store, former_names)


def _mark(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["store"], row["kind"], row["epoch"], row["revision"], row["seq"])
