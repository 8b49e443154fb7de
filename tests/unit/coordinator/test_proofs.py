"""Numbers beside fences: one at a time for each incarnation, durable before they are said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from holdfast.coordinator.answering import proofs as module
from holdfast.coordinator.answering.proofs import Proofs
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.requests import Prove
from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    StorageFailedError,
    UnavailableError,
)
from holdfast.protocol.frames import decode_control
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log.fences import BucketFences, Fences, FileFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.proof import ProofNumber, create_proof, read_proof


class SlowDisk(Disk):
    """A disk that notes what is written, and may refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.refuses = False

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        if self.refuses:
            raise StorageFailedError(reason="input/output error")
        self.written.append(content)
        super().overwrite_durably(path, content)


class World:
    """A coordinator's numbers, written one call after the other, once they may be."""

    def __init__(self, state: StateFile, fences: Fences) -> None:
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._tasks = BackgroundTasks(self._run)
        storage = SimpleNamespace(fences=fences)
        life: Any = SimpleNamespace(background_tasks=self._tasks, storage=storage)
        bus: Any = SimpleNamespace(max_payload_bytes=1 << 20)
        mishaps = Mishaps(logging.getLogger("holdfast.test"))
        statistics = Statistics(PartKind.COORDINATOR, "c1", 0)
        self._replies = Replies(bus, "", mishaps, Wakeup(), statistics)
        self._proofs = Proofs(life, state, self._replies)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._tasks.__aexit__(*error)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await self.may_write.wait()
        return function(*arguments)

    def ask(self, number: int, reply_to: str, incarnation: str = "i1") -> None:
        self._proofs.ask(Prove("s1", incarnation, number), reply_to)

    def answers(self) -> dict[str, object]:
        """Return what was answered since the last call, to whom; errors by their classes."""
        found: dict[str, object] = {}
        for reply_to, payload in self._replies._packed:
            try:
                found[reply_to] = decode_control(payload).get("number")
            except HoldfastError as error:
                found[reply_to] = type(error)
        self._replies._packed.clear()
        return found


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def layout(tmp_path: Path, disk: Disk) -> Layout:
    layout = Layout(tmp_path)
    disk.make_directory(layout.incarnation("s1", "i1"))
    create_proof(disk, layout.proof("s1", "i1"))
    return layout


@pytest.fixture
def world(state: StateFile, disk: Disk, layout: Layout) -> World:
    return World(state, FileFences(disk, layout))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_number_is_said_once_it_is_durable(
    world: World, state: StateFile, disk: SlowDisk, layout: Layout
) -> None:
    world.may_write.clear()
    world.ask(1, "first")
    await settled()
    assert world.answers() == {}
    world.may_write.set()
    await settled()
    assert world.answers() == {"first": 1}
    assert read_proof(disk, layout.proof("s1", "i1")) == ProofNumber(state.term, 1)


async def test_questions_that_come_meanwhile_share_the_next_write(
    world: World, disk: SlowDisk
) -> None:
    world.may_write.clear()
    world.ask(1, "first")
    await settled()
    world.ask(1, "again")
    world.ask(2, "second")
    world.ask(2, "second again")
    world.may_write.set()
    await settled()
    assert world.answers() == {"first": 1, "again": 2, "second": 2, "second again": 2}
    assert len(disk.written) == 2
    world.ask(3, "third")
    await settled()
    assert world.answers() == {"third": 3}


async def test_a_number_that_comes_late_takes_nothing_back(
    world: World, state: StateFile, disk: SlowDisk, layout: Layout
) -> None:
    for number in (5, 4):
        world.ask(number, f"{number}")
        await settled()
    assert read_proof(disk, layout.proof("s1", "i1")) == ProofNumber(state.term, 5)


async def test_what_cannot_be_written_is_refused_and_may_be_asked_again(
    world: World, disk: SlowDisk
) -> None:
    disk.refuses = True
    world.ask(1, "refused")
    await settled()
    world.ask(1, "unseen", incarnation="i2")
    await settled()
    assert world.answers() == {"refused": StorageFailedError, "unseen": UnavailableError}
    disk.refuses = False
    world.ask(1, "again")
    await settled()
    assert world.answers() == {"again": 1}


async def test_beyond_its_bounds_it_says_busy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_REQUESTS", 1)
    monkeypatch.setattr(module, "_MAX_INCARNATIONS", 1)
    world.may_write.clear()
    world.ask(1, "first")
    await settled()
    world.ask(2, "second")
    world.ask(3, "third")
    world.ask(1, "other", incarnation="i2")
    assert world.answers() == {"third": BusyError, "other": BusyError}
    world.may_write.set()
    await settled()
    assert world.answers() == {"first": 1, "second": 2}


async def test_a_bucket_needs_no_number(state: StateFile) -> None:
    async with World(state, BucketFences(Bucket(MemoryBackend()))) as world:
        world.ask(1, "first")
        await settled()
        assert world.answers() == {"first": None}
