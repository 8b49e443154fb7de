"""What a live replica tells its application: changes of the visible state, and rejected writes.

Pure: the cores gather notices, and the shells take them and call the application.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from holdfast.protocol.errors import HoldfastError

C = TypeVar("C")
V = TypeVar("V")


class Origin(StrEnum):
    """Where a change of a live replica came from."""

    #: A write of this replica, shown before it is confirmed.
    LOCAL = "local"
    #: Somebody else's write, the result of a merge with it, or a removal by a limit of the store.
    REMOTE = "remote"
    #: A write of this replica was rejected, and the earlier state shows again.
    REJECTED = "rejected"


class Rejection(NamedTuple, Generic[V]):
    """A local write that the owner rejected: what was written, and why it was rejected.

    `key` is None for a stream. For a kv, `value` is None if the write was a delete.
    """

    key: str | None
    value: V | None
    error: HoldfastError


class Notices(Generic[C]):
    """Notices for the application, in order."""

    def __init__(self) -> None:
        self._waiting: list[C | Rejection[bytes]] = []

    def change(self, change: C) -> None:
        self._waiting.append(change)

    def reject(self, rejected: Rejection[bytes]) -> None:
        self._waiting.append(rejected)

    def take(self) -> list[C | Rejection[bytes]]:
        """Return the notices, and forget them."""
        taken, self._waiting = self._waiting, []
        return taken
