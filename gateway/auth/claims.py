"""NATS's claims: JSON that an nkey signed, as `<header>.<claims>.<signature>`. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.protocol.access.nkeys_text import KeyKind, public_key, public_text
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError

if TYPE_CHECKING:
    from nacl.signing import SigningKey

#: The version of claims that nats-server 2.10 and later write and read.
CLAIMS_VERSION: Final = 2
_ALGORITHM: Final = "ed25519-nkey"
_HEADER: Final = {"typ": "JWT", "alg": _ALGORITHM}


def sign_claims(
    claims: Mapping[str, object], kind: KeyKind, key: SigningKey, now_seconds: int
) -> str:
    """Return the text of `claims`, with their issuer, time and id, signed by an nkey of `kind`."""
    whole = {
        **claims,
        "iss": public_text(kind, bytes(key.verify_key)),
        "iat": now_seconds,
    }
    digest = hashlib.sha256(_json(whole)).digest()
    whole["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    signed = f"{_encode(_json(_HEADER))}.{_encode(_json(whole))}"
    return f"{signed}.{_encode(key.sign(signed.encode()).signature)}"


def read_claims(text: str, kind: KeyKind) -> Mapping[str, Any]:
    """Return the claims of `text` if the nkey of `kind` that they name as their issuer signed them.

    Whether that one may say so is the caller's to check. Raises MalformedFrameError, whatever
    `text` is.
    """
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    parts = text.split(".")
    if len(parts) != 3:
        raise MalformedFrameError(reason="claims have three parts")
    header, claims = (_object(part) for part in parts[:2])
    if header.get("alg") != _ALGORITHM:
        raise MalformedFrameError(reason=f"claims are signed by {_ALGORITHM}")
    try:
        key = VerifyKey(public_key(kind, str(claims.get("iss"))))
        key.verify(text.rpartition(".")[0].encode(), _decode(parts[2]))
    except (InvalidArgumentError, BadSignatureError, ValueError) as error:
        reason = "their issuer did not sign these claims"
        raise MalformedFrameError(reason=reason) from error
    return claims


def _object(part: str) -> Mapping[str, Any]:
    try:
        found = json.loads(_decode(part))
    except (ValueError, RecursionError) as error:
        raise MalformedFrameError(reason="claims are JSON in base64url") from error
    if type(found) is not dict:
        raise MalformedFrameError(reason="claims are a JSON object")
    return found


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedFrameError(reason="a part of the claims is not base64url") from error
