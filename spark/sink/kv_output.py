"""Writes chunks into a kv: each is stored once, even if other tries write at the same time.

1. A task notes in the ledger that it writes to this kv, and creates a key in the kv itself, its
   mark. Then it looks whether the batch is committed; if so, it deletes the mark and is done.
2. Each chunk is a transaction: its sets and deletes, and its number and a digest of all rows so far
   as the mark's new value, on the condition that the mark is as this try knows it. If that is
   refused, another try has stored the chunk, or the batch is committed: the mark says which.

So a chunk is stored only in a kv that does not have it, and never after its batch was committed,
when the mark goes: others who set the same keys since are not overwritten by a task that was
paused. No clock and no time window is involved. While a batch is written its marks are keys like
others (`spark-sink/<query>/<batch>/<partition>`), which readers of the whole kv see.

If the second try has other rows, it raises RowsChangedError. If somebody else deletes the mark
before the batch is committed, it raises MarkRemovedError.
"""

from __future__ import annotations

import hashlib
from typing import Final

from holdfast.client import Client
from holdfast.protocol.errors import WrongRevisionError
from holdfast.protocol.messages import Durability
from holdfast.spark.errors import MarkRemovedError, RowsChangedError
from holdfast.spark.sink.chunks import BatchId, EntryRow, RowChunk
from holdfast.spark.sink.ledger import Ledger, mark_key

#: A try fails only if another try of the same task has stored a chunk.
_TRIES: Final = 1000
_DIGEST_BYTES: Final = 12
#: The mark before the first chunk.
_NONE: Final = "-1/"


class KVOutput:
    """Writes to one kv. It knows the mark as it was when it last looked."""

    def __init__(self, client: Client, kv: str, batch: BatchId, durability: Durability) -> None:
        self._kv = client.kv(kv)
        self._batch = batch
        self._durability = durability
        self._mark = mark_key(batch)
        self._revision = 0
        #: The number of the last chunk that is stored, and the digest of all rows up to it.
        self._stored = _NONE
        #: The same of the last chunk that this try was given.
        self._given = _NONE
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        #: Whether another try has written everything.
        self._is_committed = False
        self._ledger: Ledger | None = None

    async def start(self, ledger: Ledger) -> None:
        """Find out which chunks earlier tries have stored."""
        self._ledger = ledger
        await ledger.note_kv(self._batch, self._kv.name)
        try:
            ack = await self._kv.set(self._mark, _NONE.encode(), expected_revision=0)
        except WrongRevisionError:
            await self._look()
        else:
            self._revision = ack.revision
            if await self._committed():
                await self._kv.delete(self._mark)

    async def store(self, chunk: RowChunk[EntryRow]) -> None:
        """Store a chunk, unless it is stored already."""
        self._digest.update(chunk.mark.digest.encode())
        number = chunk.mark.number
        self._given = f"{number}/{self._digest.hexdigest()}"
        for _ in range(_TRIES):
            if self._is_stored(number):
                return
            try:
                await self._write(chunk)
            except WrongRevisionError as error:
                refusal = error
                await self._look()
            else:
                return
        raise refusal

    async def _write(self, chunk: RowChunk[EntryRow]) -> None:
        transaction = self._kv.transaction(durability=self._durability)
        transaction.expect(self._mark, self._revision)
        transaction.set(self._mark, self._given.encode())
        for row in chunk.rows:
            if row.value is None:
                transaction.delete(row.key)
            else:
                transaction.set(
                    row.key, row.value, headers=row.headers, ttl_seconds=row.ttl_seconds
                )
        ack, *_ = await transaction.commit()
        self._revision, self._stored = ack.revision, self._given

    def _is_stored(self, number: int) -> bool:
        if self._is_committed:
            return True
        stored = int(self._stored.partition("/")[0])
        if number == stored and self._given != self._stored:
            raise RowsChangedError(batch=str(self._batch), store=f"kv {self._kv.name!r}")
        return number <= stored

    async def _look(self) -> None:
        """Read the mark."""
        entry = await self._kv.get(self._mark)
        if entry is not None:
            self._revision, self._stored = entry.revision, entry.value.decode()
        elif not await self._committed():
            raise MarkRemovedError(batch=str(self._batch), kv=self._kv.name, key=self._mark)

    async def _committed(self) -> bool:
        assert self._ledger is not None, "it was started"
        self._is_committed = await self._ledger.is_committed(self._batch.query, self._batch.batch)
        return self._is_committed
