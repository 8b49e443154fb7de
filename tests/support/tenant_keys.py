"""Keys of a tenant for tests, and the cipher of each owner of a store: a session of its own."""

from __future__ import annotations

from holdfast.persist.store.store import Store
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher

KEYS = TenantKeys("acme", {1: bytes(range(32)), 2: bytes(range(32, 64))}, 2)


def encrypt(store: Store, keys: TenantKeys | None) -> Store:
    """Give a store that was just opened its cipher, as `KeyBook` does; without keys none."""
    if keys is not None:
        file = store.file
        names = () if file is None else file.encryption.state.former_names
        store.use_cipher(StoreCipher(CipherSessions(keys), store.id, names))
    return store
