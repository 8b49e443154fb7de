"""The data keys of a tenant: 32 random bytes each, numbered from 1, and wrapped by a master key.

New values are encrypted with the current one. The others decrypt what was written before. A wrapped
key is bound to its tenant and its number, so that none can stand in the place of another. A master
key wraps far fewer than 2^32 keys, up to which NIST SP 800-38D, 8.3, allows random nonces.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    KeyUnavailableError,
    TenantShreddedError,
)
from holdfast.shared_fs.encryption.ciphers import KEY_BYTES, NONCE_BYTES, aes_gcm, authentic
from holdfast.shared_fs.encryption.master_keys import MasterKey

_TAG_BYTES: Final = 16
_WRAPPED_BYTES: Final = NONCE_BYTES + KEY_BYTES + _TAG_BYTES
_LARGEST_ID: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as it is kept. `made` is int milliseconds since the epoch."""

    id: int
    master: str
    wrapped: bytes = field(repr=False)
    made: int

    @classmethod
    def new(cls, tenant: str, key_id: int, master: MasterKey, made: int) -> WrappedKey:
        """Return a new random key."""
        return cls.of(tenant, key_id, os.urandom(KEY_BYTES), master, made)

    @classmethod
    def of(cls, tenant: str, key_id: int, key: bytes, master: MasterKey, made: int) -> WrappedKey:
        """Return `key`, wrapped."""
        nonce = os.urandom(NONCE_BYTES)
        encrypted = aes_gcm(master.key).encrypt(nonce, key, _aad(tenant, key_id))
        return cls(key_id, master.id, nonce + encrypted, made)

    def key(self, tenant: str, masters: Mapping[str, MasterKey]) -> bytes:
        """Return the key itself. Raises KeyUnavailableError, InvalidArgumentError."""
        master = masters.get(self.master)
        if master is None:
            reason = f"the master key {self.master} is not here"
            raise KeyUnavailableError(tenant=tenant, key=self.id, reason=reason)
        nonce, encrypted = self.wrapped[:NONCE_BYTES], self.wrapped[NONCE_BYTES:]
        found = authentic(aes_gcm(master.key), nonce, encrypted, _aad(tenant, self.id))
        if found is None:
            reason = "what is kept of it was changed"
            raise KeyUnavailableError(tenant=tenant, key=self.id, reason=reason)
        return found

    def to_json(self) -> dict[str, Any]:
        wrapped = base64.b64encode(self.wrapped).decode()
        return {"id": self.id, "master": self.master, "wrapped": wrapped, "made": self.made}

    @classmethod
    def from_json(cls, fields: Any) -> WrappedKey:
        """Return the key of these fields. Raises InvalidArgumentError."""
        try:
            key_id, master, made = fields["id"], fields["master"], fields["made"]
            wrapped = base64.b64decode(fields["wrapped"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise InvalidArgumentError(argument="key", reason=f"it is none: {error!r}") from error
        if (
            not (type(key_id) is type(made) is int and type(master) is str)
            or not 0 < key_id <= _LARGEST_ID
            or len(wrapped) != _WRAPPED_BYTES
        ):
            raise InvalidArgumentError(argument="key", reason="it is none")
        return cls(key_id, master, wrapped, made)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What the registry has of a tenant. `shredded` is when its keys were destroyed."""

    tenant: str
    keys: tuple[WrappedKey, ...] = ()
    shredded: int | None = None

    @property
    def current(self) -> WrappedKey | None:
        """The key of new values."""
        return self.keys[-1] if self.keys else None


class TenantKeys:
    """The data keys of one tenant, as one process has them; `problem` says why it has none."""

    __slots__ = ("current_id", "keys", "problem", "tenant")

    def __init__(
        self,
        tenant: str,
        keys: Mapping[int, bytes],
        current_id: int,
        problem: HoldfastError | None = None,
    ) -> None:
        self.tenant = tenant
        self.keys = keys
        self.current_id = current_id
        self.problem = problem

    @classmethod
    def unwrapped(cls, record: KeyRecord, masters: Mapping[str, MasterKey]) -> TenantKeys:
        """Return the keys of a record: all of them, or none and the reason."""
        if record.shredded is not None:
            return cls(record.tenant, {}, 0, TenantShreddedError(tenant=record.tenant))
        try:
            keys = {each.id: each.key(record.tenant, masters) for each in record.keys}
        except KeyUnavailableError as error:
            return cls(record.tenant, {}, 0, error)
        except InvalidArgumentError as error:
            return cls.missing(record.tenant, str(error))
        if record.current is None:
            reason = "the registry does not know the tenant, or its keys are gone"
            return cls.missing(record.tenant, reason)
        return cls(record.tenant, keys, record.current.id)

    @classmethod
    def missing(cls, tenant: str, reason: str) -> TenantKeys:
        """Return that there are no keys."""
        return cls(tenant, {}, 0, KeyUnavailableError(tenant=tenant, key=0, reason=reason))

    def key(self, key_id: int) -> bytes:
        """Return a key. Raises KeyUnavailableError, TenantShreddedError."""
        if self.problem is not None:
            # Each raise would otherwise keep the frames of all before it.
            raise self.problem.with_traceback(None)
        found = self.keys.get(key_id)
        if found is None:
            reason = "the registry, as this process knows it, has no such key"
            raise KeyUnavailableError(tenant=self.tenant, key=key_id, reason=reason)
        return found


def _aad(tenant: str, key_id: int) -> bytes:
    return b"holdfast data key 1\0" + tenant.encode() + b"\0" + key_id.to_bytes(4)
