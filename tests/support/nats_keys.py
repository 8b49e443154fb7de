"""Keys of NATS, and what they sign: the JWTs of an operator, an account and its user."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys


def secret_file(path: Path, content: str) -> Path:
    """Write a file for this user alone, and return its path."""
    path.touch(0o600)
    path.write_text(content)
    return path


def new_seed(kind: int) -> str:
    """Return a new key; `kind` is one of the PREFIX_BYTE constants of nkeys."""
    return nkeys.encode_seed(os.urandom(32), kind).decode()


def public_key(seed: str) -> str:
    return nkeys.from_seed(bytearray(seed, "ascii")).public_key.decode()


class Operator:
    """An operator with one account, whose users have credentials files."""

    def __init__(self) -> None:
        self._seed = new_seed(nkeys.PREFIX_BYTE_OPERATOR)
        self._account_seed = new_seed(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def configuration(self) -> str:
        """The lines with which a nats-server trusts the operator."""
        account = public_key(self._account_seed)
        limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1}
        of_account = {"type": "account", "version": 2, "limits": limits}
        operator = _signed(self._seed, public_key(self._seed), {"type": "operator", "version": 2})
        return (
            f"operator: {operator}\nresolver: MEMORY\n"
            f"resolver_preload: {{{account}: {_signed(self._seed, account, of_account)}}}\n"
        )

    def credentials(self, path: Path, *, expired: bool = False) -> Path:
        """Write the credentials file of a new user."""
        seed = new_seed(nkeys.PREFIX_BYTE_USER)
        of_user = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        lasts = {"exp": int(time.time()) - 60} if expired else {}
        jwt = _signed(self._account_seed, public_key(seed), of_user, lasts)
        return secret_file(
            path,
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n",
        )


def _signed(
    seed: str, subject: str, content: dict[str, Any], more: dict[str, Any] | None = None
) -> str:
    """Return a JWT about the key `subject`."""
    claims = {
        "iss": public_key(seed),
        "sub": subject,
        "name": content["type"],
        "iat": int(time.time()),
        "nats": content,
        **(more or {}),
    }
    digest = hashlib.sha256(json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    header = _encoded(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    text = f"{header}.{_encoded(json.dumps(claims).encode())}"
    signature = nkeys.from_seed(bytearray(seed, "ascii")).sign(text.encode())
    return f"{text}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
