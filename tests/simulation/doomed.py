"""Streams of which a bit flips in the file while its owner has it open.

From then on such a stream is either right, with all that was acknowledged, or refused as damaged;
never empty or older. It costs nobody else anything: the log of its owner goes on without it.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

from holdfast.client.connection import Client
from holdfast.client.handles.stream import Stream
from holdfast.persist.store.states import OpenState
from holdfast.protocol.errors import HoldfastError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import TENANT, ClientNode, ServerNode

_MESSAGES: Final = 12
_MESSAGE_BYTES: Final = 700
#: Tables of which the first page is read by whatever is applied to a stream.
_TABLES: Final = ("messages", "meta")
#: So small that it soon shows if a log is kept.
_SEGMENT_BYTES: Final = 2048
#: What is written beside the stream, so that each log goes on whoever owns what.
_BESIDE: Final = 4
_LOOK_SECONDS: Final = 0.5
#: How long an owner is looked for, and how long its log may be kept by what cannot be applied.
_PATIENCE_SECONDS: Final = 15.0
#: Segments that may be kept for changes that wait, since nobody needs their place.
_KEPT_SEGMENTS: Final = 12


class DoomedStream:
    """One such stream, with a client of its own."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._store = StoreId(TENANT, StoreKind.STREAM, name)
        self._node = ClientNode(simulation, f"k{name.replace('.', '')}")
        simulation.clients.append(self._node)
        self._first = [
            f"{name}.{number}".ljust(_MESSAGE_BYTES).encode() for number in range(_MESSAGES)
        ]
        self._last = f"{name}.last".encode()
        self._client: Client | None = None
        self._is_deleted = self._has_last = False

    async def run(self, chance: random.Random) -> None:
        """Fill the stream, flip a bit, change the stream, and see that the log goes on."""
        self._client = await self._node.run(self._node.start(timeout_seconds=10.0))
        await self._node.run(self._live(self._client, chance))

    async def judge(self) -> None:
        """See what the stream is in the end, when all else has healed."""
        if self._client is not None:
            await self._node.run(self._look(self._client.stream(self._store.name), 30.0, last=True))

    async def _live(self, client: Client, chance: random.Random) -> None:
        stream = client.stream(self._store.name)
        try:
            await stream.append_many(self._first)
        except HoldfastError:
            # Other faults may keep it from being written: then there is nothing to harm.
            self._client = None
            return
        commit_log.LOG_SEGMENT_BYTES = min(commit_log.LOG_SEGMENT_BYTES, _SEGMENT_BYTES)  # type: ignore[misc]
        if not await self._flip(stream, chance):
            return
        try:
            await stream.delete_all()
            self._is_deleted = True
            await stream.append(self._last)
            self._has_last = True
        except HoldfastError as error:
            self._simulation.trace.add(f"{self._store.name} is not changed: {error!r}")
        await self._see_the_log_go_on(client)

    async def _flip(self, stream: Stream[bytes], chance: random.Random) -> bool:
        """Flip a bit of the file, once that is durable and open; return if it came to that."""
        for _ in range(int(_PATIENCE_SECONDS / _LOOK_SECONDS)):
            # Read, it is open, and has what was written in its file.
            await self._look(stream, 2.0)
            for node in self._simulation.servers:
                if await self._flip_at(node, chance):
                    return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _flip_at(self, node: ServerNode, chance: random.Random) -> bool:
        server, process = node.server, node.process
        if not node.running or server is None or server.parts is None or process is None:
            return False
        store = server.parts.open_stores.find(self._store)
        if store is None or store.mark is not None or store.state is not OpenState.SERVING:
            return False

        def flip(file: StoreFile) -> bool:
            page = 1
            if not file.is_sealed:
                table = chance.choice(_TABLES)
                page = file._connection.execute(
                    "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
                ).get
                # The next change reads it from the disk.
                file._connection.pragma("shrink_memory")
            return self._flip_in(file.path, page, chance)

        work = process.start(server.parts.checkpointer.with_durable(store, flip))
        node.tasks.append(work)
        await asyncio.wait([work], timeout=_PATIENCE_SECONDS)
        node.tasks.remove(work)
        if not work.done() or work.cancelled():
            return False
        error = work.exception()
        if error is not None:
            assert isinstance(error, HoldfastError), error
            return False
        return bool(work.result())

    def _flip_in(self, path: Path, page: int, chance: random.Random) -> bool:
        files = self._simulation.files
        try:
            is_flipped = files.flip_bit(path, (page - 1) * PAGE_BYTES, PAGE_BYTES, chance)
        except FileNotFoundError:
            # This server is fenced without knowing it, and the new owner has removed its file.
            return False
        if is_flipped:
            self._simulation.trace.add(f"a bit flips in page {page} of {path}")
        return is_flipped

    async def _see_the_log_go_on(self, client: Client) -> None:
        """Wait until nobody holds changes of the stream that are in no file."""
        name = self._store.name
        for _ in range(int(_PATIENCE_SECONDS / _LOOK_SECONDS)):
            for number in range(_BESIDE):
                try:
                    await client.stream(f"{name}.beside{number}").append(
                        bytes(_SEGMENT_BYTES), timeout_seconds=2.0
                    )
                except HoldfastError as error:
                    self._simulation.trace.add(f"beside {name}: {error!r}")
            await self._look(client.stream(name), 2.0)
            kept = [self._kept_segments(node) for node in self._simulation.servers]
            if not any(kept):
                return
            await asyncio.sleep(_LOOK_SECONDS)
        if max(kept) > _KEPT_SEGMENTS:
            self._simulation.fail(
                f"a log of {max(kept)} segments is kept by {name}, of which a bit flipped"
            )

    def _kept_segments(self, node: ServerNode) -> int:
        """Return how much of its log a server keeps for changes of the stream that are in no
        file."""
        parts = node.server.parts if node.running and node.server is not None else None
        if parts is None:
            return 0
        store = parts.open_stores.find(self._store)
        if store is None or not store.pending.ticks:
            return 0
        return parts.storage.synced_log.log.segment - store.pending.ticks[0].segment + 1

    async def _look(
        self, stream: Stream[bytes], timeout_seconds: float, *, last: bool = False
    ) -> None:
        """Read all of the stream, which must be right, or refused as damaged."""
        fail, name = self._simulation.fail, self._store.name
        values = []
        try:
            async for message in stream.get_all(timeout_seconds=timeout_seconds):
                values.append(message.value)
        except StoreDamagedError:
            return
        except HoldfastError as error:
            if last:
                fail(f"{name}, of which a bit flipped, is neither right nor damaged: {error!r}")
            return
        if self._is_deleted and self._first[0] in values:
            fail(f"{name}, of which a bit flipped, is as it was before it was deleted")
        if self._has_last and self._last not in values:
            fail(f"{name}, of which a bit flipped, lacks what was acknowledged")
