"""Writes chunks into streams: each is stored once, even if other tries write at the same time.

How a task writes the chunks of one stream:

1. It notes in the ledger, a kv of the tenant, the stream's last seq before anything of this
   batch was written: key `<query>/<batch>/<partition>/<stream>`, create only. If there is a note
   of an earlier try, it reads the stream from there on and finds the stored chunks by their
   marks (`chunks.py`).
2. It appends each further chunk on the condition that the stream's last seq is the one up to which
   it has read. If that is refused, it reads what others have appended, which may include its own
   chunk, and tries again.

So a chunk is stored only in a stream that does not have it, whatever paused tasks and their
successors do at the same time. No clock and no time window is involved. When a batch is committed,
the ledger records that (`<query>/committed`) and drops its notes; a committed batch is never
written again. A task that has made a note then checks this record, because the notes of another try
may have been made and dropped before.

If messages were removed from a stream between two tries, it raises OutputRemovedError. If the
second try has other rows, it raises RowsChangedError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from holdfast.client import KV, Client
from holdfast.protocol.errors import WrongLastSeqError, WrongRevisionError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import quote
from holdfast.spark.errors import OutputRemovedError, RowsChangedError
from holdfast.spark.sink.chunks import BatchId, ChunkMark, RowChunk

DEFAULT_LEDGER: Final = "spark-sink"
#: A try fails only if somebody else's append succeeded. Tasks of one job need far fewer tries.
_TRIES: Final = 1000
_COMMITTED: Final = "committed"
_KEYS_AT_ONCE: Final = 1000


class Ledger:
    """The record of batches: a kv of the tenant, shared by all queries."""

    def __init__(self, client: Client, name: str = DEFAULT_LEDGER) -> None:
        self._kv: KV = client.kv(name)

    async def is_committed(self, query: str, batch: int) -> bool:
        """Return whether a batch was written completely."""
        entry = await self._kv.get(f"{quote(query)}/{_COMMITTED}")
        return entry is not None and int(entry.value) >= batch

    async def note_start(self, batch: BatchId, stream: str, last_seq: int) -> int | None:
        """Note a stream's last seq. If an earlier try has noted one, return that instead."""
        key = f"{quote(batch.query)}/{batch.batch}/{batch.partition}/{stream}"
        while True:
            try:
                await self._kv.set(key, str(last_seq).encode(), expected_revision=0)
            except WrongRevisionError:
                entry = await self._kv.get(key)
                if entry is None:
                    # Another try has just committed the batch.
                    continue
                return int(entry.value)
            return None

    async def commit(self, query: str, batch: int, ttl_seconds: float | None = None) -> None:
        """Record that a batch and all before it are written, and delete their notes. With
        `ttl_seconds` the record expires, for a query that will not run again."""
        prefix = f"{quote(query)}/"
        if not await self.is_committed(query, batch):
            await self._kv.set(
                f"{prefix}{_COMMITTED}", str(batch).encode(), ttl_seconds=ttl_seconds
            )
        gone: list[str] = []
        async for key in self._kv.keys(prefix=prefix):
            noted = key.removeprefix(prefix).split("/")[0]
            if noted.isdigit() and int(noted) <= batch:
                gone.append(key)
        for start in range(0, len(gone), _KEYS_AT_ONCE):
            some = gone[start : start + _KEYS_AT_ONCE]
            await asyncio.gather(*(self._kv.delete(key) for key in some))


class Output:
    """Writes the chunks of one try of a task, to any number of streams."""

    def __init__(
        self, client: Client, ledger: Ledger, batch: BatchId, durability: Durability
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._batch = batch
        self._durability = durability
        self._streams: dict[str, StreamOutput] = {}

    async def write(self, chunks: Iterable[RowChunk]) -> None:
        """Store chunks, in order within each stream. Raises RowsChangedError, OutputRemovedError,
        and what `append_many` raises."""
        queues: dict[str, list[RowChunk]] = {}
        for chunk in chunks:
            queues.setdefault(chunk.stream, []).append(chunk)
        try:
            async with asyncio.TaskGroup() as writing:
                for stream, queue in queues.items():
                    writing.create_task(self._write(stream, queue))
        except ExceptionGroup as group:
            # The streams of one task fail alike, so the first error says enough.
            raise group.exceptions[0] from None

    async def _write(self, stream: str, queue: list[RowChunk]) -> None:
        output = self._streams.get(stream)
        if output is None:
            output = StreamOutput(self._client, stream, self._batch, self._durability)
            self._streams[stream] = output
            await output.start(self._ledger)
        for chunk in queue:
            await output.store(chunk)


class StreamOutput:
    """Writes to one stream. It knows all chunks of its batch up to `_known_seq`."""

    def __init__(
        self, client: Client, stream: str, batch: BatchId, durability: Durability
    ) -> None:
        self._stream = client.stream(stream)
        self._batch = batch
        self._durability = durability
        self._known_seq = 0
        self._stored: dict[int, ChunkMark] = {}
        #: Whether another try has written everything.
        self._is_committed = False

    async def start(self, ledger: Ledger) -> None:
        """Find out which chunks earlier tries have stored."""
        head = await self._stream.head()
        noted = await ledger.note_start(self._batch, self._stream.name, head.last_seq)
        self._known_seq = head.last_seq if noted is None else noted
        if noted is not None:
            await self._look()
        else:
            self._is_committed = await ledger.is_committed(self._batch.query, self._batch.batch)

    async def store(self, chunk: RowChunk) -> None:
        """Store a chunk, unless it is stored already."""
        for _ in range(_TRIES):
            if self._is_stored(chunk):
                return
            try:
                acks = await self._stream.append_many(
                    chunk.messages(),
                    expected_last_seq=self._known_seq,
                    durability=self._durability,
                )
            except WrongLastSeqError as error:
                refusal = error
                await self._look()
                continue
            last_seq = acks[-1].seq
            assert last_seq is not None
            self._known_seq = last_seq
            return
        raise refusal

    def _is_stored(self, chunk: RowChunk) -> bool:
        if self._is_committed or not self._stored:
            return self._is_committed
        mark = self._stored.get(chunk.mark.number)
        if mark is not None and mark != chunk.mark:
            raise RowsChangedError(batch=str(self._batch), stream=self._stream.name)
        # Chunks are stored in order, so those before the first one found were stored and removed.
        return chunk.mark.number <= max(self._stored)

    async def _look(self) -> None:
        """Read the stream from `_known_seq` on."""
        expected_seq = self._known_seq + 1
        head = await self._stream.head()
        async for message in self._stream.get_all(start_seq=expected_seq, end_seq=head.last_seq):
            mark = ChunkMark.of(message.headers)
            if mark is not None and mark.id == self._batch:
                self._stored[mark.number] = mark
        after = await self._stream.head()
        if after.first_seq > expected_seq and not self._stored:
            raise OutputRemovedError(
                batch=str(self._batch),
                stream=self._stream.name,
                expected_seq=expected_seq,
                first_seq=after.first_seq - 1,
            )
        self._known_seq = head.last_seq
