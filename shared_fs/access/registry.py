"""The registry of tokens: objects in a bucket of its own, or in the cluster's bucket.

    <data>/auth/                 with a shared file system: a bucket in a directory
    <bucket>/auth/...            with `--disk local`

    issuers/<name>               the public key of an issuer, and the tenants it may issue for
    tokens/<id>                  the text of a token, put once, before it is first used
    revoked                      the ids of all revoked tokens, until a day after they expire

The registry exists once `issuers/` has the cluster's own key; from then on servers refuse what
comes without a token. Servers read a token once, and look at `revoked` every other second while
requests come in: one small object, whatever the number of tokens. Calls block.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.protocol.access.tokens import EVERY_TENANT, Token, verify_token
from holdfast.protocol.errors import (
    InvalidArgumentError,
    InvalidTokenError,
    StoreDamagedError,
)
from holdfast.protocol.limits import MAX_REVOKED_BYTES, MAX_TOKEN_BYTES
from holdfast.protocol.names import check_issuer, check_own_tenant
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
)

if TYPE_CHECKING:
    from nacl.signing import VerifyKey

#: Where the registry is in the cluster's bucket, and the folder of it on a shared file system.
REGISTRY_PREFIX: Final = "auth/"
#: The issuer that `holdfast auth init` makes: the only one that may issue tokens for operators.
CLUSTER_ISSUER: Final = "cluster"
_KEY_BYTES: Final = 32
#: A revoked token stays listed for this long after it has expired, for servers whose clocks are
#: behind: by theirs it has not.
_KEPT_SECONDS: Final = 24 * 3600
_MAX_ISSUER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who may sign tokens for which tenants; `*` stands for all, and for operators."""

    name: str
    #: An Ed25519 public key, 32 bytes.
    public_key: bytes
    tenants: tuple[str, ...]

    def may_issue_for(self, tenant: str) -> bool:
        if tenant == EVERY_TENANT:
            return self.name == CLUSTER_ISSUER
        return tenant in self.tenants or EVERY_TENANT in self.tenants


@dataclass(frozen=True, slots=True)
class Revocations:
    """The revoked tokens, as of one version of their object; `version` is None before the first."""

    version: str | None
    #: By id: when the token expires, in seconds since 1970, or None.
    ids: Mapping[str, int | None]
    #: How often the object was put, since the bodies of an object must never repeat: `bucket.py`.
    count: int = 0


