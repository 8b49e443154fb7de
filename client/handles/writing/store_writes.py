"""Writes to one store: operations sent, and their answers as acks.

The plain `append` and `set` of a handle do this by themselves: they are the path of every message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import Value, ack_from_wire, checked_durability, pack_batch
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import pack
from holdfast.protocol.messages import Ack, AnyDurability, Deleted, LargeValue

_Operation = list[Any]


class StoreWrites:
    """The writes of one handle."""

    def __init__(self, link: Link, key: StoreKey) -> None:
        self._link = link
        self._key = key

    def committing(
        self,
        operation: Callable[[Value | LargeValue], _Operation],
        durability: AnyDurability | None,
        timeout_seconds: float | None,
        *,
        condition: _Operation | None = None,
    ) -> Callable[[Value | LargeValue], Awaitable[Ack]]:
        """Return what stores a value, or what was uploaded, by the `operation` that is made of it;
        with a `condition` only if that holds. Raises before anything is sent."""
        link, key, level = self._link, self._key, checked_durability(durability)

        async def commit(value: Value | LargeValue) -> Ack:
            if condition is not None:
                whole = pack_batch([condition, operation(value)], link.operation_limit_bytes)
                results, time, stored = await link.call(key, whole, True, level, timeout_seconds)
                return ack_from_wire(results[1], time, stored)
            packed = pack(operation(value))
            if link.full:
                await link.wait_for_room(timeout_seconds)
            answer = await link.submit(key, packed, True, level, timeout_seconds)
            return answer if type(answer) is Ack else ack_from_wire(*link.unwrap(answer))

        operation(b"")
        return commit

    async def batch(
        self,
        operations: list[_Operation],
        durability: AnyDurability | None,
        timeout_seconds: float | None,
    ) -> list[Ack]:
        """Store all of them or none. Return an ack for each; [] if there are none."""
        level = checked_durability(durability)
        if not operations:
            return []
        packed = pack_batch(operations, self._link.operation_limit_bytes)
        results, time, stored = await self._link.call(
            self._key, packed, True, level, timeout_seconds
        )
        if len(results) != len(operations):
            raise MalformedFrameError(reason=f"{len(results)} results of {len(operations)}")
        return [ack_from_wire(result, time, stored) for result in results]

    async def delete(self, packed: bytes, timeout_seconds: float | None) -> Deleted:
        """Send an operation that answers how many it has deleted, and the revision."""
        (count, revision), *_ = await self._link.call(self._key, packed, True, 0, timeout_seconds)
        return Deleted(count, revision)
