"""What a cluster with tokens has besides its servers: keys, a nats-server that asks the auth
service, and a token with which the supervisor asks how the servers are.

Calls block for as long as a few small files take.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from holdfast.cli.deeds import leave_for_audit
from holdfast.gateway.auth.nats_configuration import callout_configuration
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import EVERY_TENANT, Token, new_token, sign_token
from holdfast.shared_fs.access.key_folder import REPORTS_FILE, SERVERS_FILE, KeyFolder
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER, AccessRegistry
from holdfast.shared_fs.access.set_up import KEYS_FOLDER, registry_on_disk, set_up
from holdfast.shared_fs.bucket.bucket_errors import NoBucketError

#: How long the supervisor's own token is valid: longer than it waits for the servers.
_TOKEN_SECONDS: Final = 300


class ClusterAccess:
    """The keys and the registry of the cluster whose servers share `shared`."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._keys = KeyFolder(shared / KEYS_FOLDER)

    @classmethod
    def of(cls, shared: Path, *, make: bool) -> Self | None:
        """Return that of a cluster that has been set up, or is to be; otherwise None, since the
        cluster is open."""
        access = cls(shared)
        if make:
            with access._registry(make=True) as registry:
                if set_up(registry, access._keys):
                    details = {"keys": str(access._keys.path)}
                    leave_for_audit(shared, None, AuditAction.ACCESS_SET_UP, details=details)
            return access
        try:
            with access._registry() as registry:
                return access if registry.issuers() else None
        except NoBucketError:
            return None

    @property
    def servers_nkey(self) -> Path:
        """The file with which servers log in to NATS."""
        return self._keys.path / SERVERS_FILE

    @property
    def reports_nkey(self) -> Path:
        """The file with which parts log in that only tell what they count."""
        return self._keys.path / REPORTS_FILE

    def write_configuration(self, path: Path, prefix: str, inboxes: str) -> None:
        """Write the configuration of nats-server, which contains no secret. Keys that an older
        version did not make are added."""
        self._keys.add_missing()
        path.write_text(callout_configuration(self._keys.public_keys(), prefix, inboxes))

    @contextmanager
    def own_token(self) -> Iterator[Token]:
        """Register a token around the body that may ask how the servers are."""
        now = int(time.time())
        token = new_token(
            issuer=CLUSTER_ISSUER,
            tenant=EVERY_TENANT,
            stores=[">"],
            rights=Right.LIST,
            created_at=now,
            expires_at=now + _TOKEN_SECONDS,
            subject="holdfast up",
        )
        with self._registry() as registry:
            registry.put_token(sign_token(token, self._keys.issuer_key()), token)
            try:
                yield token
            finally:
                # Nobody else has it.
                registry.forget_token(token.id)

    @contextmanager
    def _registry(self, *, make: bool = False) -> Iterator[AccessRegistry]:
        registry = registry_on_disk(self._shared, make=make)
        try:
            yield registry
        finally:
            registry.close()
