"""AES-256-GCM, and the one place that needs the package `cryptography`."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from holdfast.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
#: NIST SP 800-38D, 8.2: the length that needs no further hashing.
NONCE_BYTES: Final = 12


def aes_gcm(key: bytes) -> AESGCM:
    """Return AES-256-GCM with a key of 32 bytes. Raises InvalidArgumentError without the package
    cryptography."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        reason = "encrypted values need the package cryptography, which the extra server brings"
        raise InvalidArgumentError(argument="encryption", reason=reason) from error
    assert len(key) == KEY_BYTES
    return AESGCM(key)


def authentic(aead: AESGCM, nonce: bytes, encrypted: bytes, aad: bytes) -> bytes | None:
    """Return what was encrypted; None if it or `aad` was changed, or the key is another one."""
    from cryptography.exceptions import InvalidTag

    try:
        return aead.decrypt(nonce, encrypted, aad)
    except InvalidTag:
        return None


def derived(key: bytes, purpose: bytes, salt: bytes) -> bytes:
    """Return a key for one purpose: HKDF-Expand of RFC 5869, whose first block is all of it. The
    key it is made from is uniformly random."""
    return hmac.new(key, purpose + b"\0" + salt + b"\x01", hashlib.sha256).digest()
