"""Sealed logs: a takeover asks for seals when somebody has ended, and refuses what shows none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk import sealed_logs as module
from holdfast.persist.shared_disk.sealed_logs import SealedLogs
from holdfast.protocol.errors import StaleFileSystemError
from holdfast.protocol.limits import NETWORK_CACHE_SECONDS, SEAL_SECONDS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord
from holdfast.shared_fs.disk.dead_incarnation import let_go
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.write_path_parts import a_life

STORE = StoreId("acme", StoreKind.STREAM, "notes")
Life = tuple[str, str]


class BehindDisk(Disk):
    """A mount on which some folders look as if they were empty."""

    def __init__(self, *, remote: bool = True) -> None:
        super().__init__(remote=remote)
        self.hidden: set[Path] = set()

    def names(self, path: Path) -> list[str]:
        return [] if path in self.hidden else super().names(path)


class World:
    """A server that takes over, and a coordinator that seals."""

    def __init__(self, layout: Layout, *, remote: bool = True) -> None:
        self.layout = layout
        self.disk = BehindDisk(remote=remote)
        self.fences = FileFences(Disk(), layout)
        self.asked = 0
        self.seals = True
        #: What to do before the coordinator seals for the nth time.
        self.before_seal: dict[int, Callable[[], object]] = {}
        #: As `Coordination.ended`.
        self.ended: tuple[int, int] | None = (1, 0)
        coordination: Any = self
        self.dead_logs = DeadLogs(self.disk, layout, "mine")
        life: Incarnation = a_life(layout, server="s9", disk=self.disk)
        self._logs = SealedLogs(life, coordination, self.dead_logs)

    async def seal(self) -> frozenset[Life] | None:
        self.asked += 1
        self.before_seal.get(self.asked, lambda: None)()
        return frozenset(self.fences.seal(())) if self.seals else None

    def dies(self, server: str, revision: int) -> None:
        disk = Disk()
        disk.make_directory(self.layout.incarnation(server, "i1"))
        create_fence(disk, self.layout.fence(server, "i1"))
        log = CommitLog(disk, self.layout.log(server, "i1"))
        log.append(revision, [LogRecord(STORE, 1, revision - 1, revision, [b"change"], [])])
        log.close()
        self.fences.fence(server, "i1")
        if self.ended is not None:
            term, count = self.ended
            self.ended = term, count + 1

    async def read(self) -> list[int]:
        await self._logs.read()
        return sorted(record.revision for record in self.dead_logs.records(STORE))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return waited


async def test_nothing_is_asked_on_a_local_file_system(layout: Layout) -> None:
    world = World(layout, remote=False)
    world.dies("s1", 1)
    assert await world.read() == [1]
    assert world.asked == 0


async def test_seals_are_asked_for_once_after_each_end(layout: Layout, pauses: list[float]) -> None:
    world = World(layout)
    world.dies("s1", 1)
    for _ in range(3):
        assert await world.read() == [1]
    assert world.asked == 1
    world.dies("s2", 2)
    assert await world.read() == [1, 2]
    assert (world.asked, pauses) == (2, [])
    # A coordinator of a later term, which may have fenced somebody.
    world.ended = (2, 0)
    assert await world.read() == [1, 2]
    assert world.asked == 3


@pytest.mark.parametrize("hidden", ["servers", "servers/s1", "servers/s1/i1/log"])
async def test_what_a_mount_hides_is_waited_for(
    layout: Layout, hidden: str, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(layout)
    world.dies("s1", 1)
    world.disk.hidden.add(layout.root / hidden)
    world.before_seal[4] = world.disk.hidden.clear
    assert await world.read() == [1]
    if hidden.endswith("log"):
        assert pauses == [0.01, 0.02, 0.04]
        assert "log.late server=s9 waited_seconds=0.07" in caplog.text
    else:
        # The coordinator says who has a log, so no listing of those is needed.
        assert pauses == []


async def test_what_stays_hidden_is_refused_and_asked_for_again_later(
    layout: Layout, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(layout)
    world.dies("s1", 1)
    world.dies("s2", 2)
    world.disk.hidden.add(layout.log("s1", "i1"))
    with pytest.raises(StaleFileSystemError) as caught:
        await world.read()
    assert caught.value.fields["path"] == str(layout.log("s1", "i1"))
    assert world.asked == len(pauses) + 1
    assert SEAL_SECONDS <= sum(pauses) < SEAL_SECONDS + max(pauses)
    assert "log.stale server=s9" in caplog.text
    # What shows its seal is known, and the next takeover asks again, though nobody else ended.
    assert world.dead_logs.incarnations() == [("s2", "i1")]
    world.disk.hidden.clear()
    assert await world.read() == [1, 2]


async def test_a_log_that_is_removed_meanwhile_is_not_waited_for(
    layout: Layout, pauses: list[float]
) -> None:
    world = World(layout)
    world.dies("s1", 1)
    world.disk.hidden.add(layout.log("s1", "i1"))
    world.before_seal[2] = lambda: let_go(Disk(), layout, "s1", "i1")
    assert await world.read() == []
    assert len(pauses) == 1


async def test_who_was_fenced_without_a_word_is_sealed_before_it_is_read(layout: Layout) -> None:
    world = World(layout)
    await world.read()
    asked = world.asked
    world.dies("s1", 1)
    world.ended = (1, 0)
    assert await world.read() == [1]
    assert world.asked == asked + 1


async def test_what_was_read_without_a_seal_is_read_again_with_one(layout: Layout) -> None:
    world = World(layout)
    world.dies("s1", 1)
    # Nobody knows it, and nobody sees its fence: as if it had never owned anything.
    Disk().remove(layout.fence("s1", "i1"))
    world.fences = FileFences(Disk(), layout)
    assert await world.read() == [1]
    log = CommitLog(Disk(), layout.log("s1", "i1") / "more")
    log.append(2, [LogRecord(STORE, 1, 1, 2, [b"change"], [])])
    log.close()
    Disk().rename(
        layout.log("s1", "i1") / "more" / "0000000001.log",
        layout.log("s1", "i1") / "0000000002.log",
    )
    assert await world.read() == [1]
    world.fences.fence("s1", "i1")
    world.ended = (1, 5)
    assert await world.read() == [1, 2]


async def test_a_missing_log_is_reported_as_such(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(layout)
    world.dies("s1", 1)
    world.fences.seal(())
    Disk().remove(layout.log("s1", "i1") / "0000000001.log")
    assert await world.read() == []
    assert "log.missing server=s1 incarnation=i1" in caplog.text
    assert [log.is_short for log in world.dead_logs.logs()] == [True]


async def test_a_coordinator_that_seals_nothing_makes_a_takeover_wait(
    layout: Layout, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    # As one of an earlier version.
    world = World(layout)
    world.ended, world.seals = None, False
    assert await world.read() == []
    assert (world.asked, pauses) == (0, [])
    world.dies("s1", 1)
    for _ in range(2):
        assert await world.read() == [1]
    assert (world.asked, pauses) == (1, [NETWORK_CACHE_SECONDS])
    assert "log.unsealed server=s9" in caplog.text


async def test_two_takeovers_at_once_read_the_same(layout: Layout) -> None:
    world = World(layout)
    world.dies("s1", 1)
    found = await asyncio.gather(world.read(), world.read())
    assert found == [[1], [1]]
