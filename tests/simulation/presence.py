"""An ephemeral stream and kv under faults: what their followers have is what there is.

Writers append and set, each value once. A follower keeps what it is told, from the last reset on.
Seqs and revisions are never given twice, nothing is told that was never written, and in the end
each follower has what a reader reads.
"""

from __future__ import annotations

import asyncio
import random

from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.messages import Change, ChangeKind, Durability
from tests.simulation.simulated_cluster import Simulation


class Presence:
    """Writers and followers of two ephemeral stores."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self._fail = simulation.fail
        self._chance: random.Random = simulation.chance("presence")
        self._stream = client.stream("cursors")
        self._kv = client.kv("presence")
        #: What was ever written, and which seqs were acknowledged for what.
        self._written: set[bytes] = set()
        self.acked: dict[int, bytes] = {}
        #: What the followers have now.
        self.messages: dict[int, bytes] = {}
        self.entries: dict[str, bytes] = {}
        self.resets = 0
        self._revisions = {"messages": 0, "entries": 0}
        #: The kv's state is being told.
        self._in_state = True

    async def begin(self) -> None:
        """Make the stores, and follow them."""
        await self._stream.configure(ephemeral=True, timeout_seconds=60.0)
        await self._kv.configure(ephemeral=True, timeout_seconds=60.0)
        self._following = [
            asyncio.ensure_future(self._follow_messages()),
            asyncio.ensure_future(self._follow_entries()),
        ]

    async def work(self, seconds: float) -> None:
        """Write for so long."""
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._write(until, number) for number in range(3)))

    async def _write(self, until: float, writer: int) -> None:
        loop, chance = asyncio.get_running_loop(), self._chance
        number = 0
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(20.0))
            number += 1
            value = b"%d-%d" % (writer, number)
            self._written.add(value)
            try:
                if writer == 0:
                    await self._kv.set(f"user{number % 3}", value, timeout_seconds=1.0)
                    continue
                if writer == 1 and chance.random() < 0.1 and self.acked:
                    await self._stream.delete(max(self.acked), timeout_seconds=1.0)
                    continue
                ack = await self._stream.append(value, timeout_seconds=1.0)
            except HoldfastError:
                continue
            if ack.durability is not Durability.MEMORY:
                self._fail(f"an ephemeral write says {ack.durability!r}")
            if ack.seq is None or ack.seq in self.acked:
                self._fail(f"seq {ack.seq}, of {value!r}, was given before")
                continue
            self.acked[ack.seq] = value

    async def _follow_messages(self) -> None:
        async with self._stream.subscribe(start_seq=1) as changes:
            async for change in changes:
                if not self._advance("messages", change):
                    self.messages.clear()
                elif change.message is not None:
                    value = bytes(change.message.value)
                    if value not in self._written or value in self.messages.values():
                        self._fail(f"a follower was told {value!r}, which is new, or twice")
                    self.messages[change.message.seq] = value
                for seq in change.seqs:
                    self.messages.pop(seq, None)

    async def _follow_entries(self) -> None:
        async with self._kv.watch() as changes:
            async for change in changes:
                if not self._advance("entries", change):
                    self.entries.clear()
                elif change.entry is not None:
                    self.entries[change.entry.key] = bytes(change.entry.value)

    def _advance(self, of: str, change: Change) -> bool:
        """Check the order of changes. Return False for a reset."""
        if change.kind is ChangeKind.RESET:
            self.resets += 1
            # The state of a kv comes by key.
            self._in_state |= of == "entries"
            return False
        if change.kind is ChangeKind.READY:
            self._in_state = False
        elif change.revision <= self._revisions[of] and not (of == "entries" and self._in_state):
            self._fail(f"{of}: revision {change.revision} after {self._revisions[of]}")
        self._revisions[of] = max(change.revision, self._revisions[of])
        return True

    async def finish(self) -> None:
        """Compare what followers have with what there is."""
        try:
            stored = {
                message.seq: bytes(message.value)
                async for message in self._stream.get_all(timeout_seconds=30.0)
            }
            held = {
                entry.key: bytes(entry.value)
                async for entry in self._kv.get_all(timeout_seconds=30.0)
            }
        except HoldfastError as error:
            self._fail(f"the stores cannot be read: {error!r}")
            return
        # A follower asks now and then whether it is behind.
        for _ in range(60):
            if (self.messages, self.entries) == (stored, held):
                break
            await asyncio.sleep(1.0)
        else:
            have = f"{self.messages} and {self.entries}"
            self._fail(f"followers have {have}, not {stored} and {held}")
        for task in self._following:
            if task.done():
                self._fail(f"a follower has ended: {task}")
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
