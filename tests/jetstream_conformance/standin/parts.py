"""The processes beside a nats-server that make it a JetStream: the parts of `holdfast up`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.protocol.bus.login import variable
from tests.jetstream_conformance.standin.plan import Plan
from tests.jetstream_conformance.standin.server_and_gateway import BETWEEN

#: The persist server that owns all stores.
OWNER: Final = "s1"
GATEWAY: Final = "gateway"
COORDINATOR: Final = "coordinator"
GATEWAY_MODULE: Final = "holdfast.gateway.jetstream.__main__"
_SERVER_AND_GATEWAY: Final = "tests.jetstream_conformance.standin.server_and_gateway"
_TENANT: Final = "acme"
#: The limits of an account as nats-server's configuration names them, and as JetStream tells them.
_LIMITS: Final = {
    "max_mem": "max_memory",
    "max_file": "max_storage",
    "max_streams": "max_streams",
    "max_consumers": "max_consumers",
    "max_ack_pending": "max_ack_pending",
    "memory_max_stream_bytes": "memory_max_stream_bytes",
    "store_max_stream_bytes": "storage_max_stream_bytes",
    "max_stream_bytes": "max_bytes_required",
}


class PartCommand(NamedTuple):
    """A part: the arguments of a module's `main`."""

    name: str
    module: str
    arguments: list[str]
    #: URLs may have passwords, which no part takes as an option.
    environment: dict[str, str]


def gateway_part(*, in_server: bool) -> str:
    """Return the part whose process has the gateway."""
    return OWNER if in_server else GATEWAY


def commands_of(
    plan: Plan, folder: Path, url: str, leaf_url: str, *, in_server: bool = False
) -> list[PartCommand]:
    """Return the parts in the order in which to start them. The persist server is the gateway as
    well if that is `in_server`, as with `holdfast up --jetstream` on two cores."""
    data = ["--data", str(folder / "data"), "--log-level", "warning"]
    nats = {variable("nats"): url}
    # As `holdfast up --jetstream` has it.
    direct = ["--direct", str(folder / "direct")]
    gateway = ["--tenant", _TENANT, "--log-level", "info", *direct]
    if "domain" in plan.jetstream:
        gateway += ["--domain", plan.jetstream["domain"]]
    for name, limit in _LIMITS.items():
        if name in plan.jetstream:
            gateway += ["--limit", f"{limit}={int(plan.jetstream[name])}"]
    coordinator = PartCommand(COORDINATOR, "holdfast.coordinator.__main__", data, nats)
    owner = [*data, *direct, "--name", OWNER]
    environment = {**nats, variable("leafnodes"): leaf_url}
    if in_server:
        # The later level counts: it logs once all streams are served.
        both = [*owner, "--log-level", "info", BETWEEN, *gateway]
        return [coordinator, PartCommand(OWNER, _SERVER_AND_GATEWAY, both, environment)]
    return [
        coordinator,
        PartCommand(OWNER, "holdfast.persist.__main__", owner, nats),
        PartCommand(GATEWAY, GATEWAY_MODULE, gateway, environment),
    ]
