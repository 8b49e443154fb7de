"""Coordinators in virtual time on a bus that can be harmed: one that hears nothing judges nobody,
and of two clusters one is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryBus, MemoryDelivery, MemoryNetwork
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import (
    AlreadyRunningError,
    ConnectionFailedError,
    OtherClusterError,
)
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, HEARTBEAT_SECONDS
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.cluster_id import bucket_cluster_id, read_cluster_id
from holdfast.shared_fs.disk.disk import Disk, LockFile
from holdfast.shared_fs.disk.fence import create_fence, is_open
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.simulation.virtual_loop import VirtualLoop

SUBJECTS = Subjects()
_Result = TypeVar("_Result")


async def at_once(function: Callable[..., _Result], /, *arguments: Any) -> _Result:
    """A thread, in virtual time."""
    await asyncio.sleep(0)
    return function(*arguments)


class _Lock(LockFile):
    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def release(self) -> None:
        self._held.discard(self._path)


class _Disk(Disk):
    """Its locks hold within this process too, where all coordinators are."""

    def __init__(self) -> None:
        super().__init__()
        self._held: set[Path] = set()

    def lock(self, path: Path, what: str) -> LockFile:
        if path in self._held:
            raise AlreadyRunningError(what=what, path=str(path))
        path.touch()
        return _Lock(self._held, path)


class World:
    """One bus and one shared file system."""

    def __init__(self, root: Path) -> None:
        #: Connections that stand and deliver nothing.
        self.deaf: set[str] = set()
        self.network = MemoryNetwork(self._policy)
        self.disk = _Disk()
        self.layout = open_layout(root, self.disk)
        self._answers: set[asyncio.Task[None]] = set()

    def _policy(self, delivery: MemoryDelivery) -> Sequence[float]:
        return () if delivery.receiver in self.deaf else (0.001,)

    async def start(
        self, name: str, layout: Layout | None = None, *, standby: bool = False
    ) -> asyncio.Task[None]:
        """Run a coordinator; return once it answers, unless it stands by."""
        coordinator = Coordinator(
            self.network.connect(name),
            Storage(layout or self.layout, self.disk),
            standby=standby,
            run_blocking=at_once,
        )
        ready = asyncio.Event()
        task = asyncio.get_running_loop().create_task(coordinator.run(ready))
        if not standby:
            waiting = asyncio.get_running_loop().create_task(ready.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        return task

    async def serve(self, name: str) -> None:
        """Live as a server without stores: register, answer probes, send heartbeats."""
        bus, incarnation = self.network.connect(name), f"{name}-1"
        self.disk.make_directory(self.layout.incarnation(name, incarnation))
        create_fence(self.disk, self.layout.fence(name, incarnation))
        reply = encode_control(server=name, incarnation=incarnation, state="running")

        def on_control(message: BusMessage) -> None:
            work = bus.publish(message.reply, reply)
            task = asyncio.get_running_loop().create_task(work)
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

        await bus.subscribe(SUBJECTS.control(name), on_control)
        payload = encode_control(server=name, incarnation=incarnation)
        await bus.request(SUBJECTS.cluster("register"), payload, CONTROL_TIMEOUT_SECONDS)
        while True:
            heartbeat = Heartbeat(name, incarnation)
            await bus.publish(SUBJECTS.heartbeat(), encode_control(**heartbeat._asdict()))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def fence_is_open(self, server: str) -> bool:
        return is_open(self.disk, self.layout.fence(server, f"{server}-1"))

    async def states(self, bus: MemoryBus) -> dict[str, str]:
        """What the coordinator that answers thinks of each server."""
        answer = await bus.request(
            SUBJECTS.coordinator("acme", "servers"),
            encode_control(),
            CONTROL_TIMEOUT_SECONDS,
            "acme",
        )
        return {row[0]: row[2] for row in decode_control(answer)["servers"]}


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_a_coordinator_that_is_connected_and_deaf_fences_nobody_and_makes_room(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        active = await world.start("c1")
        standby = await world.start("c2", standby=True)
        loop = asyncio.get_running_loop()
        servers = [loop.create_task(world.serve(name)) for name in ("s1", "s2")]
        await asyncio.sleep(3.0)
        world.deaf.add("c1")
        began_at = loop.time()
        with pytest.raises(ConnectionFailedError, match="delivers nothing"):
            await active
        assert loop.time() - began_at < 10.0
        await asyncio.sleep(10.0)
        client = world.network.connect("client")
        assert await world.states(client) == {"s1": "live", "s2": "live"}
        assert world.fence_is_open("s1") and world.fence_is_open("s2")
        await end(standby, *servers)

    run(main())


def test_a_deaf_standby_ends_and_what_it_did_not_hear_is_held_against_nobody(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        active = await world.start("c1")
        standby = await world.start("c2", standby=True)
        loop = asyncio.get_running_loop()
        server = loop.create_task(world.serve("s1"))
        await asyncio.sleep(3.0)
        world.deaf.add("c2")
        await asyncio.sleep(4.0)
        # It takes over with four seconds of a silence that is its own.
        await end(active)
        with pytest.raises(ConnectionFailedError, match="delivers nothing"):
            await standby
        assert world.fence_is_open("s1")
        await end(server)

    run(main())


def test_a_standby_whose_file_system_hangs_is_not_ready_until_it_answers_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        active = await world.start("c1")
        answers = asyncio.Event()
        answers.set()

        async def blocking(function: Callable[..., _Result], /, *arguments: Any) -> _Result:
            await answers.wait()
            return await at_once(function, *arguments)

        storage = Storage(world.layout, world.disk)
        standby = Coordinator(
            world.network.connect("c2"), storage, standby=True, run_blocking=blocking
        )
        assert standby.why_unready() == "it starts"
        task = asyncio.get_running_loop().create_task(standby.run())
        await asyncio.sleep(1.0)
        assert standby.why_unready() == ""
        answers.clear()
        await asyncio.sleep(8.0)
        assert "could not look at the lock" in standby.why_unready()
        answers.set()
        await asyncio.sleep(1.0)
        assert standby.why_unready() == ""
        standby.stop()
        await task
        await end(active)

    run(main())


def test_a_coordinator_takes_over_while_the_bucket_hangs(tmp_path: Path) -> None:
    """Stores on the shared file system need no bucket, and their servers may have died."""

    async def main() -> None:
        world = World(tmp_path)
        bucket = Bucket(MemoryBackend())
        storage = Storage(world.layout, world.disk, bucket=bucket)

        async def blocking(function: Callable[..., _Result], /, *arguments: Any) -> _Result:
            if function == storage.claim_bucket:
                await asyncio.sleep(60.0)
            return await at_once(function, *arguments)

        coordinator = Coordinator(world.network.connect("c1"), storage, run_blocking=blocking)
        ready = asyncio.Event()
        task = asyncio.get_running_loop().create_task(coordinator.run(ready))
        async with asyncio.timeout(10.0):
            await ready.wait()
        await asyncio.sleep(60.0)
        assert bucket_cluster_id(bucket) == read_cluster_id(world.disk, world.layout)
        coordinator.stop()
        await task

    run(main())


def test_a_server_that_is_silent_is_fenced_as_soon_as_ever_by_a_coordinator_that_hears(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        active = await world.start("c1")
        loop = asyncio.get_running_loop()
        servers = {name: loop.create_task(world.serve(name)) for name in ("s1", "s2")}
        await asyncio.sleep(3.0)
        world.deaf.add("s1")
        await end(servers["s1"])
        # A silence of 2.5 s counts from its last heartbeat, half a second before at the most.
        await asyncio.sleep(1.9)
        assert world.fence_is_open("s1")
        await asyncio.sleep(0.9)
        assert not world.fence_is_open("s1")
        assert world.fence_is_open("s2")
        await end(active, servers["s2"])

    run(main())


def test_a_coordinator_of_another_cluster_refuses_to_start_where_one_is_running(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path / "first")
        first = await world.start("c1")
        loop = asyncio.get_running_loop()
        server = loop.create_task(world.serve("s1"))
        await asyncio.sleep(1.0)
        stray = open_layout(tmp_path / "stray", world.disk)
        with pytest.raises(OtherClusterError, match="--prefix") as refused:
            await (await world.start("c2", stray))
        for layout in (world.layout, stray):
            assert read_cluster_id(world.disk, layout) in str(refused.value)
        assert await world.states(world.network.connect("client")) == {"s1": "live"}
        await end(first, server)

    run(main())


def test_of_two_clusters_that_start_at_once_one_ends(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path / "1")
        other = open_layout(tmp_path / "2", world.disk)
        # Neither hears that the other one is about to start.
        world.deaf = {"c1", "c2"}
        both = [await world.start("c1"), await world.start("c2", other)]
        world.deaf = set()
        ended, left = await asyncio.wait(both, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
        (error,) = [task.exception() for task in ended]
        assert isinstance(error, OtherClusterError)
        await asyncio.sleep(5.0)
        (stayed,) = left
        assert not stayed.done()
        lower = min(read_cluster_id(world.disk, each) for each in (world.layout, other))
        assert error.fields["found"] == lower
        await end(stayed)

    run(main())


def test_of_two_clusters_that_meet_the_older_stays(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path / "1")
        first = await world.start("c1")
        await asyncio.sleep(10.0)
        world.deaf = {"c2"}
        late = await world.start("c2", open_layout(tmp_path / "2", world.disk))
        world.deaf = set()
        with pytest.raises(OtherClusterError, match="stays"):
            await late
        await asyncio.sleep(5.0)
        assert not first.done()
        await end(first)

    run(main())


def test_a_server_of_another_cluster_is_refused_and_its_heartbeats_are_not_heard(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        first = await world.start("c1")
        bus = world.network.connect("stray")
        payload = encode_control(server="s9", incarnation="9", cluster="0123456789abcdef")
        for verb in ("register", "open", "release"):
            answer = await bus.request(SUBJECTS.cluster(verb), payload, CONTROL_TIMEOUT_SECONDS)
            with pytest.raises(OtherClusterError, match="s9"):
                decode_control(answer)
        asked: list[BusMessage] = []
        await bus.subscribe(SUBJECTS.control("s9"), asked.append)
        await bus.publish(SUBJECTS.heartbeat(), payload)
        await asyncio.sleep(1.0)
        assert asked == []
        assert await world.states(bus) == {}
        await end(first)

    run(main())
