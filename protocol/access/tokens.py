"""Tokens: signed text that says who may do what on which stores, and until when.

    hft1.<payload>.<signature>

`payload` is JSON and `signature` the Ed25519 signature of `hft1.<payload>`, both in base64url
without padding. A token is checked with the public key of its *issuer* alone, so nobody keeps a
table of tokens, and an identity provider can issue them too. The payload:

| field | meaning |
|---|---|
| `id` | 16 to 64 of A-Z a-z 0-9 _ -, unique for ever: the name of the grant on the wire |
| `issuer` | the name of the key that signed it |
| `tenant` | the tenant whose stores it is for; `*` for operators |
| `stores` | patterns of store names, each for all kinds, or for one as `stream:...`, `kv:...` |
| `allow` | words of rights: see `rights.py` |
| `expires` | seconds since 1970, or left out: it does not expire |
| `created` | the same, of its creation |
| `subject` | who holds it, for the audit log; a renewed token of the same holder has the same one |
| `limits` | `rate`, `bytes_per_second`, `connections`: numbers from 1 on, each may be left out |

What is not in this table is ignored, so that later versions may add fields that restrict nothing.
The cryptography is PyNaCl's (libsodium), which only those need who sign and verify.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.protocol.access.rights import NO_RIGHTS, Right, rights_of
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidTokenError,
)
from holdfast.protocol.limits import (
    MAX_INTEGER,
    MAX_NAME_BYTES,
    MAX_TOKEN_BYTES,
    MAX_TOKEN_PATTERNS,
)
from holdfast.protocol.names import (
    StoreKind,
    check_issuer,
    check_own_tenant,
    check_pattern,
    matches,
)

if TYPE_CHECKING:
    from nacl.signing import SigningKey, VerifyKey

TOKEN_VERSION: Final = "hft1"
#: In place of a tenant: all of them, and the cluster itself. Only the cluster's own key signs it.
EVERY_TENANT: Final = "*"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_ID_BYTES: Final = 16
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
_LIMIT_NAMES: Final = ("rate", "bytes_per_second", "connections")
_KINDS: Final = {kind.word: kind for kind in StoreKind}


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """How fast the holder of a token may go. None: no limit of its own."""

    #: Operations a second.
    rate: int | None = None
    bytes_per_second: int | None = None
    #: NATS connections at a time.
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says. Made by `new_token` and `read_token`, which check it."""

    id: str
    issuer: str
    tenant: str
    stores: tuple[str, ...]
    rights: Right
    created_at: int
    expires_at: int | None = None
    subject: str = ""
    limits: TokenLimits = field(default_factory=TokenLimits)

    @property
    def is_operator(self) -> bool:
        """True if it is for every tenant and the cluster itself."""
        return self.tenant == EVERY_TENANT

    def is_expired(self, now_seconds: float) -> bool:
        return self.expires_at is not None and now_seconds >= self.expires_at

    def is_for(self, tenant: str) -> bool:
        """Tell whether it is for the stores of `tenant`."""
        return self.tenant in (tenant, EVERY_TENANT)

    def rights_on(self, kind: int, name: str) -> Right:
        """Return what it allows on a store of its tenant."""
        for pattern in self.stores:
            kinds, plain = split_pattern(pattern)
            if kind in kinds and matches(plain, name):
                return self.rights
        return NO_RIGHTS


def split_pattern(pattern: str) -> tuple[tuple[StoreKind, ...], str]:
    """Return the kinds and the plain pattern of one of a token's patterns."""
    word, colon, plain = pattern.partition(":")
    if colon and word in _KINDS:
        return (_KINDS[word],), plain
    return tuple(StoreKind), pattern


def new_token(
    *,
    issuer: str,
    tenant: str,
    stores: Sequence[str],
    rights: Right,
    created_at: int,
    expires_at: int | None = None,
    subject: str = "",
    limits: TokenLimits | None = None,
) -> Token:
    """Return a token with a new id, unsigned. Raises InvalidArgumentError, InvalidNameError."""
    token = Token(
        secrets.token_hex(_ID_BYTES),
        issuer,
        tenant,
        tuple(stores),
        rights,
        created_at,
        expires_at,
        subject,
        limits or TokenLimits(),
    )
    _check(token)
    return token


def sign_token(token: Token, key: SigningKey) -> str:
    """Return the text of a token. Raises InvalidArgumentError if it is too large for NATS."""
    payload: dict[str, object] = {
        "id": token.id,
        "issuer": token.issuer,
        "tenant": token.tenant,
        "stores": list(token.stores),
        "allow": list(token.rights.words),
        "created": token.created_at,
    }
    if token.expires_at is not None:
        payload["expires"] = token.expires_at
    if token.subject:
        payload["subject"] = token.subject
    limits = {
        name: value
        for name in _LIMIT_NAMES
        if (value := getattr(token.limits, name)) is not None
    }
    if limits:
        payload["limits"] = limits
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    signed = f"{TOKEN_VERSION}.{_encode(text.encode())}"
    whole = f"{signed}.{_encode(key.sign(signed.encode()).signature)}"
    if len(whole) > MAX_TOKEN_BYTES:
        raise InvalidArgumentError(
            argument="token",
            reason=f"it has {len(whole)} bytes, at most {MAX_TOKEN_BYTES}; name fewer stores",
        )
    return whole


