"""Names of tenants, stores, servers and keys: one grammar, checked wherever a name comes in.

A store name is 1 to 16 tokens joined by dots, at most 200 bytes. So it works as a NATS subject
suffix, a file name and an object key alike, and leaves room for a suffix within the 255 bytes of a
file name. Text with other characters (a path, an e-mail address) goes through `quote`: reversible
percent-encoding, in which `%` itself is always encoded.

This module does not map names to subjects (`subjects.py`) or to files (`shared_fs/disk/layout.py`).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple, NewType

from holdfast.protocol.errors import InvalidNameError
from holdfast.protocol.limits import (
    MAX_CURSOR_NAME_BYTES,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_NAME_TOKENS,
)

TenantName = NewType("TenantName", str)
StoreName = NewType("StoreName", str)
ServerId = NewType("ServerId", str)
Incarnation = NewType("Incarnation", str)
Seq = NewType("Seq", int)
Revision = NewType("Revision", int)
Epoch = NewType("Epoch", int)

_TOKEN: Final = "[A-Za-z0-9_=%@+~,:-]+"
_STORE: Final = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
#: The tenant of the cluster's own stores. No other tenant's name begins so, and no token is for it.
SYSTEM_TENANT: Final = "_system"
_UNQUOTED: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_=@+~,:-"
)


class StoreKind(IntEnum):
    """The two kinds of store."""

    # The numbers are on the wire and in files: never renumber them.
    STREAM = 1
    KV = 2

    @property
    def letter(self) -> str:
        """The token of this kind in a change subject: `s` or `k`."""
        return "s" if self is StoreKind.STREAM else "k"

    @property
    def word(self) -> str:
        """The kind in file names, JSON and tables: `stream` or `kv`."""
        return "stream" if self is StoreKind.STREAM else "kv"


class StoreId(NamedTuple):
    """A store anywhere in the cluster. A NamedTuple: it is hashed
    for every group of every frame."""

    tenant: str
    kind: int
    name: str

    def __str__(self) -> str:
        return f"{StoreKind(self.kind).word} {self.name!r} of tenant {self.tenant!r}"


def check_tenant(name: str) -> TenantName:
    """Return `name` as a tenant name, which may be the system's. Raises InvalidNameError."""
    if name == SYSTEM_TENANT:
        return TenantName(SYSTEM_TENANT)
    return check_own_tenant(name)


def check_own_tenant(name: str) -> TenantName:
    """Return `name` as that of a tenant which tokens, quotas and issuers may be for, and which may
    be destroyed: not the system's. Raises InvalidNameError."""
    return TenantName(_check_plain("tenant", name))


def check_server(name: str) -> ServerId:
    """Return `name` as a server name. Raises InvalidNameError."""
    return ServerId(_check_plain("server", name))


def check_store(name: str) -> StoreName:
    """Return `name` as a store name. Raises InvalidNameError."""
    if not isinstance(name, str) or not _STORE.fullmatch(name):
        raise InvalidNameError(
            what="store",
            name=str(name)[:MAX_NAME_BYTES],
            reason="tokens of A-Z a-z 0-9 _ = % @ + ~ , : - joined by dots; quote() the rest",
        )
    if len(name) > MAX_NAME_BYTES or name.count(".") >= MAX_NAME_TOKENS:
        raise InvalidNameError(
            what="store",
            name=name[:MAX_NAME_BYTES],
            reason=f"at most {MAX_NAME_BYTES} bytes and {MAX_NAME_TOKENS} tokens",
        )
    return StoreName(name)


def check_issuer(name: str) -> str:
    """Return `name` as the name of an issuer of tokens. Raises InvalidNameError."""
    return _check_plain("issuer", name)


def check_consumer(name: str) -> str:
    """Return `name` as a consumer name. Raises InvalidNameError."""
    return _check_plain("consumer", name)


def check_cursor(name: str) -> str:
    """Return `name` as that of a cursor: text of 1 to MAX_CURSOR_NAME_BYTES in UTF-8. Raises
    InvalidNameError."""
    if not isinstance(name, str) or not name:
        raise InvalidNameError(what="cursor", name=repr(name)[:80], reason="it must be text")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidNameError(
            what="cursor", name=ascii(name)[:80], reason="not encodable as UTF-8"
        ) from error
    if size_bytes > MAX_CURSOR_NAME_BYTES:
        raise InvalidNameError(
            what="cursor",
            name=name[:80],
            reason=f"{size_bytes} bytes; at most {MAX_CURSOR_NAME_BYTES}",
        )
    return name


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it is valid. Raises InvalidNameError.

    A pattern is a store name in which `*` may stand for one token, and a last `>` for one or more,
    as in NATS subjects.
    """
    tokens = pattern.split(".") if isinstance(pattern, str) else []
    plain = ["x" if token == "*" else token for token in tokens]
    if plain[-1:] == [">"]:
        plain[-1] = "x"
    try:
        check_store(".".join(plain))
    except InvalidNameError as error:
        raise InvalidNameError(
            what="pattern",
            name=str(pattern)[:MAX_NAME_BYTES],
            reason="it must be a store name; a token may be *, and the last one >",
        ) from error
    return pattern


def literal_start(pattern: str) -> str:
    """Return the start that the names of all stores matching `pattern` share."""
    return min(pattern.split("*", 1)[0], pattern.split(">", 1)[0], key=len)


def matches(pattern: str, name: str) -> bool:
    """Tell whether the store `name` matches `pattern`."""
    wanted, tokens = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(each in ("*", token) for each, token in zip(wanted, tokens, strict=False))


def check_key(key: str) -> str:
    """Return `key`: any text of at most MAX_KEY_BYTES in UTF-8, also empty. Raises
    InvalidNameError."""
    if not isinstance(key, str):
        raise InvalidNameError(what="key", name=repr(key)[:80], reason="a key is text")
    try:
        size_bytes = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidNameError(
            what="key", name=ascii(key)[:80], reason="not encodable as UTF-8"
        ) from error
    if size_bytes > MAX_KEY_BYTES:
        raise InvalidNameError(
            what="key", name=key[:80], reason=f"{size_bytes} bytes; at most {MAX_KEY_BYTES}"
        )
    return key


def quote(text: str) -> str:
    """Return `text`, which is not empty, as one token of a store name, percent-encoded. `unquote`
    reverses it.
    """
    return "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in text.encode())


def unquote(token: str) -> str:
    """Return the text that `quote` turned into `token`."""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), token.encode())
    return raw.decode()


def _check_plain(what: str, name: str) -> str:
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        raise InvalidNameError(
            what=what,
            name=str(name)[:MAX_NAME_BYTES],
            reason="1 to 63 of A-Z a-z 0-9 _ -, the first a letter or a digit",
        )
    return name
