"""A nats-server that asks auth services, with a registry of tokens: what is in front of a cluster
with grants.

with auth_world(tmp_path) as world:
    text = world.token("acme", "read,write", "project.>")
    ... await connect_nats(world.nats.url, name="test", token=text) ...
    world.services[0].kill()
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nacl.signing import SigningKey

from holdfast.gateway.auth.nats_configuration import callout_configuration
from holdfast.protocol.access.rights import rights_of
from holdfast.protocol.access.tokens import EVERY_TENANT, Token, new_token, sign_token
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.access.key_folder import KeyFolder
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER, AccessRegistry
from holdfast.shared_fs.access.set_up import registry_on_disk, set_up
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.process import Process

_SERVICE: Final = "holdfast.gateway.auth.__main__"


@dataclass
class AuthWorld:
    """Made by `auth_world`."""

    directory: Path
    registry: AccessRegistry
    keys: KeyFolder
    nats: NatsServer
    services: list[Process] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def issuer_key(self) -> SigningKey:
        return self.keys.issuer_key()

    def new_token(self, tenant: str, allow: str = "all", *stores: str, **changes: Any) -> Token:
        """Return a token of the cluster, neither signed nor registered."""
        return new_token(
            **{
                "issuer": CLUSTER_ISSUER,
                "tenant": tenant,
                "stores": stores or (">",),
                "rights": rights_of(allow.split(",")),
                "created_at": int(time.time()),
                **changes,
            }
        )

    def token(self, tenant: str, allow: str = "all", *stores: str, **changes: Any) -> str:
        """Return a registered token."""
        made = self.new_token(tenant, allow, *stores, **changes)
        text = sign_token(made, self.issuer_key)
        self.registry.put_token(text, made)
        return text

    def operator(self) -> str:
        return self.token(EVERY_TENANT)

    def start_service(self) -> Process:
        """Start one more auth service, and return once nats-server asks it."""
        number = len(self.services) + 1
        arguments = ["--data", str(self.data), "--nats", self.nats.url]
        service = Process(_SERVICE, arguments, self.directory / f"auth{number}.log")
        self.services.append(service)
        service.wait_for_log("auth.serving")
        return service

    @property
    def log(self) -> str:
        """What the services have logged."""
        return "".join(service.log for service in self.services)


@contextmanager
def auth_world(directory: Path, services: int = 1) -> Iterator[AuthWorld]:
    """Run a nats-server with the callout, and auth services, around the body."""
    data = directory / "data"
    keys = KeyFolder(data / "keys")
    registry = registry_on_disk(data, make=True)
    try:
        assert set_up(registry, keys)
        configuration = directory / "nats.conf"
        configuration.write_text(callout_configuration(keys.public_keys(), DEFAULT_PREFIX))
        with running_nats_server(directory, "-c", str(configuration)) as nats:
            world = AuthWorld(directory, registry, keys, nats)
            try:
                for _ in range(services):
                    world.start_service()
                yield world
            finally:
                for service in world.services:
                    service.kill()
    finally:
        registry.close()
