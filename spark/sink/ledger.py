"""The record of what sinks have written: a kv of the tenant, shared by all queries.

    <query>/committed                        the last batch that is written completely
    <query>/<batch>/<partition>/<store>      a task has begun to write to this store

A note of a task says where it began: for a stream the last seq before anything of this batch, for
a kv nothing but that there may be a mark in it (`kv_output.py`). When a batch is committed, that is
recorded first; then its marks and notes are dropped. A committed batch is never written again. A
task that has made a note then looks for that record, because the notes of another try may have been
made and dropped before.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.client import KV, Client
from holdfast.protocol.errors import WrongRevisionError
from holdfast.protocol.names import quote
from holdfast.spark.sink.chunks import BatchId

DEFAULT_LEDGER: Final = "spark-sink"
#: What the keys of marks in kvs begin with.
MARKS: Final = "spark-sink/"
_COMMITTED: Final = "committed"
_KEYS_AT_ONCE: Final = 1000
#: What the note of a kv says.
_KV: Final = b"kv"


def mark_key(batch: BatchId) -> str:
    """Return the key in a kv that says which chunks of a task it has."""
    return f"{MARKS}{quote(batch.query)}/{batch.batch}/{batch.partition}"


class Ledger:
    """Reads and writes the record."""

    def __init__(self, client: Client, name: str = DEFAULT_LEDGER) -> None:
        self._client = client
        self._kv: KV = client.kv(name)

    async def is_committed(self, query: str, batch: int) -> bool:
        """Return whether a batch was written completely."""
        entry = await self._kv.get(f"{quote(query)}/{_COMMITTED}")
        return entry is not None and int(entry.value) >= batch

    async def note_stream(self, batch: BatchId, stream: str, last_seq: int) -> int | None:
        """Note a stream's last seq. If an earlier try has noted one, return that instead."""
        noted = await self._note(batch, stream, b"%d" % last_seq)
        return None if noted is None else int(noted)

    async def note_kv(self, batch: BatchId, kv: str) -> None:
        """Note that a kv may have a mark."""
        await self._note(batch, kv, _KV)

    async def _note(self, batch: BatchId, store: str, text: bytes) -> bytes | None:
        """Make a note. If there is one already, leave and return that instead."""
        key = f"{quote(batch.query)}/{batch.batch}/{batch.partition}/{store}"
        while True:
            try:
                await self._kv.set(key, text, expected_revision=0)
            except WrongRevisionError:
                entry = await self._kv.get(key)
                if entry is None:
                    # Another try has just committed the batch.
                    continue
                return entry.value
            return None

    async def commit(self, query: str, batch: int, ttl_seconds: float | None = None) -> None:
        """Record that a batch and all before it are written, and delete their marks and notes. With
        `ttl_seconds` the record expires, for a query that will not run again."""
        prefix = f"{quote(query)}/"
        if not await self.is_committed(query, batch):
            await self._kv.set(
                f"{prefix}{_COMMITTED}", str(batch).encode(), ttl_seconds=ttl_seconds
            )
        gone: list[tuple[str, bytes]] = []
        async for entry in self._kv.get_all(prefix=prefix):
            noted = entry.key.removeprefix(prefix).split("/")[0]
            if noted.isdigit() and int(noted) <= batch:
                gone.append((entry.key, entry.value))
        for start in range(0, len(gone), _KEYS_AT_ONCE):
            some = gone[start : start + _KEYS_AT_ONCE]
            await asyncio.gather(*(self._drop(query, key, text) for key, text in some))

    async def _drop(self, query: str, key: str, text: bytes) -> None:
        """Delete a note, after the mark that it stands for."""
        if text == _KV:
            *_, batch, partition, kv = key.split("/")
            mark = mark_key(BatchId(query, int(batch), int(partition)))
            await self._client.kv(kv).delete(mark)
        await self._kv.delete(key)
