"""What travels: operations with their callers, groups of them, and the frame that carries groups.

Pure. A group keeps its operations packed, each once, until it is answered: a frame is put together
from them by copying bytes, also when a group has to be sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgpack

from holdfast.protocol.errors import HoldfastError, error_from_wire
from holdfast.protocol.frames import PROTOCOL_VERSION, pack
from holdfast.protocol.messages import Durability

if TYPE_CHECKING:
    from holdfast.client.wire.store_queue import ServerQueue, StoreQueue

_array_header: Final = msgpack.Packer(autoreset=True).pack_array_header
_ONE: Final = _array_header(1)
#: Counter, first_unacked and durability of reads.
_OF_READS: Final = bytes(3)

_STORED: Final = int(Durability.STORED)


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


class QueuedGroup:
    """Operations of one store that travel together; `counter` 0 marks reads."""

    __slots__ = (
        "answered",
        "counter",
        "durability",
        "frame",
        "operation_count",
        "operations",
        "queue",
        "size_bytes",
    )

    def __init__(
        self,
        queue: StoreQueue,
        counter: int,
        operations: list[Operation],
        operation_count: int,
        size_bytes: int,
    ) -> None:
        """`operation_count`: those in batches counted, too."""
        self.queue = queue
        self.counter = counter
        self.operations = operations
        self.operation_count = operation_count
        self.size_bytes = size_bytes
        self.durability = operations[0][3] if counter else 0
        #: The number of the frame that last carried it; 0: it has to be sent.
        self.frame = 0
        self.answered = False

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return all(operation[1].done() for operation in self.operations)


class FrameBuilder:
    """A frame being filled, within a frame's limits."""

    __slots__ = ("_parts", "_writer", "groups", "number", "room_bytes", "room_operations")

    def __init__(self, number: int, writer: bytes, limit_bytes: int, limit_operations: int) -> None:
        self.number = number
        self.groups: list[QueuedGroup] = []
        self.room_bytes = limit_bytes
        self.room_operations = limit_operations
        self._writer = writer
        self._parts: list[bytes] = []

    def fits(self, group: QueuedGroup) -> bool:
        """Tell if `group` may be added. An empty frame takes any: it was formed to fit in one."""
        if not self.groups:
            return True
        return group.size_bytes <= self.room_bytes and group.operation_count <= self.room_operations

    def add(self, group: QueuedGroup, first_unacked: int) -> None:
        """Add `group`, which must fit."""
        operations = group.operations
        count = len(operations)
        group.frame = self.number
        self.room_bytes -= group.size_bytes
        self.room_operations -= group.operation_count
        self.groups.append(group)
        numbers = _OF_READS
        if group.counter:
            # The three numbers in one call; their array's header, one byte, is not wanted.
            numbers = pack((group.counter, first_unacked, group.durability))[1:]
        if count == 1:
            self._parts += (group.queue.head, numbers, _ONE, operations[0][0])
        else:
            self._parts += (group.queue.head, numbers, _array_header(count))
            self._parts += [operation[0] for operation in operations]

    def payload(self) -> bytes:
        """The frame: exactly what `frames.encode_request` gives for the same groups."""
        head = bytes([PROTOCOL_VERSION, 0x92]) + pack(self._writer)
        return b"".join((head, _array_header(len(self.groups)), *self._parts))


class Frame:
    """A frame that was sent, until each of its groups has had its answer."""

    __slots__ = (
        "counts",
        "groups",
        "lane",
        "looked_at",
        "number",
        "open_count",
        "sent_at",
        "stale",
    )

    def __init__(self, number: int, lane: ServerQueue, groups: list[QueuedGroup], sent_at: float) -> None:
        self.number = number
        self.lane = lane
        self.groups: list[QueuedGroup | None] = list(groups)
        self.open_count = len(groups)
        self.sent_at = sent_at
        #: When the coordinator may next be asked whether its stores have another owner.
        self.looked_at = sent_at
        #: Its groups wait to be sent again; an answer is still welcome.
        self.stale = False
        #: It takes one of the places of frames in flight.
        self.counts = True

    @property
    def waits_for_bucket(self) -> bool:
        """Only `stored` writes of it are unanswered."""
        return all(group is None or group.durability == _STORED for group in self.groups)
