"""What the sender of one frame may do, group by group.

Pure. A group is refused before it is admitted: it changes nothing, and other groups of its frame
are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.persist.access.token_meter import TokenMeter
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.rights import Right
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import Group
from holdfast.protocol.names import StoreId


@dataclass(frozen=True, slots=True)
class FrameAccess:
    """The grant of a frame, and the meter of its token, if that has one."""

    grant: TokenGrant
    meter: TokenMeter | None
    #: Returns monotonic milliseconds.
    now_ms: Callable[[], int]

    def refusal(self, group: Group, size_bytes: int) -> HoldfastError | None:
        """Return why a group is refused, or None. One that is not refused uses up the token's
        rates."""
        kind, name, _, _, _, operations = group
        refused = self.grant.refusal(kind, name, operations)
        if refused is None and self.meter is not None:
            return self.meter.take(self.now_ms(), operations, size_bytes)
        return refused

    def check(self, right: Right, store: StoreId) -> None:
        """Raise NotAllowedError without a right on a store."""
        refused = self.grant.lacks(right, store.kind, store.name)
        if refused is not None:
            raise refused
