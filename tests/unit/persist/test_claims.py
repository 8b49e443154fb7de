"""What a server does with its claims on cold work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.tier.claims import ClaimLostError, Claims
from holdfast.protocol.errors import FencedError, UnavailableError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence, fence
from holdfast.shared_fs.disk.layout import Layout
from tests.support.write_path_parts import a_life


class World:
    """A server whose coordinator says what a test wants."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        Disk().make_directory(self.layout.incarnation("s1", "i1"))
        self.fence = self.layout.fence("s1", "i1")
        create_fence(Disk(), self.fence)
        gate = FenceGate(Disk(), self.fence, "s1", "i1")
        self.phase = LifePhase("s1")
        self.answer: tuple[dict[str, int], list[str]] | None = ({}, [])
        self.asked: list[tuple[list[str], dict[str, int]]] = []
        life = a_life(self.layout, server="s1", incarnation="i1", gate=gate)
        coordination: Any = self
        self.claims = Claims(life, self.phase, coordination, ["collect", "reap"])

    async def claim(self, offers: Any, gives_back: Any) -> Any:
        self.asked.append((list(offers), dict(gives_back)))
        if self.answer is None:
            raise UnavailableError(reason="away")
        return self.answer


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_step_is_made_only_while_the_claim_holds_and_the_fence_is_open(
    world: World,
) -> None:
    with world.claims.doing("reap") as mine:
        assert not mine
    world.answer = {"reap": 7}, []
    await world.claims.ask()
    with world.claims.doing("reap", "collect") as mine:
        (claim,) = mine.values()
        claim.check()
        world.answer = {}, []
        await world.claims.ask()
        with pytest.raises(ClaimLostError):
            claim.check()
        world.answer = {"reap": 8}, []
        await world.claims.ask()
        assert claim.is_lost(), "it is another one"
        world.answer = {"reap": 7}, []
        await world.claims.ask()
        claim.check()
        fence(Disk(), world.fence)
        with pytest.raises(FencedError):
            claim.check()


async def test_what_is_being_done_is_given_back_when_it_is_done_and_never_done_again(
    world: World,
) -> None:
    world.answer = {"reap": 7, "collect": 9}, []
    await world.claims.ask()
    with world.claims.doing("reap") as mine:
        world.answer = {"reap": 7, "collect": 9}, ["reap"]
        await world.claims.ask()
        await world.claims.ask()
        mine["reap"].check()
        assert world.asked[-1][1] == {}
        with world.claims.doing("reap") as again:
            assert not again, "what is wanted back is not begun"
    # The answer that says that it has it still may be older than what gave it back.
    world.answer = None
    with pytest.raises(UnavailableError):
        await world.claims.ask()
    assert world.asked[-1][1] == {"reap": 7}
    world.answer = {"reap": 7, "collect": 9}, []
    await world.claims.ask()
    assert world.claims.count == 1
    with world.claims.doing("reap") as mine:
        assert not mine
    await world.claims.ask()
    assert world.asked[-1][1] == {"reap": 7}, "until it is heard"
    world.answer = {"reap": 8, "collect": 9}, []
    await world.claims.ask()
    with world.claims.doing("reap") as mine:
        assert mine["reap"].epoch == 8


async def test_a_server_that_drains_gives_back_and_one_that_stops_makes_no_step(
    world: World,
) -> None:
    world.answer = {"reap": 7, "collect": 9}, []
    await world.claims.ask()
    with world.claims.doing("collect") as mine:
        world.phase.set_draining(True)
        await world.claims.ask()
        assert world.asked[-1] == ([], {"reap": 7})
        mine["collect"].check()
        world.phase.stop()
        assert mine["collect"].is_lost()


async def test_while_the_coordinator_is_away_what_was_claimed_stays_claimed(world: World) -> None:
    world.answer = {"reap": 7}, []
    await world.claims.ask()
    world.answer = None
    with pytest.raises(UnavailableError):
        await world.claims.ask()
    with world.claims.doing("reap") as mine:
        mine["reap"].check()
