"""How durable what consumers record is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.client.handles.serving_wire import Packer
from holdfast.gateway.jetstream.consumers.stream_access import CursorWrite
from holdfast.gateway.jetstream.streams.stream_for_consumers import StreamForConsumers
from holdfast.protocol.messages import Durability


async def test_what_removes_messages_is_synced() -> None:
    """A record that is applied can be lost with its owner. Later ones say that a message is done
    with, so nobody would remove it again."""
    levels: list[int] = []

    async def batch(operations: list[Any], durability: int) -> list[Any]:
        levels.append(durability)
        return []

    access: Any = StreamForConsumers.__new__(StreamForConsumers)
    access._store = SimpleNamespace(packer=Packer(1), batch=batch)
    write = CursorWrite("c", None, b"state", [], [])
    await access.write([write])
    await access.write([write], removed=[7])
    await access.write([write], synced=True)
    assert levels == [Durability.APPLIED, Durability.SYNCED, Durability.SYNCED]
