"""A cluster with JetStream gateways as processes, and clients of nats-py.

with running_jetstream(tmp_path) as world:
    gateway = world.start_gateway()
    async with world.client() as client:
        js = client.jetstream()
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.errors import ServiceUnavailableError

from tests.support.cluster import TENANT, Processes
from tests.support.leaf_nats import running_leaf_nats
from tests.support.nats_server import NatsServer
from tests.support.process import Process

T = TypeVar("T")

#: What an application must try again: nobody serves the stream at the moment, or nobody answered.
TRY_AGAIN = (nats.errors.Error, ServiceUnavailableError)


class JetStreamWorld(Processes):
    """A nats-server, a coordinator, a persist server, and the gateways that a test starts."""

    def __init__(
        self, directory: Path, server: NatsServer, leafnodes: str, *of_persist: str
    ) -> None:
        """`of_persist` are options of the persist server."""
        super().__init__(directory, server)
        self._leafnodes = leafnodes
        self._numbers = itertools.count(1)
        self.persist = self.start_persist("s1", *of_persist)

    def start_gateway(self, *arguments: str) -> Process:
        """Start a gateway, and return once it answers requests."""
        gateway = self.start(
            "gateway",
            f"gateway{next(self._numbers)}",
            *("--leafnodes", self._leafnodes, "--tenant", TENANT),
            *arguments,
            module="holdfast.gateway.jetstream.__main__",
            with_data=False,
        )
        gateway.wait_for_log("jetstream.serving")
        return gateway

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of NATS, as applications have it."""
        client = await nats.connect(
            self.nats.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05
        )
        try:
            yield client
        finally:
            await client.close()


@contextlib.contextmanager
def running_jetstream(directory: Path, *of_persist: str) -> Iterator[JetStreamWorld]:
    """Run all but gateways around the body. `of_persist` are options of the persist server."""
    with running_leaf_nats(directory) as (server, leafnodes):
        world = JetStreamWorld(directory, server, leafnodes, *of_persist)
        try:
            yield world
        finally:
            world.end()


async def tried_again(call: Callable[[], Awaitable[T]], seconds: float = 30.0) -> T:
    """Return what `call` returns, once it does."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except TRY_AGAIN:
                await asyncio.sleep(0.02)
