"""Writes the chunks of one try of a task: each is stored once, even if other tries write at the
same time.

`stream_output.py` and `kv_output.py` describe how, `ledger.py` what is recorded of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from holdfast.client import Client
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreKind
from holdfast.spark.sink.chunks import BatchId, RowChunk
from holdfast.spark.sink.kv_output import KVOutput
from holdfast.spark.sink.ledger import Ledger
from holdfast.spark.sink.stream_output import StreamOutput


class StoreOutput(Protocol):
    """Writes to one store."""

    async def start(self, ledger: Ledger) -> None:
        """Find out which chunks earlier tries have stored."""

    async def store(self, chunk: RowChunk[Any]) -> None:
        """Store a chunk, unless it is stored already."""


class Output:
    """Writes to any number of stores of one kind."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        batch: BatchId,
        durability: Durability,
        kind: StoreKind = StoreKind.STREAM,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._batch = batch
        self._durability = durability
        self._kind = kind
        self._stores: dict[str, StoreOutput] = {}

    async def write(self, chunks: Iterable[RowChunk[Any]]) -> None:
        """Store chunks, in order within each store. Raises RowsChangedError, OutputRemovedError,
        MarkRemovedError, and what `append_many` and `commit` of a transaction raise."""
        queues: dict[str, list[RowChunk[Any]]] = {}
        for chunk in chunks:
            queues.setdefault(chunk.store, []).append(chunk)
        try:
            async with asyncio.TaskGroup() as writing:
                for store, queue in queues.items():
                    writing.create_task(self._write(store, queue))
        except ExceptionGroup as group:
            # The stores of one task fail alike, so the first error says enough.
            raise group.exceptions[0] from None

    async def _write(self, store: str, queue: list[RowChunk[Any]]) -> None:
        output = self._stores.get(store)
        if output is None:
            output = self._output(store)
            self._stores[store] = output
            await output.start(self._ledger)
        for chunk in queue:
            await output.store(chunk)

    def _output(self, store: str) -> StoreOutput:
        made = KVOutput if self._kind == StoreKind.KV else StreamOutput
        return made(self._client, store, self._batch, self._durability)
