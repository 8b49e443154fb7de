"""Reads the live cluster: which stores exist, and what they hold. It needs only NATS.

Everything comes from the owners, so it is as fresh as any client's read. A task keeps a bounded
amount in memory: the batch of rows that is being made and the next one, each of a few MB, and one
prefetched page for each store that is being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from itertools import groupby
from typing import Any, Final, TypeVar

import pyarrow as pa

from holdfast.client import Client
from holdfast.protocol.messages import Entry, Message
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.spark.errors import MessagesLostError
from holdfast.spark.event_loop import connecting, running_loop
from holdfast.spark.options import Connection, NamePattern
from holdfast.spark.rows.batches import piece_of_entries, piece_of_messages
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.rows.rows import BATCH_BYTES, BATCH_ROWS, Piece, RowOrigin
from holdfast.spark.source.ranges import SeqRange, StoreExtent

#: Heads that are requested at once. They travel together, in one frame to each server.
_ASKED_AT_ONCE: Final = 2048
#: How many small stores are read at once, so that their round trips overlap, and the largest weight
#: of a small store. Together they are no more than a few batches.
_SMALL_READS: Final = 32
_SMALL_WEIGHT: Final = 512
_Item = TypeVar("_Item", Message, Entry)
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


async def extents(
    client: Client,
    patterns: Iterable[tuple[StoreKind, NamePattern]],
    accepts: Callable[[StoreKind, str], bool] = lambda kind, name: True,
) -> list[StoreExtent]:
    """Return the stores that match, are accepted and were ever written, by kind and name."""
    found: list[StoreExtent] = []
    for kind, pattern in patterns:
        names = [
            store.name
            for prefix in pattern.prefixes
            async for store in client.stores(kind, prefix)
            if pattern.matches(store.name) and accepts(kind, store.name)
        ]
        found += await extents_of(client, kind, names)
    return found


async def extents_of(client: Client, kind: StoreKind, names: Sequence[str]) -> list[StoreExtent]:
    """Return the extents of these stores, without those that were never written."""

    async def extent(name: str) -> StoreExtent:
        handle = client.stream(name) if kind is StoreKind.STREAM else client.kv(name)
        head = await handle.head()
        return StoreExtent(kind, name, head.first_seq, head.last_seq, head.count, head.bytes)

    return [one for one in await _in_groups(extent, names) if one.last_seq or one.row_count]


async def since_time(
    client: Client, found: Sequence[StoreExtent], start_time: int
) -> list[StoreExtent]:
    """Return the part of each stream that was appended from `start_time` on."""

    async def since(extent: StoreExtent) -> StoreExtent:
        if extent.kind is StoreKind.KV or extent.row_count == 0:
            return extent
        first_seq = extent.last_seq + 1
        stream = client.stream(extent.name)
        async for message in stream.get_all(
            start_seq=extent.first_seq, start_time=start_time, limit=1
        ):
            first_seq = message.seq
        return extent._replace(first_seq=first_seq)

    return await _in_groups(since, found)


async def _in_groups(
    ask: Callable[[_Asked], Coroutine[Any, Any, _Answer]], about: Sequence[_Asked]
) -> list[_Answer]:
    found: list[_Answer] = []
    for start in range(0, len(about), _ASKED_AT_ONCE):
        found += await asyncio.gather(*map(ask, about[start : start + _ASKED_AT_ONCE]))
    return found


def batches(
    gathering: Gathering,
    connection: Connection,
    ranges: Sequence[SeqRange],
    *,
    fail_on_data_loss: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, store by store and in order, for blocking code.

    With `fail_on_data_loss` raises MessagesLostError if the first messages of a range are gone.
    """
    with running_loop() as loop:
        yield from loop.iterate(_batches(gathering, connection, ranges, fail_on_data_loss))


async def _batches(
    gathering: Gathering,
    connection: Connection,
    ranges: Sequence[SeqRange],
    fail_on_data_loss: bool,
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with (
        connecting(connection) as client,
        aclosing(_pieces(client, ranges, fail_on_data_loss)) as found,
    ):
        async for piece in found:
            for batch in gathering.add(piece):
                yield batch.rows
        for batch in gathering.rest():
            yield batch.rows


async def _pieces(
    client: Client, ranges: Sequence[SeqRange], fail_on_data_loss: bool
) -> AsyncGenerator[Piece, None]:
    for is_small, found in groupby(ranges, lambda one: one.weight <= _SMALL_WEIGHT):
        group = list(found)
        for start in range(0, len(group), _SMALL_READS if is_small else 1):
            some = group[start : start + (_SMALL_READS if is_small else 1)]
            if is_small:
                for rows in await asyncio.gather(*(_whole(client, one) for one in some)):
                    for piece in rows:
                        yield piece
            else:
                async with aclosing(_read_one(client, some[0])) as pieces:
                    async for piece in pieces:
                        yield piece
            if fail_on_data_loss:
                await asyncio.gather(*(_check_loss(client, one) for one in some))


async def _whole(client: Client, one: SeqRange) -> list[Piece]:
    return [rows async for rows in _read_one(client, one)]


async def _read_one(client: Client, one: SeqRange) -> AsyncGenerator[Piece, None]:
    origin = RowOrigin(StoreId(client.tenant, one.kind, one.name), 0, 0, "")
    if one.kind is StoreKind.STREAM:
        messages = client.stream(one.name).get_all(start_seq=one.start_seq, end_seq=one.end_seq)
        async for some in _in_lists(messages):
            yield piece_of_messages(origin, some)
    else:
        async for entries in _in_lists(client.kv(one.name).get_all()):
            yield piece_of_entries(origin, entries)


async def _in_lists(items: AsyncIterator[_Item]) -> AsyncGenerator[list[_Item], None]:
    """Yield lists of items, none of them much larger than a batch."""
    some: list[_Item] = []
    size_bytes = 0
    async for item in items:
        some.append(item)
        size_bytes += len(item.value)
        if len(some) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


async def _check_loss(client: Client, one: SeqRange) -> None:
    """Raise MessagesLostError if messages of a range are missing. Called after the range was read:
    messages that exist now existed then."""
    if one.kind is StoreKind.KV:
        return
    head = await client.stream(one.name).head()
    if head.first_seq > one.start_seq or head.last_seq < one.end_seq:
        raise MessagesLostError(
            stream=one.name,
            expected_seq=one.start_seq,
            first_seq=head.first_seq,
            last_seq=head.last_seq,
        )
