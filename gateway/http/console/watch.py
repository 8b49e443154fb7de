"""What viewers of the console share: one look at the cluster every two seconds, while any is there.

A watch belongs to a session, so a viewer sees only what its own token may see, and all viewers with
one token cost what one costs. When the last one leaves, the watch rests: it asks nothing and holds
a few minutes of numbers. A slow viewer skips turns; nothing waits for it, and nothing is queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from holdfast.gateway.http.console.census import Census, census_of
from holdfast.gateway.http.console.history import History, chart_values
from holdfast.protocol.control import ServerInfo, StoreInfo
from holdfast.protocol.errors import HoldfastError, UnknownOperationError
from holdfast.protocol.monitoring.cluster_rows import Overview, to_json
from holdfast.protocol.monitoring.findings import findings
from holdfast.protocol.monitoring.happenings import Gravity, Happening, happenings
from holdfast.protocol.monitoring.overview import overview
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot
from holdfast.protocol.names import StoreKind

logger = logging.getLogger("holdfast.gateway")

LOOK_SECONDS: Final = 2.0
#: Rates are those of the last so many looks.
_LOOKS: Final = 3
#: Costs are those of the last ten minutes, by a snapshot a minute.
_KEPT_SECONDS: Final = 60.0
_KEPT: Final = 10
#: A look that takes longer is an answer too.
_PATIENCE_SECONDS: Final = 5.0
_CENSUS_SECONDS: Final = 30.0
_MAX_HAPPENINGS: Final = 200
#: After a rest, what happened meanwhile is not told as if it had happened now.
_MAX_PAUSE_SECONDS: Final = 30.0


class WatchedCluster(Protocol):
    """What a client knows of its cluster."""

    @property
    def tenant(self) -> str:
        """The tenant whose stores it sees."""

    async def servers(self, *, timeout_seconds: float | None = None) -> Sequence[ServerInfo]:
        """Return the servers."""

    async def statistics(
        self, *, timeout_seconds: float | None = None
    ) -> Sequence[PartStatistics]:
        """Return what parts count."""

    def stores(
        self, kind: StoreKind | int | None = None, prefix: str = "", *,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[StoreInfo]:
        """Yield the stores of the tenant."""


class Event(NamedTuple):
    """One event for viewers; `number` grows."""

    number: int
    body: bytes


def event(name: str, row: Any) -> bytes:
    """Return a server-sent event."""
    data = json.dumps(row, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return f"event: {name}\ndata: {data}\n\n".encode()


class ClusterWatch:
    """One session's look at the cluster."""

    def __init__(self, cluster: WatchedCluster, look_seconds: float = LOOK_SECONDS) -> None:
        self._look_seconds = look_seconds
        self._cluster = cluster
        #: Tells viewers that come back whether the numbers of events begin anew.
        self._id = secrets.token_hex(8)
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._turned = asyncio.Event()
        self._snapshots: deque[ClusterSnapshot] = deque(maxlen=_LOOKS)
        self._kept: deque[ClusterSnapshot] = deque(maxlen=_KEPT)
        self._happened: deque[Event] = deque(maxlen=_MAX_HAPPENINGS)
        self._number = 0
        self._history = History()
        self._census: Census | None = None
        self._census_problem: str | None = None
        self._problem: str | None = None
        #: Grows with each look.
        self.turn = 0
        #: The newest look as an event; empty before the first.
        self.newest = b""

    @contextlib.asynccontextmanager
    async def viewed(self) -> AsyncIterator[None]:
        """Look at the cluster for as long as somebody is here."""
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console")
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                task, self._task = self._task, None
                self.newest = b""
                task.cancel()
                await asyncio.wait([task])

    async def turned(self, turn: int, seconds: float) -> bool:
        """Wait until there was a look after `turn`, but no longer than `seconds`. Return whether
        there was one."""
        if self.turn == turn:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._turned.wait()
        return self.turn != turn

    def begin(self) -> bytes:
        """Return what a viewer gets first."""
        return event("history", {"watch": self._id, **self._history.to_json()})

    def happened_after(self, number: int) -> Sequence[Event]:
        """Return what happened after an event."""
        return [each for each in self._happened if each.number > number]

    async def look(self) -> dict[str, Any]:
        """Look once, and return the cluster as JSON. Raises HoldfastError."""
        now = await self._snapshot()
        earlier = self._snapshots[0] if self._snapshots else None
        if earlier is not None and now.at - earlier.at > _MAX_PAUSE_SECONDS:
            earlier = None
        return self._shown(overview(now, earlier, self._long_ago(earlier)))

    def _long_ago(self, earlier: ClusterSnapshot | None) -> ClusterSnapshot | None:
        return self._kept[0] if self._kept else earlier

    def _shown(self, found: Overview) -> dict[str, Any]:
        return {
            **to_json(found),
            "tenant": self._cluster.tenant,
            "charts": chart_values(found),
            "findings": [each.to_json() for each in findings(found)],
            "census": None if self._census is None else self._census.to_json(),
            "census_problem": self._census_problem,
        }

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again_and_again())
            tasks.create_task(self._count_again_and_again())

    async def _look_again_and_again(self) -> None:
        while True:
            begun_at = time.monotonic()
            try:
                await self._take_a_look()
            except HoldfastError as error:
                self._fail(error.code, str(error))
            except Exception:
                logger.exception("gateway.look_failed")
                self._fail("internal_error", "a bug of the gateway; its log has more")
            self._turn()
            await asyncio.sleep(max(0.0, begun_at + self._look_seconds - time.monotonic()))

    async def _take_a_look(self) -> None:
        now = await self._snapshot()
        if self._snapshots and now.at - self._snapshots[-1].at > _MAX_PAUSE_SECONDS:
            self._snapshots.clear()
        if self._problem is not None:
            self._problem = None
            self._tell(Happening(
                now.time_ms, "coordinator.answers", Gravity.NOTE, "coordinator", "answers again"
            ))
        if self._snapshots:
            for each in happenings(now, self._snapshots[-1]):
                self._tell(each)
        earlier = self._snapshots[0] if self._snapshots else None
        found = overview(now, earlier, self._long_ago(earlier))
        if not self._kept or now.at - self._kept[-1].at >= _KEPT_SECONDS:
            self._kept.append(now)
        self._snapshots.append(now)
        self._history.add(now.time_ms, chart_values(found))
        self.newest = event("overview", self._shown(found))

    async def _snapshot(self) -> ClusterSnapshot:
        servers, parts = await asyncio.gather(
            self._cluster.servers(timeout_seconds=_PATIENCE_SECONDS), self._statistics()
        )
        return ClusterSnapshot(time.time_ns() // 1_000_000, time.monotonic(), servers, parts)

    async def _statistics(self) -> Sequence[PartStatistics]:
        try:
            return await self._cluster.statistics(timeout_seconds=_PATIENCE_SECONDS)
        except UnknownOperationError:
            # A coordinator of an earlier version.
            return []

    async def _count_again_and_again(self) -> None:
        while True:
            try:
                stores = self._cluster.stores(timeout_seconds=_PATIENCE_SECONDS)
                self._census = await census_of(stores)
                self._census_problem = None
            except HoldfastError as error:
                self._census_problem = str(error)
            except Exception:
                logger.exception("gateway.look_failed")
                self._census_problem = "a bug of the gateway; its log has more"
            await asyncio.sleep(_CENSUS_SECONDS)

    def _fail(self, code: str, detail: str) -> None:
        if self._problem != code:
            self._problem = code
            self._tell(Happening(
                time.time_ns() // 1_000_000, "coordinator.silent", Gravity.CRITICAL,
                "coordinator", f"does not answer: {detail}",
            ))
        self.newest = event("unavailable", {"code": code, "detail": detail})

    def _tell(self, happening: Happening) -> None:
        self._number += 1
        row = {"id": self._number, **happening.to_json()}
        self._happened.append(Event(self._number, event("happened", row)))

    def _turn(self) -> None:
        self.turn += 1
        self._turned.set()
        self._turned = asyncio.Event()
