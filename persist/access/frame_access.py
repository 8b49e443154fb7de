"""What the sender of one frame may do, group by group.

Pure. A group is refused before it is admitted: it changes nothing, and other groups of its frame
are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.persist.access.token_meter import TokenMeter
from holdfast.protocol import frames
from holdfast.protocol.access.audit_event import AuditAction, AuditOutcome, shown, shown_store
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.rights import Right
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import Group
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit

#: A configuration has fewer settings.
_MAX_SETTINGS: Final = 16


@dataclass(frozen=True, slots=True)
class FrameAccess:
    """The grant of a frame, and the meter of its token, if that has one."""

    grant: TokenGrant
    meter: TokenMeter | None
    #: Returns monotonic milliseconds.
    now_ms: Callable[[], int]
    audit: Audit = NO_AUDIT

    def refusal(
        self, group: Group, size_bytes: int, tenant: str = ""
    ) -> HoldfastError | None:
        """Return why a group of `tenant` is refused, or None. One that is not refused uses up the
        token's rates."""
        kind, name, _, _, _, operations = group
        lacking = self.grant.lacking(kind, name, operations)
        if lacking:
            refused = self.grant.refused(lacking, kind, name)
            if refused is not None:
                return refused
            self.audit.note(
                AuditAction.STORE_CONFIGURED,
                AuditOutcome.ALLOWED,
                token=self.grant.id,
                tenant=tenant,
                store=shown_store(kind, name),
                details=_settings(operations),
            )
        if self.meter is not None:
            return self.meter.take(self.now_ms(), operations, size_bytes)
        return None

    def check(self, right: Right, store: StoreId) -> None:
        """Raise NotAllowedError without a right on a store."""
        refused = self.grant.lacks(right, store.kind, store.name)
        if refused is not None:
            raise refused


def _settings(operations: Sequence[Sequence[Any]]) -> dict[str, str]:
    """Return what operations configure, unchecked, as the audit log shows it."""
    for operation in operations:
        if operation[0] == frames.CONFIGURE and len(operation) > 1 and type(operation[1]) is dict:
            settings = list(operation[1].items())[:_MAX_SETTINGS]
            return {shown(name): shown(value) for name, value in settings}
    return {}
