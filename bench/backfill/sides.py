"""One large stream on each side, as those at its tail and its reader use it.

Values are numbers and noise, which neither side can compress. A message's number is its seq.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PubAck,
    StorageType,
    StreamConfig,
)

from holdfast.bench.load import Limit, windowed
from holdfast.client import Client, connect

HOLDFAST: Final = "holdfast"
JETSTREAM: Final = "jetstream"
VALUE_BYTES: Final = 1024
_STREAM: Final = "backfill"
_TENANT: Final = "bench"
_TIMEOUT_SECONDS: Final = 60.0
_NUMBER_BYTES: Final = 16
_NOISE: Final = random.Random(22).randbytes(4 * VALUE_BYTES)
_FETCHED: Final = 500
_BATCH: Final = 512
_BATCHES: Final = 8


def value_of(seq: int) -> bytes:
    """Return the value of a message."""
    at = seq * 7919 % (len(_NOISE) - VALUE_BYTES)
    return b"%016x" % seq + _NOISE[at : at + VALUE_BYTES - _NUMBER_BYTES]


class BackfillSide(Protocol):
    """One client of one large stream."""

    async def open(self) -> None:
        """Make the stream."""

    async def fill(self, start_seq: int, end_seq: int) -> None:
        """Append the messages from `start_seq` to `end_seq`, in order."""

    async def append(self, seq: int) -> None:
        """Append the message of a seq, and wait until it is acknowledged."""

    async def get(self, seq: int) -> bytes:
        """Return the value of one message."""

    def followed(self, tell: Callable[[bytes], None]) -> AbstractAsyncContextManager[None]:
        """Tell of each message that is appended, in the body."""

    def values(self) -> AsyncIterator[bytes]:
        """Yield all values from the beginning."""


class HoldfastBackfill:
    """A stream of holdfast."""

    def __init__(self, client: Client) -> None:
        self._stream = client.stream(_STREAM)

    async def open(self) -> None:
        await self._stream.head()

    async def fill(self, start_seq: int, end_seq: int) -> None:
        # Those that begin together arrive in that order.
        seqs = range(start_seq, end_seq + 1)
        batches = [seqs[at : at + _BATCH] for at in range(0, len(seqs), _BATCH)]
        for at in range(0, len(batches), _BATCHES):
            async with asyncio.TaskGroup() as tasks:
                for batch in batches[at : at + _BATCHES]:
                    tasks.create_task(self._stream.append_many(list(map(value_of, batch))))

    async def append(self, seq: int) -> None:
        await self._stream.append(value_of(seq))

    async def get(self, seq: int) -> bytes:
        message = await self._stream.get(seq)
        assert message is not None
        return bytes(message.value)

    @asynccontextmanager
    async def followed(self, tell: Callable[[bytes], None]) -> AsyncIterator[None]:
        head = await self._stream.head()

        async def follow() -> None:
            async for change in self._stream.subscribe(start_seq=head.last_seq + 1):
                if change.message is not None:
                    tell(change.message.value)

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def values(self) -> AsyncIterator[bytes]:
        async for message in self._stream.get_all():
            yield message.value


class JetStreamBackfill:
    """A stream of JetStream, in files."""

    def __init__(self, client: NatsClient) -> None:
        self._context = client.jetstream(
            timeout=_TIMEOUT_SECONDS, publish_async_max_pending=2 * _BATCH
        )

    async def open(self) -> None:
        config = StreamConfig(
            name=_STREAM, subjects=[_STREAM], storage=StorageType.FILE, allow_direct=True
        )
        await self._context.add_stream(config)

    async def fill(self, start_seq: int, end_seq: int) -> None:
        async def start(seq: int) -> asyncio.Future[PubAck]:
            return await self._context.publish_async(_STREAM, value_of(seq))

        limit = Limit(operations=end_seq + 1 - start_seq)
        await windowed(start, _BATCH, limit, start_seq, lambda seq, ack: None)

    async def append(self, seq: int) -> None:
        await self._context.publish(_STREAM, value_of(seq))

    async def get(self, seq: int) -> bytes:
        return (await self._context.get_msg(_STREAM, seq, direct=True)).data or b""

    @asynccontextmanager
    async def followed(self, tell: Callable[[bytes], None]) -> AsyncIterator[None]:
        async def hear(message: Msg) -> None:
            tell(message.data)

        subscription = await self._context.subscribe(
            _STREAM,
            stream=_STREAM,
            cb=hear,
            ordered_consumer=True,
            deliver_policy=DeliverPolicy.NEW,
        )
        try:
            yield
        finally:
            await subscription.unsubscribe()

    async def values(self) -> AsyncIterator[bytes]:
        left = (await self._context.stream_info(_STREAM)).state.messages
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True
        )
        consumer = await self._context.pull_subscribe(_STREAM, stream=_STREAM, config=config)
        while left > 0:
            messages = await consumer.fetch(min(_FETCHED, left), _TIMEOUT_SECONDS)
            left -= len(messages)
            for message in messages:
                yield message.data
        await consumer.unsubscribe()


@asynccontextmanager
async def connected_side(kind: str, url: str) -> AsyncIterator[BackfillSide]:
    """Connect a client of a side around the body."""
    if kind == HOLDFAST:
        async with connect(url, tenant=_TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:
            yield HoldfastBackfill(client)
        return
    nats_client = await nats.connect(url)
    try:
        yield JetStreamBackfill(nats_client)
    finally:
        await nats_client.close()
