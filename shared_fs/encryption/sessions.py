"""How bytes are encrypted with the data keys of a tenant, so that no nonce is ever used twice.

A *session* is one process that encrypts with one data key. It draws a salt of 128 random bits, and
derives a key of its own from the data key and the salt. Its nonces are a counter from 0. So nothing
must be remembered across crashes, failovers and restores: whoever comes next draws another salt,
and a counter only goes up, also when a tick is taken back. Bounds:

- NIST SP 800-38D, 8.2.1: with a counter, no nonce repeats under one key. A session ends at 2^32
  values, long before a key of AES-GCM has encrypted too much.
- Two sessions of a data key have the same salt with a probability of n^2 / 2^129 after n of them:
  2^-65 after 2^32 server starts.

Random nonces of 96 bits under one data key would be limited to 2^32 values (SP 800-38D, 8.3), three
days of a busy tenant. What this rests on is that a process is not continued twice from one image of
its memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.shared_fs.encryption.ciphers import NONCE_BYTES, aes_gcm, authentic, derived
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.store_file.encrypted.encrypted_values import SALT_BYTES, TAG_BYTES, Box

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_PURPOSE: Final = b"holdfast values 1"
#: A session ends after so many values: the counter of a box has four bytes.
SESSION_VALUES: Final = 1 << 32
#: The derived keys that are kept for reading: about 1 KiB each.
_MAX_KEPT: Final = 4096


class _Session(NamedTuple):
    key_id: int
    salt: bytes
    aead: AESGCM


class CipherSessions:
    """Encrypts and decrypts for one tenant in one process. Not for two threads at once."""

    def __init__(self, keys: TenantKeys) -> None:
        #: Replaced when the registry has changed.
        self.keys = keys
        self._current: _Session | None = None
        self._counter = 0
        self._known: dict[tuple[int, bytes], AESGCM] = {}

    def encrypt(self, clear: bytes, aad: bytes) -> tuple[Box, bytes]:
        """Return the box of encrypted bytes, and those, as long as before. Raises
        KeyUnavailableError, TenantShreddedError."""
        session = self._current
        if (
            session is None
            or session.key_id != self.keys.current_id
            or self._counter == SESSION_VALUES
        ):
            session = self._begin()
        counter, self._counter = self._counter, self._counter + 1
        encrypted = session.aead.encrypt(counter.to_bytes(NONCE_BYTES), clear, aad)
        box = Box(session.key_id, session.salt, counter, encrypted[-TAG_BYTES:])
        return box, encrypted[:-TAG_BYTES]

    def decrypt(self, box: Box, encrypted: bytes, aad: bytes) -> bytes | None:
        """Return what was encrypted; None if it is not authentic. Raises KeyUnavailableError,
        TenantShreddedError."""
        # First, so that a destroyed key decrypts nothing, whatever is still in memory.
        key = self.keys.key(box.key_id)
        aead = self._known.get((box.key_id, box.salt))
        if aead is None:
            aead = aes_gcm(derived(key, _PURPOSE, box.salt))
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            self._known[box.key_id, box.salt] = aead
        return authentic(aead, box.counter.to_bytes(NONCE_BYTES), encrypted + box.tag, aad)

    def becomes(self, keys: TenantKeys) -> None:
        """Use these keys from now on."""
        self.keys, self._current = keys, None
        self._known.clear()

    def _begin(self) -> _Session:
        key_id = self.keys.current_id
        salt = os.urandom(SALT_BYTES)
        aead = aes_gcm(derived(self.keys.key(key_id), _PURPOSE, salt))
        self._current, self._counter = _Session(key_id, salt, aead), 0
        return self._current
