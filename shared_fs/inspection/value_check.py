"""Checks the encrypted values of a store file with the keys of its tenant: that each decrypts in
its place, and that the leaf it has in a chain is that of what it decrypts to.

Without keys, a check follows the links of a chain, and believes the leaves of encrypted values.
The bytes of large values are not decrypted, only what names them is. Only reads. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import apsw

from holdfast.protocol.chain.hashing import leaf_of, leaf_of_set
from holdfast.protocol.errors import (
    DecryptionFailedError,
    KeyUnavailableError,
    StoreDamagedError,
    TenantShreddedError,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import ReadsKeys
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.shared_fs.store_file.encrypted.encrypted_values import leaf_in_box
from holdfast.shared_fs.store_file.pages.page_sizes import read_format
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file.subject_schema import HAS_SUBJECTS, SUBJECT

_BOX: Final = "substr(headers, 1, 1) = x'C1'"
_MESSAGES: Final = (
    "SELECT seq, revision, time, value, headers, body_bytes, seq, {subject} FROM messages"
    f" WHERE {_BOX} ORDER BY seq"
)
_ENTRIES: Final = (
    "SELECT key, revision, time, value, headers, body_bytes, key, NULL FROM entries"
    f" WHERE {_BOX} ORDER BY revision"
)
#: Values of before: large ones are found by their revision.
_HISTORY: Final = (
    "SELECT key, revision, time, value, headers, body_bytes, revision, NULL FROM history"
    f" WHERE {_BOX} ORDER BY revision"
)
_NAMES: Final = "SELECT name FROM former_names"
#: How many problems of one file are told.
_TOLD: Final = 5


class ValueVerdict(NamedTuple):
    """How many values were decrypted, and what was found of the others."""

    decrypted: int = 0
    problems: tuple[str, ...] = ()
    #: The keys of the tenant were destroyed.
    is_shredded: bool = False


class ValueCheck:
    """Checks values with the keys that a registry has now."""

    def __init__(self, registry: ReadsKeys, masters: Mapping[str, MasterKey]) -> None:
        """Raises StorageError if the registry cannot be read."""
        self._records = registry.read().tenants
        self._masters = masters
        self._sessions: dict[str, CipherSessions] = {}

    def values(self, path: Path, store: StoreId, what: str) -> ValueVerdict:
        """Decrypt the values of a file that nobody writes. Raises StoreDamagedError."""
        name = f"file:{quote(str(path))}?immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        try:
            connection = apsw.Connection(name, flags=flags, vfs=checksum_vfs())
            try:
                connection.pragma("trusted_schema", 0)
                if read_format(connection.execute) < schema.ENCRYPTED_FORMAT:
                    return ValueVerdict()
                names = [str(each) for (each,) in connection.execute(_NAMES)]
                cipher = StoreCipher(self._sessions_of(store.tenant), store, names)
                return _judged(cipher, _rows(connection, store), what)
            finally:
                connection.close(True)
        except apsw.Error as error:
            raise StoreDamagedError(store=str(store), reason=f"{what}: {error}") from error

    def _sessions_of(self, tenant: str) -> CipherSessions:
        if tenant not in self._sessions:
            _, record = self._records.get(tenant, (0, KeyRecord(tenant)))
            self._sessions[tenant] = CipherSessions(TenantKeys.unwrapped(record, self._masters))
        return self._sessions[tenant]


def _rows(connection: apsw.Connection, store: StoreId) -> Iterator[tuple[Any, ...]]:
    """Yield `(place, revision, time, value, headers, subject)` of encrypted values."""
    if store.kind == StoreKind.STREAM:
        has_subjects = connection.execute(HAS_SUBJECTS).get
        statements = [_MESSAGES.format(subject=SUBJECT if has_subjects else "NULL")]
    else:
        tables = [name for (name,) in connection.execute(schema.SELECT_TABLES)]
        statements = [_ENTRIES, _HISTORY] if "history" in tables else [_ENTRIES]
    for statement in statements:
        for *row, body_bytes, body_place, subject in connection.execute(statement):
            place, revision, time, value, headers = row
            if body_bytes is not None:
                value = connection.execute(schema.SELECT_BODY_AT, (body_place,)).get
                value = None if value is None else list(value)
            yield place, revision, time, value, headers, subject


def _judged(
    cipher: StoreCipher, rows: Iterable[tuple[Any, ...]], what: str
) -> ValueVerdict:
    is_stream = cipher.store.kind == StoreKind.STREAM
    decrypted, problems = 0, []
    for place, revision, time, value, headers, subject in rows:
        if value is None:
            problems.append(f"its values: {what} lacks the large value {place!r}")
            continue
        try:
            clear, packed = cipher.row(place, revision, value, headers)
        except DecryptionFailedError:
            problems.append(f"its values: {place!r} of {what} does not decrypt")
            continue
        except KeyUnavailableError as error:
            return ValueVerdict(decrypted, (f"its values: {error}",))
        except TenantShreddedError:
            return ValueVerdict(is_shredded=True)
        decrypted += 1
        told = leaf_in_box(headers)
        if told is None:
            continue
        shown = unpack_headers(packed)
        if is_stream:
            leaf = leaf_of(place, time, clear, shown, subject)
        else:
            leaf = leaf_of_set(revision, time, clear, shown, place)
        if leaf != told:
            problems.append(f"its chain: the leaf of {place!r} of {what} is not that of its value")
    return ValueVerdict(decrypted, tuple(problems[:_TOLD]))
