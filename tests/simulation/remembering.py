"""Keys of a kv with a history, under faults: what was acknowledged is read again at its revision.

One client writes, so each acknowledged change has one place in the past of its key. A change whose
answer was lost may have happened: the key is set again until one is acknowledged, and what a read
finds between two acknowledged changes may be either.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from holdfast.client.connection import Client
from holdfast.client.handles.kv import KV
from holdfast.protocol.errors import HoldfastError, RevisionGoneError
from holdfast.protocol.messages import ChangeKind
from tests.simulation.simulated_cluster import Simulation

#: For one read, of which several messages may be lost.
_PATIENCE_SECONDS = 30.0
KEPT: Final = 16
_KEYS: Final = ("a", "b")


class Remembering:
    """A writer of one kv, and what it was told."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self._fail = simulation.fail
        self._chance: random.Random = simulation.chance("remembering")
        self._kv: KV = client.kv("past")
        #: The acknowledged changes of each key, by revision: the value, None if it was deleted.
        self.past: dict[str, dict[int, bytes | None]] = {key: {} for key in _KEYS}
        #: Values whose sets were not answered.
        self._unsure: set[bytes] = set()
        self.read_count = 0

    async def work(self, until: float) -> None:
        """Configure the kv, then write and read until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        await self._kv.configure(history=KEPT, timeout_seconds=60.0)
        number = 0
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(40.0))
            key = chance.choice(_KEYS)
            number += 1
            try:
                await self._change(key, b"%d" % number)
                if chance.random() < 0.05:
                    await self.read(chance.choice(_KEYS))
            except RevisionGoneError as error:
                self._fail(f"a value that is kept is gone: {error}")
            except HoldfastError:
                continue

    async def _change(self, key: str, value: bytes) -> None:
        if self.past[key] and self._chance.random() < 0.2:
            self._unsure.add(b"deleted " + key.encode())
            deleted = await self._kv.delete(key, timeout_seconds=1.0)
            if deleted.count:
                self.past[key][deleted.revision] = None
            return
        self._unsure.add(value)
        ack = await self._kv.set(key, value, timeout_seconds=1.0)
        self._unsure.discard(value)
        self.past[key][ack.revision] = value

    async def finish(self) -> None:
        """Read everything that must still be there."""
        for key in _KEYS:
            await self.read(key)

    async def read(self, key: str) -> None:
        """Compare the history of a key, and its entry at each revision, with what was told."""
        told = self.past[key]
        history = await self._kv.history(key, timeout_seconds=_PATIENCE_SECONDS)
        self.read_count += 1
        found: dict[int, bytes | None] = {
            change.revision: None if change.entry is None else change.entry.value
            for change in history
        }
        for revision, value in found.items():
            if revision in told and told[revision] != value:
                self._fail(f"{key} was {told[revision]!r} at {revision}, the history: {value!r}")
        values = [change.revision for change in history if change.kind is ChangeKind.SET]
        if len(values) < KEPT:
            missing = [revision for revision, value in told.items() if value is not None]
            missing = [revision for revision in missing if revision not in found]
        else:
            missing = [r for r in told if r > values[0] and r not in found]
        if missing:
            self._fail(f"the history of {key} lacks revisions {missing}, it has {sorted(found)}")
        for revision in values:
            entry = await self._kv.get(key, revision=revision, timeout_seconds=_PATIENCE_SECONDS)
            if entry is None or entry.value != found[revision]:
                self._fail(f"{key} at {revision} is {entry!r}, its history: {found[revision]!r}")
