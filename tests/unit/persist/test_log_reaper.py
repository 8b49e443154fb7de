"""The log reaper: which dead logs go at once, which later, and which stay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk.log_reaper import LogReaper
from holdfast.persist.tier.claims import Claimed, ClaimLostError
from holdfast.protocol.errors import UnavailableError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.work.cold_work import REAP
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, fence
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.write_path_parts import a_life


class World:
    """A server that reaps, dead ones, and owners that may not answer."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.disk = Disk()
        self.dead_logs = DeadLogs(self.disk, layout, "mine")
        #: How many stores were asked for, each time.
        self.asked: list[int] = []
        #: So many more requests for a store are answered.
        self.answers = 1000
        self.answered: list[str] = []
        owners: Any = self
        life = a_life(layout, server="s9", disk=self.disk)
        self.reaper = LogReaper(life, self.dead_logs, owners)
        self.may_step = True
        claims: Any = SimpleNamespace(check=self.check)
        self.claim = Claimed(claims, REAP, 1)

    def check(self, work: str, epoch: int) -> None:
        """As `Claims.check`."""
        if not self.may_step:
            raise ClaimLostError(work=work, epoch=epoch)

    async def each_taken_over(
        self, stores: Sequence[StoreId]
    ) -> AsyncIterator[tuple[StoreId, str]]:
        """As `Owners.each_taken_over`."""
        self.asked.append(len(stores))
        for store in stores:
            if not self.answers:
                raise UnavailableError(reason="the owner does not answer")
            self.answers -= 1
            self.answered.append(store.name)
            yield store, "s2"

    def dies(self, incarnation: str, stores: int) -> None:
        """Let a server die that has written so many stores."""
        path = self.layout.fence("s1", incarnation)
        self.disk.make_directory(path.parent)
        create_fence(self.disk, path)
        log = CommitLog(self.disk, self.layout.log("s1", incarnation))
        names = [StoreId("acme", StoreKind.STREAM, f"s{number}") for number in range(stores)]
        log.append(1, [LogRecord(name, 1, 0, 1, [b"change"], []) for name in names])
        log.close()
        fence(self.disk, path)
        self.dead_logs.refresh()

    def left(self) -> list[str]:
        """Which dead incarnations are left."""
        return [
            each for each in self.disk.names(self.layout.server("s1")) if each.startswith("1")
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(open_layout(tmp_path / "data", Disk()))


async def test_the_log_of_few_stores_goes_at_the_first_look(world: World) -> None:
    world.dies("1a", 2)
    world.dies("1b", 33)
    await world.reaper.run_small_pass(world.claim)
    assert world.left() == ["1b"] and world.asked == [2]
    await world.reaper.run_pass(world.claim)
    assert world.left() == []


async def test_a_log_whose_stores_do_not_open_is_tried_again_with_all_others_only(
    world: World,
) -> None:
    world.dies("1a", 2)
    world.answers = 0
    for _ in range(3):
        await world.reaper.run_small_pass(world.claim)
    assert world.left() == ["1a"] and world.asked == [2]
    world.answers = 2
    await world.reaper.run_pass(world.claim)
    assert world.left() == []


async def test_a_log_stays_if_the_claim_is_lost_while_its_stores_are_taken_over(
    world: World,
) -> None:
    world.dies("1a", 2)
    world.may_step = False
    await world.reaper.run_pass(world.claim)
    assert world.left() == ["1a"] and world.asked == [2]


async def test_a_log_goes_though_no_pass_has_an_answer_for_all_of_its_stores(world: World) -> None:
    world.dies("1a", 50)
    for _ in range(5):
        assert world.left() == ["1a"]
        world.answers = 10
        await world.reaper.run_pass(world.claim)
    assert world.left() == []
    assert world.answered == [f"s{number}" for number in range(50)], "a store was asked for twice"


async def test_a_store_of_two_logs_is_asked_for_once_for_each(world: World) -> None:
    world.dies("1a", 2)
    await world.reaper.run_pass(world.claim)
    # What it was asked for before that death tells nothing of the second log.
    world.dies("1b", 2)
    await world.reaper.run_pass(world.claim)
    assert world.left() == [] and world.asked == [2, 2]
