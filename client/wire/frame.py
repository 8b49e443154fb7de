"""The frame that carries groups of operations to one server.

Pure. A frame is made of packed operations by copying bytes, also when a group is sent again.
"""

from __future__ import annotations

from typing import Final

import msgpack

from holdfast.client.wire.store_queue import QueuedGroup, ServerQueue
from holdfast.protocol.frames import PROTOCOL_VERSION, pack
from holdfast.protocol.messages import Durability

_array_header: Final = msgpack.Packer(autoreset=True).pack_array_header
_ONE: Final = _array_header(1)
#: Counter, first_unacked and durability of reads.
_OF_READS: Final = bytes(3)

_STORED: Final = int(Durability.STORED)


class FrameBuilder:
    """A frame that is being filled, within its limits."""

    __slots__ = (
        "_parts",
        "_writer",
        "groups",
        "number",
        "room_bytes",
        "room_operations",
        "room_reads",
    )

    def __init__(
        self,
        number: int,
        writer: bytes,
        limit_bytes: int,
        limit_operations: int,
        limit_reads: int,
    ) -> None:
        """At most `limit_reads` of the operations may be reads."""
        self.number = number
        self.groups: list[QueuedGroup] = []
        self.room_bytes = limit_bytes
        self.room_operations = limit_operations
        self.room_reads = limit_reads
        self._writer = writer
        self._parts: list[bytes] = []

    def fits(self, group: QueuedGroup) -> bool:
        """Return whether `group` may be added. An empty frame takes any group, because each is
        formed to fit in one."""
        if not self.groups:
            return True
        return group.size_bytes <= self.room_bytes and group.operation_count <= self.room_operations

    def add(self, group: QueuedGroup, first_unacked: int) -> None:
        """Add `group`, which must fit."""
        operations = group.operations
        count = group.result_count
        group.frame = self.number
        group.sent_count += 1
        self.room_bytes -= group.size_bytes
        self.room_operations -= group.operation_count
        self.groups.append(group)
        numbers = _OF_READS
        if not group.counter:
            self.room_reads -= group.operation_count
        else:
            # One call packs all three numbers; the array's header, one byte, is cut off.
            numbers = pack((group.counter, first_unacked, group.durability))[1:]
        if count == 1:
            self._parts += (group.queue.head, numbers, _ONE, operations[0][0])
        else:
            self._parts += (group.queue.head, numbers, _array_header(count))
            self._parts += [operation[0] for operation in operations]

    def payload(self) -> bytes:
        """Return the frame, exactly as `frames.encode_request` encodes the same groups."""
        head = bytes([PROTOCOL_VERSION, 0x92]) + pack(self._writer)
        return b"".join((head, _array_header(len(self.groups)), *self._parts))


class Frame:
    """A frame that was sent, until each of its groups is answered."""

    __slots__ = (
        "counts",
        "groups",
        "looked_at",
        "number",
        "open_count",
        "sent_at",
        "server_queue",
        "stale",
    )

    def __init__(
        self, number: int, server_queue: ServerQueue, groups: list[QueuedGroup], sent_at: float
    ) -> None:
        self.number = number
        self.server_queue = server_queue
        self.groups: list[QueuedGroup | None] = list(groups)
        self.open_count = len(groups)
        self.sent_at = sent_at
        #: The next time to ask the coordinator whether the frame's stores have another owner.
        self.looked_at = sent_at
        #: Whether its groups wait to be sent again; a late answer still counts.
        self.stale = False
        #: Whether it counts toward FRAMES_IN_FLIGHT.
        self.counts = True

    @property
    def waits_for_bucket(self) -> bool:
        """Whether all its unanswered groups are `stored` writes."""
        return all(group is None or group.durability == _STORED for group in self.groups)
