"""`conftest.py` for the tests of nats-key-value, which the package index has without one.

Written anew: the fixtures that the tests ask for. It runs beside their tests, with their client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nats.client import Client, connect
from nats.jetstream import JetStream, new
from nats.server import Server, run


@pytest.fixture
def store_dir(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest_asyncio.fixture
async def server(store_dir: str) -> AsyncIterator[Server]:
    async with await run(port=0, jetstream=True, store_dir=store_dir) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    client = await connect(server.client_url)
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture
async def jetstream(client: Client) -> JetStream:
    return new(client, strict=True)
