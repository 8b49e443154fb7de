"""Chunks on their way into streams: each stored once, whoever else tries to, and however late.

How a task writes the chunks of one stream:

1. It notes in the ledger, a kv of the tenant, where the stream stood before anything of this batch
   was written: key `<query>/<batch>/<partition>/<stream>`, create only. If an earlier try has noted
   that, it reads the stream from there on and finds, by their marks (`chunks.py`), what is stored.
2. It appends each further chunk on the condition that the stream's last seq is the one up to which
   it knows everything. If that is refused, it reads what others have appended, among which its own
   chunk may be, and tries again.

So a chunk is stored only in a stream that does not have it, whatever paused tasks and their
successors do at the same time: no clock and no window of time is involved. When a batch is
committed, the ledger says so (`<query>/committed`), and then its notes go; a committed batch is not
written again at all. Who makes a note looks for that afterwards, since the note of its successor
may have come and gone.

What may go wrong is told, not guessed: if messages were removed from a stream between two tries,
OutputRemovedError; if the second try has other rows, RowsChangedError.
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
#: Each is lost to somebody else's append that was not. Far beyond what tasks of one job do to each
#: other.
_TRIES: Final = 1000
_COMMITTED: Final = "committed"
_KEYS_AT_ONCE: Final = 1000


class Ledger:
    """What is known of batches: a kv of the tenant, shared by all queries."""

    def __init__(self, client: Client, name: str = DEFAULT_LEDGER) -> None:
        self._kv: KV = client.kv(name)

    async def is_committed(self, query: str, batch: int) -> bool:
        """Tell if all of a batch was written."""
        entry = await self._kv.get(f"{quote(query)}/{_COMMITTED}")
        return entry is not None and int(entry.value) >= batch

    async def note_start(self, batch: BatchId, stream: str, last_seq: int) -> int | None:
        """Note where a stream stood; if an earlier try has done so, return what that has noted."""
        key = f"{quote(batch.query)}/{batch.batch}/{batch.partition}/{stream}"
        while True:
            try:
                await self._kv.set(key, str(last_seq).encode(), expected_revision=0)
            except WrongRevisionError:
                entry = await self._kv.get(key)
                if entry is None:
                    # The batch was committed by another try in this moment.
                    continue
                return int(entry.value)
            return None

    async def commit(self, query: str, batch: int, ttl_seconds: float | None = None) -> None:
        """Record that all of a batch, and of those before it, is written, and forget their notes.
        Of a query that will not be run again the record need not stay."""
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
    """What one try of a task writes, to any number of streams."""

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
            # Of the streams of one task; the first one says enough.
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
    """One stream's part. Knows every chunk of its batch up to `_known_seq`."""

    def __init__(
        self, client: Client, stream: str, batch: BatchId, durability: Durability
    ) -> None:
        self._stream = client.stream(stream)
        self._batch = batch
        self._durability = durability
        self._known_seq = 0
        self._stored: dict[int, ChunkMark] = {}
        #: Another try has written everything.
        self._is_committed = False

    async def start(self, ledger: Ledger) -> None:
        """Find out what earlier tries have stored."""
        head = await self._stream.head()
        noted = await ledger.note_start(self._batch, self._stream.name, head.last_seq)
        self._known_seq = head.last_seq if noted is None else noted
        if noted is not None:
            await self._look()
        else:
            self._is_committed = await ledger.is_committed(self._batch.query, self._batch.batch)

    async def store(self, chunk: RowChunk) -> None:
        """Store a chunk unless it is."""
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
        # They are stored in order; those before the first one found were removed since.
        return chunk.mark.number <= max(self._stored)

    async def _look(self) -> None:
        """Read what the stream has beyond `_known_seq`."""
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
