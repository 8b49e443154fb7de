"""The part of a run that has tokens: the owner's stores, the holders' process, their verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from holdfast.client import Client, connect
from tests.hostile.cluster import HOSTILE, VICTIM
from tests.hostile.tokens import intruders
from tests.hostile.tokens.access import Access
from tests.hostile.tokens.judging import judge
from tests.hostile.tokens.office import OFFICE, Marks, Office
from tests.support.supervised_cluster import ClientProcess

_CONNECTED_SECONDS: Final = 30.0
_FINISH_SECONDS: Final = 120.0
_PATIENCE_SECONDS: Final = 60.0


class TokenAttack:
    """Made for one cluster. `fill` it, `run` attacks, `judged` tells what came of it."""

    def __init__(
        self, access: Access, nats: str, file: Path, seed: int, operations: int, secret: str
    ) -> None:
        self._access = access
        self._nats = nats
        self._marks = Marks(secret[::-1])
        task = intruders.Task(
            name="intruders",
            seed=seed,
            nats=nats,
            nkey=str(access.nkey),
            file=str(file),
            holders=[asdict(each) for each in access.holders],
            others=list(access.others),
            tenants=[VICTIM, HOSTILE],
            secret=secret[::-1],
            victims_secret=secret,
            operations=operations,
        )
        self._process = ClientProcess(task, "tests.hostile.tokens.intruders")
        self._office: Office | None = None
        self._revoked_at = 0.0
        self.report = intruders.Report()

    @property
    def refused_after_seconds(self) -> float | None:
        """How long after its revocation a token was refused by all; None if it never was."""
        refused_at = self.report.refused_at
        return None if refused_at is None else refused_at - self._revoked_at

    @property
    def operations(self) -> int:
        """How many operations were sent, as last heard."""
        return int(self._process.said.get("operations", 0))

    @asynccontextmanager
    async def _owner(self) -> AsyncIterator[Client]:
        """Connect as the owner of the stores."""
        token = self._access.text(OFFICE)
        async with connect(
            self._nats, token=token, name="owner", timeout_seconds=_PATIENCE_SECONDS
        ) as client:
            yield client

    async def fill(self) -> None:
        """Write the stores that are attacked."""
        let_in = [each for each in self._access.holders if each.logs_in]
        kept = [each.stores for each in let_in if not each.may_change]
        async with self._owner() as client:
            self._office = Office(client, self._marks, kept)
            await self._office.fill([each.stores for each in let_in])

    async def run(self, begun: asyncio.Event, finish: asyncio.Event) -> None:
        """Attack until `finish`, or until enough was sent; set `begun` first."""
        office = self._office
        assert office is not None
        finished = asyncio.Event()
        async with self._owner() as client, asyncio.TaskGroup() as tasks:
            going_on = tasks.create_task(office.go_on(client, finished))
            attacking = tasks.create_task(self._process.run())
            async with asyncio.timeout(_CONNECTED_SECONDS):
                await self._process.hear("connected")
            await asyncio.to_thread(self._access.revoke)
            self._revoked_at = time.monotonic()
            begun.set()
            waiting = tasks.create_task(finish.wait())
            await asyncio.wait([attacking, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            self._process.tell("finish")
            async with asyncio.timeout(_FINISH_SECONDS):
                await attacking
            finished.set()
            await going_on
        self.report = await asyncio.to_thread(intruders.Report.load, Path(self._process.task.file))

    async def judged(self) -> list[str]:
        """Read everything back and return what is wrong."""
        assert self._office is not None
        async with self._owner() as client:
            errors = await self._office.wrong(client)
        return judge(self.report, self._access.holders, errors)
