"""The text of NATS's keys, called nkeys: what configurations and NATS's own claims contain.

A public key is base32 of a byte for its kind, 32 bytes, and a CRC-16; a *seed*, the secret, has the
kind behind a mark for seeds, so its text begins with `S`. Pure: no cryptography, only its spelling.
The package `nkeys` knows no keys for encryption, so it cannot be used for all of them.
"""

from __future__ import annotations

import base64
import binascii
from enum import IntEnum
from typing import Final

from holdfast.protocol.errors import InvalidArgumentError

KEY_BYTES: Final = 32
_CHECKSUM_BYTES: Final = 2
#: `S`, in front of the kind of a seed.
_SEED: Final = 18 << 3


class KeyKind(IntEnum):
    """What a key is for. The number gives its text its first letter."""

    ACCOUNT = 0  # A
    SERVER = 13 << 3  # N
    USER = 20 << 3  # U
    #: For encryption (X25519); all others are for signatures (Ed25519).
    CURVE = 23 << 3  # X


def public_text(kind: KeyKind, key: bytes) -> str:
    """Return the text of a public key."""
    return _encode(bytes([kind]), key)


def seed_text(kind: KeyKind, seed: bytes) -> str:
    """Return the text of a secret."""
    return _encode(bytes([_SEED | kind >> 5, (kind & 31) << 3]), seed)


def public_key(kind: KeyKind, text: str) -> bytes:
    """Return the public key of `text`. Raises InvalidArgumentError, also for another kind."""
    return _decode(bytes([kind]), text, f"a public {kind.name.lower()} key")


def seed(kind: KeyKind, text: str) -> bytes:
    """Return the secret of `text`. Raises InvalidArgumentError, which does not quote it."""
    mark = bytes([_SEED | kind >> 5, (kind & 31) << 3])
    return _decode(mark, text, f"the seed of a {kind.name.lower()} key")


def _encode(mark: bytes, key: bytes) -> str:
    assert len(key) == KEY_BYTES
    data = mark + key
    return base64.b32encode(data + _checksum(data)).rstrip(b"=").decode()


def _decode(mark: bytes, text: str, what: str) -> bytes:
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(argument="nkey", reason=f"it is not {what}") from error
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    fits = len(body) == len(mark) + KEY_BYTES and body.startswith(mark)
    if not fits or checksum != _checksum(body):
        raise InvalidArgumentError(argument="nkey", reason=f"it is not {what}")
    return body[len(mark) :]


def _checksum(data: bytes) -> bytes:
    return binascii.crc_hqx(data, 0).to_bytes(_CHECKSUM_BYTES, "little")
