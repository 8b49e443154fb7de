"""Operations that wait for an answer, and their callers.

Pure. The caller packs an operation once, and it stays packed until it is answered.
"""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.protocol.errors import HoldfastError, error_from_wire


class Waiter(Protocol):
    """Waits for the answer to an operation: `(result, time, durability)`, an `Ack` if the result is
    one of a run, or `(HoldfastError, 0, None)` for an error. It is not an exception because asyncio
    warns of exceptions that nobody retrieves, as when the caller was cancelled."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...


class PackedBatch(bytes):
    """An atomic batch, packed. Each of its operations counts toward the size of a frame."""

    operation_count: int


class PackedRun(bytes):
    """Several operations, packed one after the other, that travel together and have one waiter. Its
    answer is `(results, time, durability)`: a Run, or a list with the result of each."""

    operation_count: int


Operation = tuple[bytes, Waiter, float, int, float]
"""`(packed, waiter, deadline_at, durability, timeout_seconds)`. A plain tuple, because one is made
for each operation, and a NamedTuple takes six times as long to make."""


def fail(operation: Operation, error: HoldfastError) -> None:
    """Answer with a copy of the error, because a traceback belongs to one raise."""
    waiter: Any = operation[1]
    if not waiter.done():
        own = error_from_wire(error.code, error.fields)
        own.__cause__ = error.__cause__
        waiter.set_result((own, 0, None))
