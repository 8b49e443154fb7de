"""The ciphers of the open stores of one server: made from what the registry says of tenants.

Pure. A store whose tenant is not encrypted, and whose file has no encrypted value, has no cipher
and pays nothing. If a file has such values while the registry knows no keys, the store has a cipher
with a `problem`: whoever asks for it hears that, and its values are never given out as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.persist.store.store import Store
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import NO_KEYS, KeyRecords
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher


class KeyBook:
    """The keys that one server has."""

    def __init__(self, masters: Mapping[str, MasterKey] | None = None) -> None:
        self._masters = masters or {}
        self._known: KeyRecords = NO_KEYS
        #: Of tenants that have had an open store since the server started.
        self._sessions: dict[str, CipherSessions] = {}

    @property
    def known(self) -> KeyRecords:
        """What the registry said last."""
        return self._known

    def has_keys(self, tenant: str) -> bool:
        """Tell whether a tenant is encrypted, and its keys were not destroyed."""
        found = self._known.tenants.get(tenant)
        return found is not None and found[1].current is not None

    def change(self, records: KeyRecords, open_stores: Iterable[Store]) -> None:
        """Apply what the registry says now."""
        before, self._known = self._known.tenants, records
        changed = {
            tenant for tenant, found in records.tenants.items() if before.get(tenant) != found
        }
        for tenant in changed & self._sessions.keys():
            self._sessions[tenant].becomes(self._keys_of(tenant))
        for store in open_stores:
            if store.cipher is None and store.id.tenant in changed:
                self.opened(store)

    def opened(self, store: Store) -> None:
        """Give an open store its cipher, if it needs one. What an ephemeral store holds reaches no
        disk."""
        if store.anchor is not None:
            return
        file = store.file
        is_encrypted = file is not None and file.encryption.exists
        if not is_encrypted and store.id.tenant not in self._known.tenants:
            return
        names = file.encryption.state.former_names if file is not None else ()
        store.use_cipher(StoreCipher(self._sessions_of(store.id.tenant), store.id, names))

    def _sessions_of(self, tenant: str) -> CipherSessions:
        sessions = self._sessions.get(tenant)
        if sessions is None:
            sessions = self._sessions[tenant] = CipherSessions(self._keys_of(tenant))
        return sessions

    def _keys_of(self, tenant: str) -> TenantKeys:
        _, record = self._known.tenants.get(tenant, (0, KeyRecord(tenant)))
        return TenantKeys.unwrapped(record, self._masters)
