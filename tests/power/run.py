"""One run: a story, the power cut in it, recovery, perhaps cut again, and the judgement.

After a cut every process that lost its power starts anew, as a new incarnation, and then:

1. Every store holds its first groups, all that were acknowledged among them, and nothing else.
2. Every group, sent again, is answered as it was, or applied once.
3. The stores take new writes.
4. The logs of the dead incarnations go.
5. After a clean stop and a power cut that leaves nothing unsynced, the files hold it all.

A run with two cuts has the second one in that recovery, and so on. No live process may report an
error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

from holdfast.persist.shared_disk import freshness
from holdfast.persist.write_path import checkpointing
from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk import commit_log, disk
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.power.application import Application, Model, Violation
from tests.power.cluster import COORDINATOR, LAYOUT, Cluster, Cut
from tests.power.scenarios import SCENARIOS, Scenario, dead_logs
from tests.simulation.simulated_files import Survival
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import Deadlock, VirtualLoop
from tests.support.collection import without_collection

_SEGMENT_BYTES: Final = 2048
#: Less than a segment, so that a segment grows several times, and more than most frames.
_ZEROS_BYTES: Final = 512
_STORY_SECONDS: Final = 60.0
_RECOVERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to. `event_counts` are those of the story and of each recovery."""

    scenario: str
    cuts: tuple[Cut, ...]
    violation: str | None
    event_counts: tuple[int, ...]
    #: The last events before each cut.
    events: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = " ".join(map(str, self.cuts))
        return f"{self.scenario} {where}: {self.violation or 'well'}"


def run(scenario: str, *cuts: Cut) -> Result:
    """Run a scenario with these cuts: the first in its story, each other in a recovery."""
    with (
        with_small_limits(),
        without_collection(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        return runner.run(_Run(SCENARIOS[scenario], cuts).run())


def run_job(job: tuple[str, *tuple[Cut, ...]]) -> Result:
    """Run a scenario with its cuts, given as one value: what a pool of processes maps."""
    return run(*job)


@contextlib.contextmanager
def with_small_limits() -> Iterator[None]:
    """Let a few writes fill a segment, a full segment be reason enough for a checkpoint, and a
    server start soon."""
    with (
        patch.object(commit_log, "LOG_SEGMENT_BYTES", _SEGMENT_BYTES),
        patch.object(commit_log, "LOG_ZEROS_BYTES", _ZEROS_BYTES),
        patch.object(disk, "_SMALL_WRITES", 1),
        patch.object(checkpointing, "_QUIET_SEGMENTS", 1),
        patch.object(freshness, "PROOF_ROUNDS", 1),
    ):
        yield


class _Run:
    def __init__(self, scenario: Scenario, cuts: Sequence[Cut]) -> None:
        self._scenario = scenario
        self._cuts = tuple(cuts)
        self._event_counts: list[int] = []
        self._events: list[str] = []
        #: What live processes have reported.
        self._errors: list[str] = []

    async def run(self) -> Result:
        violation = None
        try:
            await self._run()
        except* (Violation, HoldfastError, TimeoutError, Deadlock) as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            reported = "; ".join(list(dict.fromkeys(self._errors))[:3])
            violation = f"{type(error).__name__}: {error} {reported and f'({reported})'}".rstrip()
        return Result(
            self._scenario.name, self._cuts, violation, tuple(self._event_counts), self._events
        )

    async def _run(self) -> None:
        scenario = self._scenario
        cluster = Cluster(
            (COORDINATOR, *scenario.servers), idle_close_seconds=scenario.idle_close_seconds
        )
        async with cluster:
            self._errors = cluster.errors
            app = Application(cluster.network)
            if not scenario.from_nothing:
                cluster.start(COORDINATOR, "s1")
            first = self._cuts[0] if self._cuts else None
            await self._until_cut(
                cluster,
                _STORY_SECONDS,
                lambda: scenario.story(cluster, app, lambda: cluster.arm(first)),
            )
            for cut in (*self._cuts[1:], None):
                cluster.arm(cut)
                await self._until_cut(cluster, _RECOVERY_SECONDS, lambda: _recover(cluster, app))
            await _check_files(cluster, app)
            if cluster.errors:
                raise Violation("errors were reported")

    async def _until_cut(
        self, cluster: Cluster, seconds: float, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Let `work` run to its end, or until the power is cut."""

        async def watch() -> None:
            await cluster.powered_off.wait()
            working.cancel()

        async with asyncio.timeout(seconds):
            watching = asyncio.ensure_future(watch())
            working = asyncio.ensure_future(work())
            try:
                await asyncio.wait([working])
                if not working.cancelled():
                    working.result()
            finally:
                watching.cancel()
                working.cancel()
                await asyncio.wait([watching, working])
        self._event_counts.append(cluster.event_count)
        cluster.disarm()
        self._events.extend(cluster.events[-8:])
        await cluster.unwind()


async def _recover(cluster: Cluster, app: Application) -> None:
    """Bring everything up, check what the stores hold, and stop everything."""
    cluster.resume()
    cluster.start()
    await cluster.stopped()
    cluster.start()
    await app.check_nothing_is_lost()
    await app.check_retries()
    for store, groups in app.sent.items():
        await app.write((store, [_one_more(store, len(groups))]))
        app.check_equal(store, await app.read(store))
    while dead_logs(cluster):
        await asyncio.sleep(1.0)
    await cluster.stop(*(name for name in cluster.names if name != COORDINATOR))
    await cluster.stop(COORDINATOR)


def _one_more(store: StoreId, number: int) -> list[object]:
    if store.kind == StoreKind.STREAM:
        return [frames.APPEND, b"after group %d" % number]
    return [frames.SET_ENTRY, "after", b"group %d" % number]


async def _check_files(cluster: Cluster, app: Application) -> None:
    """The files alone, without a log, hold everything once what was not synced is gone."""
    cluster.cut_power(Survival.NONE)
    disk = cluster.disk_of_nobody()
    try:
        for store in app.sent:
            generations = LAYOUT.generations(disk, store)
            if not generations:
                raise Violation(f"{store} has no file")
            path = LAYOUT.store(store, generations[-1])
            file = StoreFile.open(path, store, disk=disk)
            try:
                file.quick_check()
                app.check_equal(store, _content(file))
            finally:
                file.abandon()
    finally:
        disk.close()


def _content(file: StoreFile) -> Model:
    if file.store.kind == StoreKind.STREAM:
        rows = file.messages(1, None, 1000)
    else:
        rows = file.entries("", None, 1000, with_values=True)
    return Model(file.meta.revision, file.meta.last_seq, {row[0]: (row[3], row[1]) for row in rows})
