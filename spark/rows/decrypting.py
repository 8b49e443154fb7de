"""Decrypts the rows of an export, for tables that are to have clear values.

What travels to the executors is where the master keys are, and the wrapped data keys. Each executor
reads the master keys itself, so no key is in a task, or in what Spark keeps of one.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey, read_master_keys
from holdfast.shared_fs.encryption.registry import ReadsKeys
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.encrypted.encrypted_values import is_box
from holdfast.spark.rows.chained_rows import linked
from holdfast.spark.rows.rows import ExportedRow, Piece, Shape


@dataclass(frozen=True, slots=True)
class ExportKeys:
    """Where an export has its keys from: files and commands with master keys, which each executor
    must have, and what the registry knows of tenants."""

    files: tuple[str, ...]
    commands: tuple[str, ...]
    records: Mapping[str, KeyRecord]
    #: Of this export. Workers live on, and the next one may find another key in the same file.
    export: str = ""

    @classmethod
    def of(cls, registry: ReadsKeys, files: Sequence[Path], commands: Sequence[str]) -> ExportKeys:
        """Read the registry, and look whether the master keys can be read here. Raises
        StorageError, InvalidArgumentError."""
        read_master_keys(files, commands)
        records = {tenant: record for tenant, (_, record) in registry.read().tenants.items()}
        return cls(tuple(map(str, files)), tuple(commands), records, secrets.token_hex(8))


class RowDecrypter:
    """Decrypts the rows of one task."""

    def __init__(self, keys: ExportKeys) -> None:
        """Raises InvalidArgumentError if a master key cannot be read here."""
        self._records = keys.records
        self._masters = _masters(keys.files, keys.commands, keys.export)
        self._sessions: dict[str, CipherSessions] = {}

    def check(self, tenant: str) -> None:
        """Raise KeyUnavailableError or TenantShreddedError if a tenant's keys are not here."""
        problem = self._sessions_of(tenant).keys.problem
        if problem is not None:
            raise problem.with_traceback(None)

    def piece(self, piece: Piece, former_names: Sequence[str] = ()) -> Piece:
        """Return rows of a store as their writers wrote them. `former_names` are those of the
        store. Raises KeyUnavailableError, TenantShreddedError, DecryptionFailedError."""
        rows = piece.rows
        headers_at = ExportedRow._fields.index("headers") if piece.shape is Shape.CHANGES else 4
        if not any(is_box(row[headers_at]) for row in rows):
            return piece
        cipher = self._cipher(piece.origin.store, former_names)
        clear: Any = _change if piece.shape is Shape.CHANGES else _row
        return piece._replace(
            rows=[clear(cipher, row) if is_box(row[headers_at]) else row for row in rows]
        )

    def _cipher(self, store: StoreId, former_names: Sequence[str]) -> StoreCipher:
        return StoreCipher(self._sessions_of(store.tenant), store, former_names)

    def _sessions_of(self, tenant: str) -> CipherSessions:
        if tenant not in self._sessions:
            record = self._records.get(tenant, KeyRecord(tenant))
            self._sessions[tenant] = CipherSessions(TenantKeys.unwrapped(record, self._masters))
        return self._sessions[tenant]


def _row(cipher: StoreCipher, row: tuple[Any, ...]) -> tuple[Any, ...]:
    place, revision, time, value, box, *more = row
    value, headers = cipher.row(place, revision, value, box)
    return (place, revision, time, value, headers, *more)


def _change(cipher: StoreCipher, row: ExportedRow) -> ExportedRow:
    clear = _decrypted(cipher, row)
    # Of a row in a chain, the table tells what its leaf is made of.
    return clear if clear.leaf is None else linked(clear, clear.leaf, clear.chain)


def _decrypted(cipher: StoreCipher, row: ExportedRow) -> ExportedRow:
    place = row.key if row.seq is None else row.seq
    if row.large_bytes is None:
        value, headers = cipher.row(place, row.revision, row.value, row.headers)
        return row._replace(value=value, headers=headers)
    # Of a large value the SHA-256 is encrypted in its place; its bytes stay in the store.
    hidden = [b"", row.large_bytes, bytes.fromhex(row.large_sha256 or ""), 0]
    shown, headers = cipher.row(place, row.revision, hidden, row.headers)
    return row._replace(headers=headers, large_sha256=shown[2].hex())


@functools.lru_cache(maxsize=2)
def _masters(
    files: tuple[str, ...], commands: tuple[str, ...], export: str
) -> Mapping[str, MasterKey]:
    """Return the master keys of this worker, which all its tasks of one export share."""
    return read_master_keys([Path(each) for each in files], commands)
