"""Seals of dead logs: all at once, and never told of before they are made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, Self

import pytest

from holdfast.coordinator.answering import seals as module
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.seals import Seals
from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.errors import BusyError, HoldfastError, StorageFailedError
from holdfast.protocol.frames import decode_control
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.mishaps import Mishaps

Lives = list[tuple[str, str]]


class World:
    """A coordinator's seals, put one round after the other, once they may be."""

    def __init__(self, state: StateFile) -> None:
        self.may_seal = asyncio.Event()
        self.may_seal.set()
        #: What each round was told of earlier ends.
        self.rounds: list[Collection[tuple[str, str]]] = []
        self.found: Lives | None = [("s1", "i1")]
        self.fails = False
        self._tasks = BackgroundTasks(self._run)
        storage = SimpleNamespace(fences=self)
        life: Any = SimpleNamespace(background_tasks=self._tasks, storage=storage)
        bus: Any = SimpleNamespace(max_payload_bytes=1 << 20)
        mishaps = Mishaps(logging.getLogger("holdfast.test"))
        statistics = Statistics(PartKind.COORDINATOR, "c1", 0)
        self._replies = Replies(bus, "", mishaps, Wakeup(), statistics)
        self.seals = Seals(life, state, self._replies)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._tasks.__aexit__(*error)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await self.may_seal.wait()
        return function(*arguments)

    def seal(self, ended: Collection[tuple[str, str]]) -> Lives | None:
        """As `FileFences.seal`."""
        self.rounds.append(ended)
        if self.fails:
            raise StorageFailedError(reason="input/output error")
        return self.found

    def answers(self) -> dict[str, object]:
        """Return what was answered since the last call, to whom; errors by their classes."""
        found: dict[str, object] = {}
        for reply_to, payload in self._replies._packed:
            try:
                found[reply_to] = decode_control(payload).get("logs")
            except HoldfastError as error:
                found[reply_to] = type(error)
        self._replies._packed.clear()
        return found


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_answer_is_about_all_that_ended_before_its_question(state: StateFile) -> None:
    async with World(state) as world:
        world.may_seal.clear()
        world.seals.ask("first")
        await settled()
        world.seals.ask("second")
        world.seals.ask("third")
        await settled()
        assert world.answers() == {}
        world.may_seal.set()
        await settled()
        # The second round began after the questions that it answers.
        lives = [["s1", "i1"]]
        assert world.answers() == {"first": lives, "second": lives, "third": lives}
        assert len(world.rounds) == 2


async def test_what_earlier_coordinators_recorded_is_looked_for_until_it_was(
    state: StateFile,
) -> None:
    async with World(state) as world:
        world.seals.take_over([("s2", "i7")])
        world.fails = True
        world.seals.ask("first")
        await settled()
        world.fails = False
        for reply_to in ("second", "third"):
            world.seals.ask(reply_to)
            await settled()
        lives = [["s1", "i1"]]
        assert world.answers() == {"first": StorageFailedError, "second": lives, "third": lives}
        assert world.rounds == [[("s2", "i7")], [("s2", "i7")], ()]


async def test_beyond_its_bound_it_says_busy(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_REQUESTS", 1)
    async with World(state) as world:
        world.may_seal.clear()
        world.seals.ask("first")
        await settled()
        world.seals.ask("second")
        world.seals.ask("third")
        assert world.answers() == {"third": BusyError}
        world.may_seal.set()
        await settled()
        assert world.answers() == {"first": [["s1", "i1"]], "second": [["s1", "i1"]]}


async def test_a_bucket_needs_no_seal(state: StateFile) -> None:
    async with World(state) as world:
        world.found = None
        world.seals.ask("first")
        await settled()
        assert world.answers() == {"first": None}
