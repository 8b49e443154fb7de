"""Faults under the suites: the gateway and the owner are killed in turns, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

from tests.jetstream_conformance.standin.parts import GATEWAY, OWNER
from tests.jetstream_conformance.standin.standin import StandIn


class Faults:
    """What was done. `file` is touched at each fault, so that clients know of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "last-fault"
        self.violations_file = folder / "violations"
        self.killed: dict[str, int] = {}

    @property
    def count(self) -> int:
        return sum(self.killed.values())

    @property
    def violations(self) -> list[str]:
        """What the tests found to be lost, or stored twice."""
        if not self.violations_file.exists():
            return []
        return self.violations_file.read_text().splitlines()

    def environment(self) -> dict[str, str]:
        return {
            "HOLDFAST_FAULTS": str(self.file),
            "HOLDFAST_VIOLATIONS": str(self.violations_file),
        }

    @asynccontextmanager
    async def injecting(self, standin: StandIn, every_seconds: float) -> AsyncIterator[None]:
        """Inject faults around the body."""
        injecting = asyncio.create_task(self._inject(standin, every_seconds))
        try:
            yield
        finally:
            injecting.cancel()

    async def _inject(self, standin: StandIn, every_seconds: float) -> None:
        """Kill the gateway, then the owner, and so on, until cancelled; the owner alone if it is
        the gateway as well."""
        for part in cycle((OWNER,) if standin.in_server else (GATEWAY, OWNER)):
            await asyncio.sleep(every_seconds)
            # Between two tests there may be nothing to kill.
            while not standin.kill(part):
                await asyncio.sleep(0.01)
            self.file.touch()
            self.killed[part] = self.killed.get(part, 0) + 1
