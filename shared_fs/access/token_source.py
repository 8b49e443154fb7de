"""Where a server reads tokens: the registry, with the keys of its issuers.

Calls block; several threads may call at once. The issuers are read once and again after
ISSUER_SECONDS, or when a token names one that is not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from holdfast.protocol.access.tokens import Token, read_token
from holdfast.protocol.errors import InvalidTokenError
from holdfast.shared_fs.access.registry import AccessRegistry, Issuer, Revocations, verified
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import NoBucketError

#: How long the issuers are taken to be the same.
ISSUER_SECONDS: Final = 60.0
#: The registry's folder under `--data`, and its prefix in the bucket of a cluster without a shared
#: file system.
_FOLDER: Final = "auth"


class RegisteredTokens:
    """The tokens of a registry that its issuers signed."""

    def __init__(
        self, registry: AccessRegistry, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._monotonic = monotonic
        #: The issuers, and when they were read.
        self._issuers: tuple[Mapping[str, Issuer], float] | None = None
        self._revocations: Revocations | None = None

    def is_set_up(self) -> bool:
        """Tell whether the registry has issuers, so that servers ask for tokens. Raises what the
        bucket raises."""
        return bool(self._read_issuers())

    def token(self, token_id: str) -> Token | None:
        """Return a registered token that its issuer signed; None if there is none. Whether it is
        expired or revoked is the caller's to check.

        Raises InvalidTokenError, and what the bucket raises.
        """
        text = self._registry.token_text(token_id)
        if text is None:
            return None
        token = verified(text, self._issuers_for(read_token(text).issuer))
        if token.id != token_id:
            raise InvalidTokenError(reason=f"it is registered as {token_id!r}, and is {token.id!r}")
        return token

    def shown(self, text: str) -> Token:
        """Return what a token says that somebody shows, which one of the issuers signed. Whether it
        is expired or revoked is the caller's to check.

        Raises InvalidTokenError, and what the bucket raises.
        """
        return verified(text, self._issuers_for(read_token(text).issuer))

    def revoked(self) -> Collection[str]:
        """Return the ids of all revoked tokens: the same object again if nothing has changed.
        Raises what the bucket raises."""
        # One thread at a time asks for these.
        self._revocations = self._registry.revocations(self._revocations)
        return self._revocations.ids

    def _issuers_for(self, name: str) -> Mapping[str, Issuer]:
        if self._issuers is not None:
            issuers, read_at = self._issuers
            if name in issuers and self._monotonic() < read_at + ISSUER_SECONDS:
                return issuers
        return self._read_issuers()

    def _read_issuers(self) -> Mapping[str, Issuer]:
        at = self._monotonic()
        issuers = self._registry.issuers()
        self._issuers = issuers, at
        return issuers


def find_tokens(root: Path, bucket: Bucket | None) -> RegisteredTokens | None:
    """Return the tokens of a cluster, or None if it is open: it has no registry, or one without
    issuers. `bucket` is the cluster's, if it has no shared file system; `root` is `--data`.

    Nothing is created. Raises what the bucket raises, and InvalidTokenError without PyNaCl.
    """
    if bucket is not None:
        registry = AccessRegistry(bucket, f"{_FOLDER}/")
    else:
        try:
            own = open_bucket((root.resolve() / _FOLDER).as_uri(), make=False)
        except NoBucketError:
            return None
        registry = AccessRegistry(own)
    tokens = RegisteredTokens(registry)
    if not tokens.is_set_up():
        return None
    _check_installed()
    return tokens


def _check_installed() -> None:
    try:
        import nacl.signing  # noqa: F401
    except ImportError as error:
        reason = "to verify it, this server needs the extra auth: PyNaCl is not installed"
        raise InvalidTokenError(reason=reason) from error
