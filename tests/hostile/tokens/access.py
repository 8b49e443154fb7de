"""The keys, the registry and the tokens of a cluster that is attacked, in its data directory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from holdfast.gateway.auth.nats_configuration import callout_configuration
from holdfast.protocol.access.rights import ALL_RIGHTS
from holdfast.protocol.access.tokens import Token, new_token, read_token, sign_token
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.access.key_folder import SERVERS_FILE, KeyFolder
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER
from holdfast.shared_fs.access.set_up import KEYS_FOLDER, registry_on_disk, set_up
from tests.hostile.tokens.holders import REVOKED, Holder, make_holders
from tests.hostile.tokens.office import OFFICE
from tests.support.raw_nats import RawConnection, RawConnectionError

_FILES: Final = "tokens"
_READY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1


class Access:
    """Set up as `holdfast up --auth` does; `tenants` get a token each for all that is theirs."""

    def __init__(self, data: Path, tenants: tuple[str, ...]) -> None:
        shared = data / "shared"
        self._keys = KeyFolder(shared / KEYS_FOLDER)
        self._registry = registry_on_disk(shared, make=True)
        set_up(self._registry, self._keys)
        self._folder = data / _FILES
        self._folder.mkdir()
        self._texts = {tenant: self._token(tenant) for tenant in (*tenants, OFFICE)}
        self.holders: list[Holder] = make_holders(
            self._registry, self._keys, read_token(self._texts[OFFICE]).id
        )

    @property
    def nkey(self) -> Path:
        """The file with which servers log in to NATS."""
        return self._keys.path / SERVERS_FILE

    @property
    def configuration(self) -> str:
        """That of nats-server."""
        return callout_configuration(self._keys.public_keys(), DEFAULT_PREFIX)

    @property
    def others(self) -> tuple[str, ...]:
        """The ids of the tenants' tokens."""
        return tuple(read_token(text).id for text in self._texts.values())

    def text(self, tenant: str) -> str:
        """Return the token of a tenant."""
        return self._texts[tenant]

    def file(self, tenant: str) -> Path:
        """Return a file with the token of a tenant."""
        path = self._folder / tenant
        path.write_text(self._texts[tenant])
        return path

    def revoke(self) -> None:
        """Revoke the token that is to be revoked."""
        [holder] = [each for each in self.holders if each.name == REVOKED]
        self._registry.revoke(read_token(holder.text), time.time())

    async def wait_until_served(self, nats: str) -> None:
        """Return once an auth service lets somebody in."""
        async with asyncio.timeout(_READY_SECONDS):
            while True:
                try:
                    connection = await RawConnection.connect(
                        nats, lambda message: None, token=self.text(OFFICE)
                    )
                except RawConnectionError:
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    connection.close()
                    return

    def _token(self, tenant: str) -> str:
        token: Token = new_token(
            issuer=CLUSTER_ISSUER,
            tenant=tenant,
            stores=[">"],
            rights=ALL_RIGHTS,
            created_at=int(time.time()),
            subject=tenant,
        )
        text = sign_token(token, self._keys.issuer_key())
        self._registry.put_token(text, token)
        return text