class AccessRegistry:
    """The registry in a bucket, under `prefix`. Thread-safe.

    All methods raise what the bucket raises, and StoreDamagedError for an object that makes no
    sense.
    """

    def __init__(self, bucket: Bucket, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix

    def close(self) -> None:
        """Close the bucket."""
        self._bucket.close()

    # Issuers
    def add_issuer(self, issuer: Issuer) -> None:
        """Register an issuer. Raises InvalidArgumentError if its name is taken."""
        check_issuer(issuer.name)
        if len(issuer.public_key) != _KEY_BYTES:
            raise InvalidArgumentError(
                argument="public key", reason=f"an Ed25519 public key has {_KEY_BYTES} bytes"
            )
        for tenant in issuer.tenants:
            if tenant != EVERY_TENANT:
                check_own_tenant(tenant)
        fields = {
            "public_key": base64.b64encode(issuer.public_key).decode(),
            "tenants": list(issuer.tenants),
        }
        try:
            self._bucket.put_new(self._issuer_key(issuer.name), _body(fields))
        except ObjectExistsError as error:
            raise InvalidArgumentError(
                argument="issuer", reason=f"{issuer.name!r} is registered already"
            ) from error

    def issuers(self) -> dict[str, Issuer]:
        """Return all issuers by name; empty before the registry is set up."""
        start = self._issuer_key("")
        found = {}
        for listed in self._bucket.list(start):
            name = listed.key.removeprefix(start)
            found[name] = self._issuer(name)
        return found

    def _issuer(self, name: str) -> Issuer:
        key = self._issuer_key(name)
        fields = _fields(key, self._bucket.get(key, limit_bytes=_MAX_ISSUER_BYTES).body)
        try:
            public_key = base64.b64decode(fields["public_key"], validate=True)
            tenants = tuple(str(tenant) for tenant in fields["tenants"])
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise StoreDamagedError(store=key, reason=f"it is no issuer: {error!r}") from error
        return Issuer(name, public_key, tenants)

    # Tokens
    def put_token(self, text: str, token: Token) -> bool:
        """Register a verified token; one that is there already is fine. Return whether it is new.

        Raises InvalidTokenError if another token has its id.
        """
        key = self._token_key(token.id)
        try:
            self._bucket.put_new(key, text.encode())
        except ObjectExistsError as error:
            if self.token_text(token.id) != text:
                reason = f"its id {token.id!r} is that of another token"
                raise InvalidTokenError(reason=reason) from error
            return False
        return True

    def token_text(self, token_id: str) -> str | None:
        """Return the text of a registered token, or None."""
        key = self._token_key(token_id)
        try:
            body = self._bucket.get(key, limit_bytes=MAX_TOKEN_BYTES).body
        except ObjectMissingError:
            return None
        try:
            return body.decode("ascii")
        except UnicodeDecodeError as error:
            raise StoreDamagedError(store=key, reason="it is no token") from error

    def token_ids(self) -> Iterator[str]:
        """Yield the ids of all registered tokens, in order."""
        start = self._token_key("")
        for listed in self._bucket.list(start):
            yield listed.key.removeprefix(start)

    def forget_token(self, token_id: str) -> None:
        """Remove a token that has expired. Its id must never be used again."""
        self._bucket.delete(self._token_key(token_id))

    # Revocations
    def revocations(self, known: Revocations | None = None) -> Revocations:
        """Return what is revoked; `known` itself if nothing has changed since."""
        key = self._prefix + "revoked"
        try:
            if known is not None and self._bucket.head(key).version == known.version:
                return known
            found = self._bucket.get(key, limit_bytes=MAX_REVOKED_BYTES)
        except ObjectMissingError:
            return Revocations(None, {})
        fields = _fields(key, found.body)
        revoked, count = fields.get("revoked"), fields.get("count")
        if type(revoked) is not dict or type(count) is not int:
            raise StoreDamagedError(store=key, reason="it is no list of revoked tokens")
        return Revocations(found.version, revoked, count)

    def revoke(self, token: Token, now_seconds: float) -> None:
        """Revoke a token, durably. Servers refuse it within seconds, for ever."""
        key = self._prefix + "revoked"
        while True:
            before = self.revocations()
            ids = {
                each: expires_at
                for each, expires_at in before.ids.items()
                if expires_at is None or expires_at + _KEPT_SECONDS > now_seconds
            }
            ids[token.id] = token.expires_at
            body = _body({"count": before.count + 1, "revoked": ids})
            try:
                if before.version is None:
                    self._bucket.put_new(key, body)
                else:
                    self._bucket.replace(key, body, before.version)
                return
            except (ObjectExistsError, ObjectConflictError):
                continue

    def _issuer_key(self, name: str) -> str:
        return f"{self._prefix}issuers/{name}"

    def _token_key(self, token_id: str) -> str:
        return f"{self._prefix}tokens/{token_id}"


def verified(text: str, issuers: Mapping[str, Issuer]) -> Token:
    """Return what a token says, if a registered issuer signed it that may issue for its tenant.

    Raises InvalidTokenError. Whether it is expired or revoked is the caller's to check.
    """
    from nacl.signing import VerifyKey

    keys: dict[str, VerifyKey] = {
        name: VerifyKey(issuer.public_key) for name, issuer in issuers.items()
    }
    token = verify_token(text, keys)
    if not issuers[token.issuer].may_issue_for(token.tenant):
        raise InvalidTokenError(
            reason=f"issuer {token.issuer!r} may not issue tokens for tenant {token.tenant!r}"
        )
    return token


def valid_tokens(registry: AccessRegistry, now_seconds: float) -> Iterator[str]:
    """Yield the texts of all registered tokens that are valid now, in the order of their ids.

    Raises InvalidTokenError for one that no registered issuer signed: somebody has put it there.
    """
    issuers, revoked = registry.issuers(), registry.revocations().ids
    for token_id in registry.token_ids():
        text = registry.token_text(token_id)
        if text is None or token_id in revoked:
            continue
        token = verified(text, issuers)
        if token.id == token_id and not token.is_expired(now_seconds):
            yield text


def _body(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fields(key: str, body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise StoreDamagedError(store=key, reason="it is not JSON") from error
    if type(fields) is not dict:
        raise StoreDamagedError(store=key, reason="it is not a JSON object")
    return fields
