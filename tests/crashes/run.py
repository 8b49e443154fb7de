"""One operation, crashed at each of its points, and what whoever comes next makes of it.

The story runs once. At each point the process forks: the child lets the process of the cluster that
is at work die there, has everything started again and goes on to the judgement; the parent goes on
with the story. So the cost of a crash point is that of its recovery. Where nothing has changed for
others since a point at which the same process died, it dies once for both: after a call is before
the next.

The judgement, of each crash point and of the end of the story:

1. Whatever a manifest names is in the bucket, whole.
2. Every store holds what was acknowledged, in order and once, and answers retries as it did.
3. The operation, asked for again, ends as it should.
4. Stores take writes, and all go cold again: no file and no draft is left behind.
5. The collector removes everything that nothing names, and nothing else: all stores can be read.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import apsw

from tests.crashes.cluster import CrashCluster, Point, short_times
from tests.crashes.operations import OPERATIONS, Operation
from tests.crashes.world import World
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.collection import without_collection

_STORY_SECONDS: Final = 120.0
_RECOVERY_SECONDS: Final = 300.0
#: Of real time: a child that hangs is a finding too.
_CHILD_SECONDS: Final = 60


@dataclass(slots=True)
class Result:
    """What became of an operation. `point_count` counts calls, before and after; `crash_count` the
    crashes that stand for them."""

    operation: str
    point_count: int = 0
    crash_count: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        title = f"{self.operation}: {self.crash_count} crashes for {self.point_count} points"
        return "\n".join([title, *self.violations[:5]])


def run(
    name: str,
    *,
    stop_at_first: bool = False,
    only: int | None = None,
    share: float = 1.0,
    seed: int = 0,
) -> Result:
    """Crash an operation everywhere, or at a share of its points that a seed chooses; with
    `stop_at_first` until something is found; with `only` in that crash alone."""
    run_of = _Run(OPERATIONS[name], stop_at_first, only, share, seed)
    with (
        short_times(lambda: run_of.cluster),
        patch.object(apsw, "Connection", _UnlockedConnection),
        without_collection(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(run_of.run())
    return run_of.result


class _UnlockedConnection(apsw.Connection):
    """Without a mutex: one that is held where the process forks is nobody's in the child."""

    def __init__(
        self,
        filename: str,
        flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
        **others: Any,
    ) -> None:
        super().__init__(filename, flags | apsw.SQLITE_OPEN_NOMUTEX, **others)


class _Run:
    def __init__(
        self,
        operation: Operation,
        stop_at_first: bool,
        only: int | None,
        share: float,
        seed: int,
    ) -> None:
        self.result = Result(operation.name)
        self.cluster: CrashCluster
        self._operation = operation
        self._stop_at_first = stop_at_first
        self._only = only
        self._share = share
        self._chance = random.Random(f"{seed}/{operation.name}")
        #: Processes that died since anything changed for others.
        self._died: set[str] = set()
        #: In a child: where it crashed, and how its parent hears.
        self._crashed: str | None = None
        self._pipe: int | None = None
        #: In the parent: enough was found.
        self._stopped = False

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.cluster = CrashCluster(bucket_only=self._operation.bucket_only)
        async with self.cluster as cluster:
            world = World(cluster)
            violation: str | None = None
            try:
                await self._story(world)
                if self._pipe is None and not self._stopped:
                    # The end of the story is a crash point, too.
                    self._point(Point("s1", "after all", changed=True), dies=False)
                if self._pipe is not None:
                    async with asyncio.timeout(_RECOVERY_SECONDS):
                        await world.recover(self._operation, self.result.crash_count)
            except BaseException as error:
                if self._pipe is None:
                    raise
                violation = _text(error, world)
            if self._pipe is not None:
                self._tell(violation)

    async def _story(self, world: World) -> None:
        """Let the story run to its end, or, in a child, to the crash."""
        await self._operation.prepare(world)
        self.cluster.at_point = self._point
        working = asyncio.ensure_future(self._operation.act(world))
        crashed = asyncio.ensure_future(self.cluster.powered_off.wait())
        async with asyncio.timeout(_STORY_SECONDS):
            await asyncio.wait([working, crashed], return_when=asyncio.FIRST_COMPLETED)
        if self._pipe is None and not self._stopped:
            working.result()
        for task in (working, crashed):
            task.cancel()
        await asyncio.wait([working, crashed])
        self.cluster.at_point = None
        await self.cluster.unwind()

    def _point(self, point: Point, *, dies: bool = True) -> bool:
        self.result.point_count += 1
        if point.changed:
            self._died.clear()
        if point.process in self._died:
            return False
        self._died.add(point.process)
        self.result.crash_count += 1
        if self._only not in (None, self.result.crash_count):
            return False
        if self._chance.random() >= self._share:
            return False
        return self._fork(point) and dies

    def _fork(self, point: Point) -> bool:
        """Return True in a child; in the parent once it is known what became of the child."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Other threads of a test runner have nothing to do with this.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(reader)
            signal.alarm(_CHILD_SECONDS)
            # asyncio forgets the loop that runs in a child.
            asyncio._set_running_loop(self._loop)
            self._pipe = writer
            self._crashed = f"{point.process} {point.text}"
            return True
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            told = pipe.read()
        _, status = os.waitpid(child, 0)
        found = json.loads(told) if told else f"the child ended with {status}"
        if found is not None:
            number = self.result.crash_count
            self.result.violations.append(f"{number}. {point.process} {point.text}: {found}")
            if self._stop_at_first:
                self._stopped = True
                self.cluster.at_point = None
                self.cluster.powered_off.set()
        return False

    def _tell(self, violation: str | None) -> None:
        """End this child."""
        assert self._pipe is not None
        told = json.dumps(violation).encode()
        while told:
            told = told[os.write(self._pipe, told) :]
        os._exit(0)


def _text(error: BaseException, world: World) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = traceback.extract_tb(error.__traceback__)
    lines = ", ".join(f"{frame.name}:{frame.lineno}" for frame in where[-3:])
    reported = "; ".join(list(dict.fromkeys(world.cluster.errors))[:3])
    return f"{type(error).__name__}: {error} ({lines}) {reported}".rstrip()