def read_token(text: str) -> Token:
    """Return what a token says, **unverified**: clients read their own tokens so. Raises
    InvalidTokenError, whatever `text` is.
    """
    payload, _ = _split(text)
    try:
        return _parse(payload)
    except InvalidTokenError:
        raise
    except HoldfastError as error:
        raise InvalidTokenError(reason=str(error)) from error


def verify_token(text: str, keys: Mapping[str, VerifyKey]) -> Token:
    """Return what a token says, if the key of its issuer signed it. `keys` are by issuer.

    Raises InvalidTokenError, whatever `text` is. Whether it is expired or revoked, and whether the
    issuer may issue tokens for its tenant, is the caller's to check.
    """
    from nacl.exceptions import BadSignatureError

    token = read_token(text)
    _, signature = _split(text)
    key = keys.get(token.issuer)
    if key is None:
        raise InvalidTokenError(reason=f"no issuer {token.issuer!r} is registered")
    try:
        key.verify(text.rpartition(".")[0].encode(), signature)
    except (BadSignatureError, ValueError) as error:
        reason = f"the key of issuer {token.issuer!r} did not sign it"
        raise InvalidTokenError(reason=reason) from error
    return token


def _split(text: object) -> tuple[bytes, bytes]:
    """Return the payload and the signature."""
    if not isinstance(text, str) or len(text) > MAX_TOKEN_BYTES or not text.isascii():
        raise InvalidTokenError(reason=f"it is not text of at most {MAX_TOKEN_BYTES} bytes")
    parts = text.split(".")
    if len(parts) != 3 or parts[0] != TOKEN_VERSION:
        raise InvalidTokenError(reason=f"it is not {TOKEN_VERSION}.<payload>.<signature>")
    return _decode(parts[1]), _decode(parts[2])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(part: str) -> bytes:
    if _BASE64URL.fullmatch(part) is None:
        raise InvalidTokenError(reason="a part of it is not base64url")
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError) as error:
        raise InvalidTokenError(reason="a part of it is not base64url") from error
    if _encode(data) != part:
        # Otherwise one token could be written in several ways.
        raise InvalidTokenError(reason="a part of it is not canonical base64url")
    return data


def _parse(payload: bytes) -> Token:
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidTokenError(reason="its payload is not JSON") from error
    if type(fields) is not dict:
        raise InvalidTokenError(reason="its payload is not a JSON object")
    limits = fields.get("limits", {})
    if type(limits) is not dict:
        raise InvalidTokenError(reason="`limits` is not a JSON object")
    token = Token(
        _text(fields, "id"),
        _text(fields, "issuer"),
        _text(fields, "tenant"),
        _texts(fields, "stores"),
        rights_of(_texts(fields, "allow")),
        _number(fields, "created", at_least=0) or 0,
        _number(fields, "expires", at_least=0),
        _text(fields, "subject", ""),
        TokenLimits(*(_number(limits, name, at_least=1) for name in _LIMIT_NAMES)),
    )
    _check(token)
    return token


def _check(token: Token) -> None:
    if _ID.fullmatch(token.id) is None:
        raise InvalidNameError(
            what="token", name=token.id[:MAX_NAME_BYTES], reason="16 to 64 of A-Z a-z 0-9 _ -"
        )
    check_issuer(token.issuer)
    if not token.is_operator:
        check_own_tenant(token.tenant)
    if not 1 <= len(token.stores) <= MAX_TOKEN_PATTERNS:
        raise InvalidArgumentError(
            argument="stores", reason=f"1 to {MAX_TOKEN_PATTERNS} patterns"
        )
    for pattern in token.stores:
        check_pattern(split_pattern(pattern)[1])
    if not token.rights:
        raise InvalidArgumentError(argument="allow", reason="a token needs at least one right")
    if len(token.subject) > MAX_NAME_BYTES or not token.subject.isprintable():
        raise InvalidArgumentError(
            argument="subject", reason=f"printable text of at most {MAX_NAME_BYTES} characters"
        )


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if type(value) is not str:
        raise InvalidTokenError(reason=f"`{name}` is not text")
    return value


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = fields.get(name)
    if type(values) is not list or not all(type(value) is str for value in values):
        raise InvalidTokenError(reason=f"`{name}` is not a list of text")
    return tuple(values)


def _number(fields: Mapping[str, Any], name: str, *, at_least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not at_least <= value <= MAX_INTEGER:
        raise InvalidTokenError(reason=f"`{name}` is not a whole number from {at_least} on")
    return value
