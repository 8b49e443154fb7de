"""Tokens and registries for tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from nacl.signing import SigningKey

from holdfast.protocol.access.rights import ALL_RIGHTS, Right
from holdfast.protocol.access.tokens import Token, new_token, sign_token
from holdfast.protocol.errors import HoldfastError
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER, AccessRegistry, Issuer
from holdfast.shared_fs.bucket.bucket import open_bucket

#: The key of the cluster's own issuer, in tests.
ISSUER_KEY = SigningKey(bytes(range(32)))


def a_token(
    rights: Right = ALL_RIGHTS,
    stores: Sequence[str] = (">",),
    *,
    tenant: str = "acme",
    **fields: Any,
) -> Token:
    """Return a new token."""
    return new_token(
        **{
            "issuer": CLUSTER_ISSUER,
            "tenant": tenant,
            "stores": stores,
            "rights": rights,
            "created_at": 0,
            **fields,
        }
    )


class Tokens:
    """A source of tokens in memory, which a test can make fail."""

    def __init__(self, *tokens: Token) -> None:
        self.tokens = {token.id: token for token in tokens}
        self.revoked_ids: Collection[str] = frozenset()
        self.failure: HoldfastError | None = None
        self.loads: list[str] = []

    def revoke(self, token: Token) -> None:
        self.revoked_ids = frozenset([*self.revoked_ids, token.id])

    def token(self, token_id: str) -> Token | None:
        self.loads.append(token_id)
        if self.failure is not None:
            raise self.failure
        return self.tokens.get(token_id)

    def revoked(self) -> Collection[str]:
        if self.failure is not None:
            raise self.failure
        return self.revoked_ids


def make_registry(data: Path) -> AccessRegistry:
    """Set up the registry of a cluster with a shared file system."""
    registry = AccessRegistry(open_bucket((data / "auth").as_uri()))
    registry.add_issuer(Issuer(CLUSTER_ISSUER, bytes(ISSUER_KEY.verify_key), ("*",)))
    return registry


def register(registry: AccessRegistry, token: Token) -> str:
    """Sign and register a token, and return its text."""
    text = sign_token(token, ISSUER_KEY)
    registry.put_token(text, token)
    return text
