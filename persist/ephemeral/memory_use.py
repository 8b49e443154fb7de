"""How much memory the ephemeral stores of one server take, and how many stay open. Pure."""

from __future__ import annotations

from holdfast.protocol.limits import MAX_EPHEMERAL_BYTES, MAX_OPEN_STORES


class MemoryUse:
    """The memory of all open ephemeral stores of one incarnation, and how many of them have been
    written and so cannot be closed when others need their place."""

    __slots__ = ("limit_bytes", "limit_stores", "used_bytes", "written_stores")

    def __init__(
        self, limit_bytes: int = MAX_EPHEMERAL_BYTES, max_open_stores: int = MAX_OPEN_STORES
    ) -> None:
        """`max_open_stores` is how many stores of all kinds the server keeps open."""
        self.limit_bytes = limit_bytes
        #: The rest is for stores that can be closed: without any, no other store could be opened.
        self.limit_stores = max_open_stores - max_open_stores // 4
        self.used_bytes = 0
        self.written_stores = 0

    @property
    def is_full(self) -> bool:
        """No ephemeral store may grow."""
        return self.used_bytes >= self.limit_bytes

    @property
    def has_place(self) -> bool:
        """Another ephemeral store may be written."""
        return self.written_stores < self.limit_stores

    def change(self, added_bytes: int) -> None:
        """Note that a store takes `added_bytes` more, or less."""
        self.used_bytes += added_bytes
