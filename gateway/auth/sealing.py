"""Encryption between nats-server and the auth service: NATS's format `xkv1`, with PyNaCl.

    "xkv1" <nonce of 24 bytes> <X25519, XSalsa20 and Poly1305: a box of NaCl>

A box shows who sealed it: only the holders of one of the two private keys can make or open it.
"""

from __future__ import annotations

from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from holdfast.protocol.access.nkeys_text import KeyKind, public_key
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError

_VERSION: Final = b"xkv1"


def open_sealed(key: PrivateKey, sender: str, sealed: bytes) -> bytes:
    """Return what `sender`, the text of a public xkey, sealed for `key`.

    Raises MalformedFrameError, whatever the arguments are.
    """
    start = len(_VERSION)
    if not sealed.startswith(_VERSION) or len(sealed) <= start + Box.NONCE_SIZE:
        raise MalformedFrameError(reason=f"it is not encrypted as {_VERSION.decode()}")
    try:
        nonce, rest = sealed[start : start + Box.NONCE_SIZE], sealed[start + Box.NONCE_SIZE :]
        return Box(key, _public(sender)).decrypt(rest, nonce)
    except (CryptoError, InvalidArgumentError, ValueError) as error:
        raise MalformedFrameError(reason="it was encrypted with other keys") from error


def seal(key: PrivateKey, recipient: str, text: bytes) -> bytes:
    """Return `text`, encrypted for `recipient`, the text of a public xkey. Raises
    InvalidArgumentError."""
    sealed = Box(key, _public(recipient)).encrypt(text)
    return _VERSION + sealed.nonce + sealed.ciphertext


def _public(text: str) -> PublicKey:
    return PublicKey(public_key(KeyKind.CURVE, text))
