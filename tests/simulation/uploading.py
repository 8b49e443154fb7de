"""Large values under faults: uploads that are cut off and gone on with, or given up, and readers.

In the history the sha256 of a large value stands for it, so the checker judges the values of
`files` as it does any others. What it cannot see is checked here: that whoever reads a value gets
the bytes of one that somebody put, and that in the end no upload is left that is nobody's value.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.client.following.track import OUTAGES
from holdfast.client.large_values import large_value, value_source, value_upload
from holdfast.persist.store.accepting import running_tick
from holdfast.protocol.errors import (
    HoldfastError,
    LargeValueDamagedError,
    NotAllowedError,
    OperationTimeoutError,
    ValueReplacedError,
)
from holdfast.protocol.frames import UPLOAD, pack
from holdfast.protocol.limits import UPLOAD_ID_BYTES
from holdfast.protocol.messages import Ack, Entry
from holdfast.protocol.names import StoreKind
from tests.simulation.workload import Application
from tests.support.checking.history import Store, value_of

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation
    from tests.simulation.simulated_nodes import ClientNode

FILES: Final[Store] = (int(StoreKind.KV), "files")
_KEYS: Final = ("f.1", "f.2")
#: What all others write is smaller.
_SMALL_BYTES: Final = 4000
_CHUNK_BYTES: Final = 2500
#: Longer than any application pauses before it goes on with an upload.
_RETENTION_SECONDS: Final = 8.0


class Uploads:
    """What all uploaders of a run know together."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: The ids of all uploads that were begun.
        self.ids: list[bytes] = []
        #: Contents that were put, by what stands for them in the history.
        self.contents: dict[bytes, bytes] = {}

    def new_id(self, size_bytes: int = UPLOAD_ID_BYTES) -> bytes:
        """Return the id of the next upload."""
        self.ids.append(self._chance.randbytes(size_bytes))
        return self.ids[-1]

    @contextlib.contextmanager
    def small_values(self) -> Iterator[None]:
        """Let values be large that are not, and what is given up go soon."""
        with (
            patch.object(large_value, "MAX_VALUE_BYTES", _SMALL_BYTES),
            patch.object(value_source, "MAX_VALUE_BYTES", _SMALL_BYTES),
            patch.object(value_upload, "CHUNK_BYTES", _CHUNK_BYTES),
            patch.object(value_upload, "secrets", SimpleNamespace(token_bytes=self.new_id)),
            patch.object(running_tick, "_UPLOAD_RETENTION_MS", int(_RETENTION_SECONDS * 1000)),
        ):
            yield


class Uploader(Application):
    """Puts large values, and reads them."""

    role = "u"

    def __init__(
        self, simulation: Simulation, node: ClientNode, client: Client, uploads: Uploads
    ) -> None:
        super().__init__(simulation, node, client)
        self._uploads = uploads
        self._fail = simulation.fail

    async def work(self, until: float) -> None:
        """Put, read and delete until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(3.0))
            key, timeout_seconds = chance.choice(_KEYS), chance.choice((0.3, 1.0, 3.0))
            dice = chance.random()
            if dice < 0.45:
                await self._put(key, timeout_seconds)
            elif dice < 0.5:
                operation = self._invoke(FILES, "delete", keys=(key,))
                files = self._client.kv(FILES[1])
                await self._call(operation, files.delete(key, timeout_seconds=timeout_seconds))
            else:
                await self._read(key, timeout_seconds)

    async def finish(self) -> None:
        """Read all values, and see that no upload is left. Raises HoldfastError."""
        files = self._client.kv(FILES[1])
        entries = [entry async for entry in files.get_all()]
        for entry in entries:
            if entry.large is not None:
                await self._check_content(entry, 10.0)
        await asyncio.sleep(_RETENTION_SECONDS + self._history.clock_skew_seconds)
        # What is due is removed before a read is answered, and gone for good once that is in the
        # file.
        await files.head()
        for upload_id in self._uploads.ids:
            packed = pack((UPLOAD, upload_id))
            state, *_ = await self._client._link.call(FILES, packed, False, 0, 10.0)
            if state is not None and state[2] is None:
                self._fail(f"upload {upload_id.hex()} is nobody's value, and there")

    async def _put(self, key: str, timeout_seconds: float) -> None:
        chance = self._chance
        self._number += 1
        content = f"{self._name}.{self._number};".encode() * chance.randint(700, 1500)
        value = hashlib.sha256(content).hexdigest().encode()
        self._uploads.contents[value] = content
        files = self._client.kv(FILES[1])
        operation = self._invoke(FILES, "set", keys=(key,), values=(value,))
        if chance.random() < 0.4:
            setting = files.set(key, content, timeout_seconds=timeout_seconds)
        else:
            setting = self._put_again(key, content, timeout_seconds)
        await self._call(operation, setting)

    async def _put_again(self, key: str, content: bytes, timeout_seconds: float) -> Ack:
        """Put a file that is cut off now and then, and gone on with. Raises
        OperationTimeoutError."""
        chance, upload_id = self._chance, self._uploads.new_id()
        while True:
            patience = chance.choice((0.05, 0.5, 30.0))
            try:
                async with asyncio.timeout(patience):
                    return await self._client.kv(FILES[1]).put_file(
                        key,
                        io.BytesIO(content),
                        upload_id=upload_id,
                        timeout_seconds=timeout_seconds,
                    )
            except (TimeoutError, HoldfastError) as error:
                self._trace.add(f"upload is cut off by {type(error).__name__}")
                if chance.random() < 0.3:
                    # Of what it sent before nothing is known any more.
                    raise OperationTimeoutError(
                        timeout_seconds=patience, reason="given up"
                    ) from error
            await asyncio.sleep(chance.choice((0.0, 0.3, 2.0)))

    async def _read(self, key: str, timeout_seconds: float) -> None:
        operation = self._invoke(FILES, "get", keys=(key,))
        files = self._client.kv(FILES[1])
        found: list[Entry] = []

        async def read() -> None:
            reader = await files.get_reader(key, timeout_seconds=timeout_seconds)
            if reader is not None:
                found.append(reader.row)
                operation.seen = {key: (value_of(reader.row), reader.row.revision)}

        if await self._answer(operation, read()) is None:
            return
        self._complete(operation)
        if found and found[0].large is not None:
            # A disk that fails is told of, as to any reader.
            refusals = (NotAllowedError,) if self._badge is not None else ()
            with contextlib.suppress(*OUTAGES, *refusals, ValueReplacedError):
                await self._check_content(found[0], timeout_seconds)

    async def _check_content(self, entry: Entry, timeout_seconds: float) -> None:
        files = self._client.kv(FILES[1])
        reader = await files.get_reader(entry, timeout_seconds=timeout_seconds)
        assert reader is not None
        try:
            content = await reader.read()
        except LargeValueDamagedError as error:
            self._fail(f"{entry.key} of revision {entry.revision} is damaged: {error}")
            return
        if content != self._uploads.contents.get(value_of(entry)):
            self._fail(f"{entry.key} of revision {entry.revision} has bytes that nobody put")
