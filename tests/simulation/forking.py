"""An application that forks its streams, forks the forks, and destroys any of them, while each goes
on by itself; and what each must hold."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.persist.jobs import sharing
from holdfast.protocol.errors import HoldfastError
from tests.simulation.simulated_cluster import Simulation

_STREAMS: Final = 3
#: So few that a run comes to delete most.
_MOST_STREAMS: Final = 7
_MESSAGE_BYTES: Final = 600
#: Each operation is tried for so long, so that nearly all have an outcome.
TIMEOUT_SECONDS: Final = 40.0


@contextlib.contextmanager
def forget_what_forks_hold() -> Iterator[None]:
    """A bug, planted: a fork is published without a word in the entry of the store whose object it
    shares."""
    with patch.object(sharing, "refer", lambda manifests, parent, fork: True):
        yield


class Forester:
    """One client with streams of its own."""

    def __init__(self, simulation: Simulation, client: Client, name: str) -> None:
        self._simulation = simulation
        self._client = client
        self._name = name
        self._chance: random.Random = simulation.chance(f"forks of {name}")
        self._count = 0
        #: What each stream must hold, by seq; streams with an operation of unknown outcome are not
        #: judged.
        self.expected: dict[str, dict[int, bytes]] = {}
        self.shared = self.destroyed = 0

    async def work(self, until: float) -> None:
        """Work until the time `until`."""
        loop = asyncio.get_running_loop()
        for _ in range(_STREAMS):
            await self._try(self._plant, "")
        while loop.time() < until:
            await asyncio.sleep(self._chance.choice((0.05, 0.2, 1.0)))
            names = list(self.expected)
            if not names:
                await self._try(self._plant, "")
                continue
            many = len(names) >= _MOST_STREAMS
            todo = self._chance.choices(
                (self._append, self._fork, self._destroy, self._read), (3, 0 if many else 4, 2, 1)
            )[0]
            await self._try(todo, self._chance.choice(names))

    async def _try(self, operation: Callable[[str], Awaitable[None]], name: str) -> None:
        try:
            await operation(name)
        except HoldfastError as error:
            self._simulation.trace.add(f"{name} is not judged: {error!r}")
            self.expected.pop(name, None)

    async def judge(self) -> None:
        """See that each stream holds what it must, now that all has healed."""
        for name in list(self.expected):
            try:
                await self._read(name)
            except HoldfastError as error:
                self._simulation.fail(f"{name} cannot be read in the end: {error!r}")

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._name}.{self._count}"

    def _values(self, count: int) -> list[bytes]:
        return [self._chance.randbytes(_MESSAGE_BYTES) for _ in range(count)]

    async def _plant(self, _: str) -> None:
        name, values = self._new_name(), self._values(5)
        await self._client.stream(name).append_many(values)
        self.expected[name] = dict(enumerate(values, 1))

    async def _append(self, name: str) -> None:
        values = self._values(2)
        acks = await self._client.stream(name).append_many(values)
        self.expected[name] |= {
            ack.seq: value for ack, value in zip(acks, values, strict=True)
        }

    async def _fork(self, name: str) -> None:
        held = self.expected[name]
        seq = self._chance.choice((None, *held))
        new = self._new_name()
        made = await self._client.stream(name).fork(new, seq=seq)
        kept = {each: value for each, value in held.items() if seq is None or each <= seq}
        if made.last_seq != max(kept):
            self._simulation.fail(f"{new} ends at {made.last_seq} instead of {max(kept)}")
        self.expected[new] = kept
        self.shared += made.shared

    async def _destroy(self, name: str) -> None:
        # Whatever comes of it, the stream is not read again.
        del self.expected[name]
        await self._client.stream(name).destroy()
        self.destroyed += 1

    async def _read(self, name: str) -> None:
        found = {each.seq: each.value async for each in self._client.stream(name).get_all()}
        if found != self.expected[name]:
            self._simulation.fail(
                f"{name} has messages {sorted(found)} instead of {sorted(self.expected[name])}"
            )
