"""A nats-server with JetStream for what is no suite of tests: the one that is first on PATH."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.jetstream_conformance.suite import Surroundings

_READY_SECONDS: Final = 30.0
_LISTENING: Final = re.compile(r"Listening for client connections on .+:(\d+)")


@asynccontextmanager
async def running_server(around: Surroundings) -> AsyncIterator[str]:
    """Run it around the body; give its URL."""
    with tempfile.TemporaryDirectory(prefix="holdfast-store-") as store:
        server = await asyncio.create_subprocess_exec(
            "nats-server",
            *("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", store),
            env=around.environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        assert server.stderr is not None
        try:
            port = ""
            async with asyncio.timeout(_READY_SECONDS):
                async for line in server.stderr:
                    if match := _LISTENING.search(line.decode()):
                        port = match[1]
                    if b"Server is ready" in line:
                        break
            draining = asyncio.create_task(server.stderr.read())
            yield f"nats://127.0.0.1:{port}"
            draining.cancel()
        finally:
            if server.returncode is None:
                server.kill()
            await server.wait()
