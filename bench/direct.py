"""A client that reaches a server of its host past NATS, and the proof that it does.

A client that finds no socket goes on over NATS and says so in its log alone, so what is measured as
direct listens to that log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from holdfast.bench.processes import BenchCluster, BenchProcessError
from holdfast.client import Client, connect

_TIMEOUT_SECONDS: Final = 60.0
_WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_STORE: Final = "direct"
_BUS_LOGGER: Final = logging.getLogger("holdfast.bus")


class DirectConnection(logging.Handler):
    """Knows whether the client of `connected_directly` is connected directly now."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.is_direct = False

    def emit(self, record: logging.LogRecord) -> None:
        event = record.getMessage().partition(" ")[0]
        if event in ("direct.begun", "direct.ended"):
            self.is_direct = event == "direct.begun"

    def check(self) -> None:
        """Raise BenchProcessError if operations go over NATS."""
        if not self.is_direct:
            raise BenchProcessError(process="client", reason="it is not connected directly")


@contextlib.asynccontextmanager
async def connected_directly(
    cluster: BenchCluster, tenant: str, folder: Path
) -> AsyncIterator[tuple[Client, DirectConnection]]:
    """Connect a client to the one server of a cluster, which listens in `folder`, around the body.

    Raises BenchProcessError if it cannot be reached there."""
    connection = DirectConnection()
    level = _BUS_LOGGER.level
    _BUS_LOGGER.setLevel(logging.INFO)
    _BUS_LOGGER.addHandler(connection)
    try:
        async with connect(
            cluster.url, tenant=tenant, timeout_seconds=_TIMEOUT_SECONDS, direct=folder
        ) as client:
            give_up_at = asyncio.get_running_loop().time() + _WAIT_SECONDS
            while True:
                # The first operation tries the socket.
                await client.stream(_STORE).head()
                await asyncio.sleep(_POLL_SECONDS)
                cluster.check()
                if connection.is_direct:
                    break
                if asyncio.get_running_loop().time() > give_up_at:
                    connection.check()
            yield client, connection
    finally:
        _BUS_LOGGER.removeHandler(connection)
        _BUS_LOGGER.setLevel(level)
