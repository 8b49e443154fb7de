"""A publisher of a fast batch over nats-py, as ADR-50 of NATS describes one.

async with fast_batch(client, flow=100, gap="fail") as batch:
    await batch.publish("s.1", b"1")
    pub_ack = await batch.commit("s.2", b"2")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

START, APPEND, COMMIT, END, PING = range(5)
#: Acks that may be missing before the publisher waits.
_OUTSTANDING = 2


class FastBatch:
    """One batch. Messages are numbered by the calls."""

    def __init__(self, client: Client, inbox: str, batch_id: str, flow: int, gap: str) -> None:
        self._client = client
        self._start = f"{inbox}.{batch_id}.{flow}.{gap}"
        self._changed = asyncio.Event()
        self.sequence = 0
        #: What the last ack said.
        self.acked = 0
        self.flow = 0
        self.gaps: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        self.ending: dict[str, Any] | None = None

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Send a message, and wait while too many are unacknowledged. Return False, and send
        nothing, if the batch has ended."""
        if self.ending is not None:
            return False
        self.sequence += 1
        await self._send(subject, payload, APPEND if self.sequence > 1 else START, headers)
        await self._until(
            lambda: bool(self.flow) and self.sequence < self.acked + self.flow * _OUTSTANDING
        )
        return True

    async def commit(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send the last message, and return the PubAck."""
        self.sequence += 1
        await self._send(subject, payload, COMMIT, headers)
        return await self.end()

    async def commit_without_message(self, subject: str) -> dict[str, Any]:
        """End the batch, and return the PubAck."""
        self.sequence += 1
        await self._send(subject, b"", END, None)
        return await self.end()

    async def end(self) -> dict[str, Any]:
        """Return the PubAck."""
        await self._until(lambda: self.ending is not None)
        assert self.ending is not None
        return self.ending

    async def ping(self, subject: str) -> None:
        """Ask for the flow message."""
        await self._send(subject, b"", PING, None)

    async def _send(
        self, subject: str, payload: bytes, operation: int, headers: Mapping[str, str] | None
    ) -> None:
        reply = f"{self._start}.{self.sequence}.{operation}.$FI"
        fields = dict(headers) if headers else None
        await self._client.publish(subject, payload, reply, headers=fields)

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(30.0):
            while not condition() and self.ending is None:
                self._changed.clear()
                await self._changed.wait()

    async def heard(self, message: Msg) -> None:
        """Take what the server says."""
        if not message.data:
            # Nobody serves the stream.
            return
        said = json.loads(message.data)
        kind = said.get("type")
        if kind == "ack":
            self.acked, self.flow = max(self.acked, said["seq"]), said["msgs"]
        elif kind == "gap":
            self.gaps.append(said)
        elif kind == "err":
            self.errors.append(said)
        else:
            self.ending = said
        self._changed.set()


@contextlib.asynccontextmanager
async def fast_batch(
    client: Client, batch_id: str = "b", *, flow: int = 100, gap: str = "fail"
) -> AsyncIterator[FastBatch]:
    """A batch that begins with the first message."""
    inbox = client.new_inbox()
    batch = FastBatch(client, inbox, batch_id, flow, gap)
    subscription = await client.subscribe(f"{inbox}.{batch_id}.>", cb=batch.heard)
    try:
        yield batch
    finally:
        await subscription.unsubscribe()
