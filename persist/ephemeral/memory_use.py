"""How much memory the ephemeral stores of one server take. Pure."""

from __future__ import annotations

from holdfast.protocol.limits import MAX_EPHEMERAL_BYTES


class MemoryUse:
    """The memory of all open ephemeral stores of one incarnation."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int = MAX_EPHEMERAL_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        """No ephemeral store may grow."""
        return self.used_bytes >= self.limit_bytes

    def change(self, added_bytes: int) -> None:
        """Note that a store takes `added_bytes` more, or less."""
        self.used_bytes += added_bytes
