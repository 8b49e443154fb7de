"""`nats.server` for the tests of nats-key-value, which is only a name on the package index.

Written anew: a nats-server on any port, ready when it says so.
"""

from __future__ import annotations

import asyncio
import re
from typing import Self

_LISTENING = re.compile(r"Listening for client connections on .+:(\d+)")
_READY_SECONDS = 30.0


class Server:
    """A running nats-server."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.client_url = f"nats://127.0.0.1:{port}"
        self._process = process

    async def shutdown(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


async def run(*, port: int = 0, jetstream: bool = False, store_dir: str | None = None) -> Server:
    """Start a server and return once it is ready."""
    options = ["--addr", "127.0.0.1", "--port", str(port or -1)]
    options += ["--jetstream"] * jetstream
    options += ["--store_dir", store_dir] if store_dir else []
    process = await asyncio.create_subprocess_exec(
        "nats-server", *options, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    bound = port
    async with asyncio.timeout(_READY_SECONDS):
        while line := (await process.stderr.readline()).decode():
            if match := _LISTENING.search(line):
                bound = int(match[1])
            if "Server is ready" in line:
                return Server(process, bound)
    raise OSError(f"nats-server ended with {await process.wait()}")
