"""A newcomer: a client that connects anew for every few operations, as starting applications do.

One that is connected already knows the owners of its stores. A newcomer asks for them, and so
brings stores to a new owner while a client elsewhere still writes to the old one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from holdfast.client import Client
from holdfast.protocol.errors import UnavailableError
from tests.torture.recording import Recorder
from tests.torture.workload import Workload
from tests.torture.writer import perform

#: How many operations each of them carries out at once before it leaves.
_OPERATION_COUNT: Final = 8
_RETRY_SECONDS: Final = 0.2

Connect = Callable[[], AbstractAsyncContextManager[Client]]


class Newcomer:
    """One after the other."""

    def __init__(
        self, name: str, seed: int, recorder: Recorder, operations_per_second: float
    ) -> None:
        self._rng = random.Random(seed)
        self._workload = Workload(name, self._rng)
        self._recorder = recorder
        self._pause_seconds = _OPERATION_COUNT / operations_per_second

    async def run(self, finish: asyncio.Event, connect: Connect) -> None:
        """Come and go until `finish`."""
        while not finish.is_set():
            try:
                async with connect() as client, asyncio.TaskGroup() as tasks:
                    for _ in range(_OPERATION_COUNT):
                        tasks.create_task(self._act(client))
            except UnavailableError:
                # It could not even connect.
                await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_seconds))

    async def _act(self, client: Client) -> None:
        operation = self._workload.draw(time.monotonic())
        timeout_seconds = self._workload.timeout_seconds()
        await perform(client, operation, timeout_seconds, self._recorder, self._workload)
