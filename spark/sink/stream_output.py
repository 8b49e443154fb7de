"""Writes chunks into a stream: each is stored once, even if other tries write at the same time.

1. A task notes in the ledger the stream's last seq before anything of this batch was written. If
   there is a note of an earlier try, it reads the stream from there on and finds the stored chunks
   by their marks (`chunks.py`).
2. It appends each further chunk on the condition that the stream's last seq is the one up to which
   it has read. If that is refused, it reads what others have appended, which may include its own
   chunk, and tries again.

So a chunk is stored only in a stream that does not have it, whatever paused tasks and their
successors do at the same time. No clock and no time window is involved.

If messages were removed from a stream between two tries, it raises OutputRemovedError. If the
second try has other rows, it raises RowsChangedError.
"""

from __future__ import annotations

from typing import Final

from holdfast.client import Client
from holdfast.protocol.errors import WrongLastSeqError
from holdfast.protocol.messages import Durability, Headers
from holdfast.spark.errors import OutputRemovedError, RowsChangedError
from holdfast.spark.sink.chunks import CHUNK_HEADER, BatchId, ChunkMark, OutputRow, RowChunk
from holdfast.spark.sink.ledger import Ledger

#: A try fails only if somebody else's append succeeded. Tasks of one job need far fewer tries.
_TRIES: Final = 1000


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
        noted = await ledger.note_stream(self._batch, self._stream.name, head.last_seq)
        self._known_seq = head.last_seq if noted is None else noted
        if noted is not None:
            await self._look()
        else:
            self._is_committed = await ledger.is_committed(self._batch.query, self._batch.batch)

    async def store(self, chunk: RowChunk[OutputRow]) -> None:
        """Store a chunk, unless it is stored already."""
        for _ in range(_TRIES):
            if self._is_stored(chunk):
                return
            try:
                acks = await self._stream.append_many(
                    _messages(chunk),
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

    def _is_stored(self, chunk: RowChunk[OutputRow]) -> bool:
        if self._is_committed or not self._stored:
            return self._is_committed
        mark = self._stored.get(chunk.mark.number)
        if mark is not None and mark != chunk.mark:
            raise RowsChangedError(batch=str(self._batch), store=f"stream {self._stream.name!r}")
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


def _messages(chunk: RowChunk[OutputRow]) -> list[tuple[bytes, Headers, str | None]]:
    """Return the messages for `append_many`, the mark in the first one."""
    first, *others = chunk.rows
    marked = {**first.headers, CHUNK_HEADER: chunk.mark.to_header()}
    return [(first.value, marked, first.subject), *others]
