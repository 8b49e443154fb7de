"""Decrypts rows of an exported table, for readers that have the keys.

A table has encrypted values as their stores keep them, and the box in Base64 in the place of the
headers. A row of a fork, or of a store that was restored under another name, may have been
encrypted under the former name: name it, since the table does not. Large values are not in tables.
Calls block.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from holdfast.protocol.errors import DecryptionFailedError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import ReadsKeys
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_HEADER
from holdfast.shared_fs.store_file.exported_values import exported


class TableCipher:
    """Decrypts rows with the keys that the registry has now."""

    def __init__(self, registry: ReadsKeys, masters: Mapping[str, MasterKey]) -> None:
        """Raises StorageError if the registry cannot be read."""
        self._records = registry.read().tenants
        self._masters = masters
        self._sessions: dict[str, CipherSessions] = {}

    def row(
        self,
        store: StoreId,
        place: int | str,
        revision: int,
        value: bytes,
        headers: Mapping[str, str] | None,
        former_names: Sequence[str] = (),
    ) -> tuple[bytes, dict[str, str]]:
        """Return the value and the headers as an application wrote them, of the row of a seq or a
        key. A row in clear is returned as it is.

        Raises KeyUnavailableError, TenantShreddedError, DecryptionFailedError.
        """
        box_text = (headers or {}).get(BOX_HEADER)
        if box_text is None:
            return value, dict(headers or {})
        try:
            box = base64.b64decode(box_text, validate=True)
        except ValueError as error:
            raise DecryptionFailedError(store=str(store), place=place) from error
        cipher = StoreCipher(self._sessions_of(store.tenant), store, former_names)
        clear, packed = cipher.row(place, revision, value, box)
        clear, packed = exported(clear, packed)
        found = unpack_headers(packed) or {}
        if type(found) is bytes:
            found = HeaderBlock(found).joined()
        return clear, dict(found)

    def _sessions_of(self, tenant: str) -> CipherSessions:
        if tenant not in self._sessions:
            _, record = self._records.get(tenant, (0, KeyRecord(tenant)))
            self._sessions[tenant] = CipherSessions(TenantKeys.unwrapped(record, self._masters))
        return self._sessions[tenant]
