"""What waits for an answer: an operation, packed, and its caller.

Pure. An operation is packed once, by its caller, and stays as it is until it is answered.
"""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.protocol.errors import HoldfastError, error_from_wire


class Waiter(Protocol):
    """Who waits for an operation. What it is given is `(result, time, durability)`, or an `Ack` if
    the result is one of a run, or, in place of an exception, `(HoldfastError, 0, None)`: asyncio
    warns of exceptions that nobody is left to retrieve, and a cancelled caller is nobody."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...


class PackedBatch(bytes):
    """An atomic batch, packed. Each operation in it counts for the size of a frame."""

    operation_count: int


Operation = tuple[bytes, Waiter, float, int, float]
"""`(packed, waiter, deadline_at, durability, timeout_seconds)`. A plain tuple: one is made for each
operation, and a NamedTuple costs six times as much to make."""


def fail(operation: Operation, error: HoldfastError) -> None:
    """Answer with an exception of the caller's own: a traceback belongs to one raise."""
    waiter: Any = operation[1]
    if not waiter.done():
        own = error_from_wire(error.code, error.fields)
        own.__cause__ = error.__cause__
        waiter.set_result((own, 0, None))
