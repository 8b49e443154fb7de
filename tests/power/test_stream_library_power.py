"""No power cut takes from a stream library what it has acknowledged, at whatever point it comes:
not from the library that opens the folder again, nor from the cluster that gets it then."""

from __future__ import annotations

import asyncio
import contextlib
import random
from concurrent.futures import Future
from typing import Any, Final
from unittest.mock import patch

import pytest

from holdfast.protocol.errors import HoldfastError
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.stream_library.embedded_server import EmbeddedServer
from holdfast.stream_library.records import AppendedBatch, checked_batch
from holdfast.stream_library.room import AppendRoom
from holdfast.stream_library.sole_use import SoleUse
from holdfast.stream_library.stream_log import StreamLog
from tests.power.application import TENANT, Application, Violation, stream
from tests.power.cluster import COORDINATOR, ROOT, Cluster, Cut, Life, Scope
from tests.power.run import with_small_limits
from tests.simulation.simulated_files import Survival
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.effort import tries

LIBRARY: Final = "library"
NAMES: Final = ("a", "b")
_BATCHES: Final = 12
_SECONDS: Final = 60.0
#: Its cut leaves an empty file of a stream.
_EMPTY_FILE: Final = 26


class _LibraryCluster(Cluster):
    """A host with a stream library, and one with a cluster that gets its folder later."""

    def make_part(self, life: Life) -> Any:
        if life.name != LIBRARY:
            return super().make_part(life)
        use = SoleUse.of(open_layout(ROOT, life.disk), life.disk)
        return EmbeddedServer(
            use, TENANT, machine=self.machine(), incarnation=life.incarnation
        )


class _Writer:
    """What was appended to each stream, and what of it was acknowledged."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._number = 0
        #: Batches that are stored, by stream, and those that may be, in order.
        self.stored: dict[str, list[list[bytes]]] = {name: [] for name in NAMES}
        self.open: dict[str, list[tuple[list[bytes], Future[AppendedBatch]]]] = {
            name: [] for name in NAMES
        }

    async def append(self, cluster: Cluster) -> None:
        """Append to all streams through the library that runs, without waiting for each."""
        logs = await self._logs(cluster)
        for _ in range(_BATCHES):
            for name, log in logs.items():
                size = self._chance.randrange(1, 4)
                values = [b"%d" % (self._number + each) for each in range(size)]
                values[0] += b"." * self._chance.choice((0, 0, 700))
                self._number += size
                self.open[name].append((values, log.enqueue_append(checked_batch(values))))
            await asyncio.sleep(self._chance.choice((0, 0, 0.003, 0.05)))
        for log in logs.values():
            await log.drained()

    async def check(self, cluster: Cluster) -> None:
        """The library that runs has everything that was acknowledged, and no batch in part."""
        for name, log in (await self._logs(cluster)).items():
            found = (await log.fetch(1, log.confirm_offset, 1 << 30)).records
            if [record.offset for record in found] != list(range(1, log.confirm_offset)):
                raise Violation(f"{name}: offsets {[record.offset for record in found]}")
            self.settle(name, [record.value for record in found])

    def settle(self, name: str, found: list[bytes]) -> None:
        """Compare a stream with what was appended, and take what is there for stored."""
        rest = found
        for batch in self.stored[name]:
            if rest[: len(batch)] != batch:
                raise Violation(f"{name} lacks {batch} before {rest[:3]}")
            rest = rest[len(batch) :]
        for batch, future in self.open[name]:
            acknowledged = future.done() and future.exception() is None
            if rest[: len(batch)] == batch:
                rest = rest[len(batch) :]
                self.stored[name].append(batch)
            elif acknowledged:
                raise Violation(f"{name} lacks {batch}, which was acknowledged")
            elif rest:
                raise Violation(f"{name} has {rest[:3]} where {batch} was appended")
        if rest:
            raise Violation(f"{name} has {rest[:3]}, which nobody appended")
        self.open[name].clear()

    async def _logs(self, cluster: Cluster) -> dict[str, StreamLog]:
        life = cluster.lives[LIBRARY]
        while life.part is None:
            await asyncio.sleep(0)
        server = life.part
        assert isinstance(server, EmbeddedServer)
        await server.ready.wait()
        loop = asyncio.get_running_loop()
        tasks = set()

        def wake(log: StreamLog) -> bool:
            task = loop.create_task(log.drain())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return True

        opened = {}
        for name in NAMES:
            log, _, _ = await StreamLog.opened(name, server.requests, AppendRoom(None), wake)
            opened[name] = log
        return opened


async def _run(cut: Cut | None, seed: int) -> int:
    """Append, with a cut of the power; open again; give the folder to a cluster, and take it back.
    Return how many events there were until the end of the appends."""
    cluster = _LibraryCluster((COORDINATOR, "s1", LIBRARY), idle_close_seconds=1000.0)
    writer = _Writer(seed)
    async with cluster, asyncio.timeout(_SECONDS):
        cluster.arm(cut)
        cluster.start(LIBRARY)
        working = asyncio.ensure_future(writer.append(cluster))
        gone = asyncio.ensure_future(cluster.powered_off.wait())
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        for task in (working, gone):
            task.cancel()
        for ended in await asyncio.gather(working, gone, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, HoldfastError):
                raise ended
        event_count = cluster.event_count
        cluster.disarm()
        if cut is None:
            cluster.kill(LIBRARY)
        await cluster.unwind()
        await asyncio.sleep(0.5)
        cluster.start(LIBRARY)
        await writer.check(cluster)
        await writer.append(cluster)
        await writer.check(cluster)
        await cluster.stop(LIBRARY)
        # The lock was this process's: the disk of a dead life has none.
        cluster.lives[LIBRARY].disk.kill()
        cluster.start(COORDINATOR, "s1")
        app = Application(cluster.network)
        for name in NAMES:
            rows = (await app.read(stream(name))).rows
            writer.settle(name, [rows[seq][0] for seq in sorted(rows)])
        await cluster.stop("s1")
        await cluster.stop(COORDINATOR)
        cluster.start(LIBRARY)
        await writer.check(cluster)
        if cluster.errors:
            raise Violation("; ".join(cluster.errors[:3]))
        await cluster.stop(LIBRARY)
    return event_count


def run(cut: Cut | None, seed: int = 0) -> int:
    with (
        with_small_limits(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        return runner.run(_run(cut, seed))


def test_without_a_power_cut_all_is_well() -> None:
    assert run(None) > 30


@pytest.mark.parametrize("seed", sorted({*range(tries(2, 4, 60)), _EMPTY_FILE}))
def test_a_power_cut_at_any_point_takes_nothing_that_was_acknowledged(seed: int) -> None:
    chance = random.Random(seed)
    at = chance.randrange(1, run(None, seed) + 2)
    cut = Cut(at, chance.choice(list(Survival)), Scope.ALL, seed)
    try:
        run(cut, seed)
    except Exception as error:
        raise AssertionError(f"seed {seed}, cut {cut}: {error!r}") from error


def test_a_log_that_is_not_synced_is_found() -> None:
    """The test of the test: an ack before the sync loses what it acknowledges."""

    def found(seed: int) -> bool:
        chance = random.Random(seed)
        with contextlib.suppress(Violation):
            run(Cut(chance.randrange(30, 120), Survival.NONE, Scope.ALL, seed), seed)
            return False
        return True

    with patch.object(commit_log.CommitLog, "prepare_sync", lambda log: lambda: None):
        assert any(found(seed) for seed in range(20))
