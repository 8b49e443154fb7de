"""What an embedded cluster has for JetStream's clients: a leafnode listener, and a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.bus.nats_server_process import FEW_CORES
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.subjects import Inboxes

PART: Final = "gateway"
_INFO: Final = "$JS.API.INFO"
_POLL_SECONDS: Final = 0.05


def is_in_servers(cores: float) -> bool:
    """Tell whether each persist server is a gateway as well, instead of a part that is nothing
    else. Where so few cores may be used, a process more costs more than it can do at the same time:
    docs/decisions/114 has the figures."""
    return cores <= FEW_CORES


def write_leafnodes(path: Path, address: str, port: int) -> None:
    """Write the configuration of a nats-server that takes leafnodes of this machine."""
    path.write_text(
        "# nats-server for holdfast. The JetStream gateway connects as a leafnode; JetStream of\n"
        "# nats-server itself stays off.\n"
        f'leafnodes {{ listen: "{address}:{port}" }}\n'
    )


async def wait_for_jetstream(nats_url: str, login: NatsLogin, inboxes: Inboxes) -> None:
    """Return once a gateway answers JetStream's API.

    Raises JetStreamExistsError if somebody else does, and ConnectionFailedError.
    """
    # They take a while to import, and most commands do without.
    from holdfast.gateway.jetstream.serving.api_router import ApiRouter
    from holdfast.gateway.jetstream.wire.client_connection import connect_client
    from holdfast.gateway.jetstream.wire.pair_check import JetStreamExistsError

    client = await connect_client(nats_url, name="holdfast-up", login=login, inboxes=inboxes)
    try:
        while True:
            try:
                answer = await client.request(_INFO, b"", timeout_seconds=CONTROL_TIMEOUT_SECONDS)
            except (NoRespondersError, BusTimeoutError):
                await asyncio.sleep(_POLL_SECONDS)
                continue
            if not ApiRouter.is_ours(answer):
                reason = "the account has JetStream already, and both would answer"
                raise JetStreamExistsError(reason=reason)
            return
    finally:
        await client.close()
