"""Says loudly if no live server has a role: then nobody does what that role is there for."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.coordinator.decisions.member import MemberView
from holdfast.protocol.control import ServerState
from holdfast.protocol.limits import SILENCE_SECONDS
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.work.roles import NEEDED_ROLES, Role

logger = logging.getLogger("holdfast.coordinator")

#: Between two looks. A server that starts again is away for less.
_LOOK_SECONDS: Final = 2 * SILENCE_SECONDS


class RoleWatch:
    """Watches the roles of the live servers."""

    def __init__(self, members: Callable[[], Sequence[MemberView]]) -> None:
        self._members = members
        self._missing = Trouble(logger, "coordinator.role_missing", logging.ERROR)

    def counts(self) -> Counter[str]:
        """Return how many live servers have each role."""
        counts = Counter({str(role): 0 for role in Role})
        for member in self._members():
            if member.state is ServerState.LIVE:
                counts.update(map(str, member.roles))
        return counts

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Say which roles no live server has. Where no server lives, as before the first one
        starts and after the last one stops, there is more to say than that, and others do."""
        counts = self.counts()
        if not any(counts.values()):
            return
        for role in NEEDED_ROLES:
            if counts[role]:
                self._missing.over(role)
            else:
                self._missing.note("role=%s reason=no live server has it", role, of=role)
