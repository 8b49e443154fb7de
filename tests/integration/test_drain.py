"""Draining: stores move away from a server while clients write, and nobody is told of an error."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from holdfast.client import Client, connect
from holdfast.client.wire.router import Router
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.errors import LastServerError, UnavailableError
from holdfast.protocol.subjects import Subjects
from tests.support.cluster import DEADLINE_SECONDS, Process, Processes, running_processes
from tests.support.load import running_load
from tests.support.waiting import until

TENANT = "acme"


class Scene:
    """A cluster with a client, and who of its servers has what."""

    def __init__(self, processes: Processes, servers: dict[str, Process], client: Client) -> None:
        self.processes = processes
        self.servers = servers
        self.client = client

    async def info(self, server: str) -> ServerInfo | None:
        try:
            found = await self.client.servers()
        except UnavailableError:
            return None
        return next((one for one in found if one.server == server), None)

    async def eventually(
        self, server: str, condition: Callable[[ServerInfo], bool], what: str
    ) -> ServerInfo:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                info = await self.info(server)
                if info is not None and condition(info):
                    return info
                await asyncio.sleep(0.05)
        raise AssertionError(what)

    async def owners(self) -> dict[str, str]:
        return {one.name: one.server async for one in self.client.stores()}

    async def ask(self, verb: str, server: str) -> None:
        bus = await connect_nats(self.processes.nats.url, name="test-operator")
        try:
            await Router(bus, Subjects(), TENANT).drain(server, undo=verb == "undrain")
        finally:
            await bus.close()

    async def command(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast.cli", "--nats", self.processes.nats.url),
            *("--json", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@asynccontextmanager
async def running_scene(
    tmp_path: Path, servers: tuple[str, ...], *options: str
) -> AsyncIterator[Scene]:
    """Run `servers` around the body, which begins when all are live."""
    with running_processes(tmp_path) as processes:
        started = {server: processes.start_persist(server, *options) for server in servers}
        try:
            async with connect(processes.nats.url, tenant=TENANT) as client:
                scene = Scene(processes, started, client)
                for server in servers:
                    await scene.eventually(
                        server, lambda one: one.state == ServerState.LIVE, "it lives"
                    )
                yield scene
        except BaseException:
            for process in (processes.coordinator, *started.values()):
                print(process.log[-3000:])
            raise


async def test_a_drained_server_is_empty_and_no_writer_is_told_an_error(tmp_path: Path) -> None:
    async with running_scene(tmp_path, ("s1", "s2", "s3")) as scene:
        async with AsyncExitStack() as followers, running_load(scene.client, 200) as load:
            assert len({*(await scene.owners()).values()}) == 3
            await followers.enter_async_context(load.followed(load.names[::20]))
            drained = await scene.command("drain", "s2")
            await load.more(1)
            assert await drained.wait() == 0
            assert drained.stdout is not None
            report = json.loads(await drained.stdout.read())
            assert report["server"] == "s2"
            assert report["stores"] > 30
            # What was released last has no owner until its writer asks. An ack that is under way
            # counts as one.
            await load.more(2)
            assert set((await scene.owners()).values()) == {"s1", "s3"}
            info = await scene.info("s2")
            assert info is not None
            assert info.state == ServerState.DRAINING
            assert (info.assigned_stores, info.open_stores) == (0, 0)
            await load.more(2)
        print(load.pauses(), f"in {load.ack_count} appends, drained in {report['seconds']} s")
        assert max(load.longest_pause_seconds.values()) < 10
        await load.check()


async def test_a_drained_server_takes_stores_again_once_it_is_undrained(tmp_path: Path) -> None:
    async with running_scene(tmp_path, ("s1", "s2")) as scene:
        await scene.ask("drain", "s1")
        await scene.eventually("s1", lambda one: one.state == ServerState.DRAINING, "it drains")
        await scene.client.stream("before").append(b"1")
        assert (await scene.owners())["before"] == "s2"
        with pytest.raises(LastServerError):
            await scene.ask("drain", "s2")
        await scene.ask("undrain", "s1")
        for number in range(4):
            await scene.client.stream(f"after.{number}").append(b"1")
        assert "s1" in (await scene.owners()).values()


async def test_stores_that_nobody_has_open_are_released_too(tmp_path: Path) -> None:
    async with running_scene(tmp_path, ("s1", "s2"), "--idle-close-seconds", "0.2") as scene:
        names = [f"idle.{number}" for number in range(40)]
        await asyncio.gather(*(scene.client.stream(name).append(b"1") for name in names))
        await scene.eventually("s1", lambda one: one.open_stores == 0, "all are closed")
        assert "s1" in (await scene.owners()).values()
        await scene.ask("drain", "s1")
        await scene.eventually("s1", lambda one: one.assigned_stores == 0, "all are released")
        owners = await scene.owners()
        assert set(owners) == set(names)
        assert "s1" not in owners.values()
        await asyncio.gather(*(scene.client.stream(name).append(b"2") for name in names))
        assert set((await scene.owners()).values()) == {"s2"}


async def test_a_killed_server_is_still_drained_in_its_next_life_and_a_stopped_one_is_not(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path, ("s1", "s2")) as scene:
        await scene.ask("drain", "s1")
        drained = await scene.eventually(
            "s1", lambda one: one.state == ServerState.DRAINING, "it drains"
        )
        scene.servers["s1"].kill()
        again = scene.processes.start_persist("s1")
        await scene.eventually(
            "s1",
            lambda one: (
                one.incarnation != drained.incarnation and one.state == ServerState.DRAINING
            ),
            "its next life drains",
        )
        assert again.stop() == 0
        scene.processes.start_persist("s1")
        await scene.eventually("s1", lambda one: one.state == ServerState.LIVE, "it lives")


async def test_a_dead_server_is_forgotten_for_good_unless_it_comes_back(tmp_path: Path) -> None:
    async def listed(scene: Scene) -> set[str]:
        return {one.server for one in await scene.client.servers()}

    async def forget(scene: Scene, *options: str) -> tuple[int, dict[str, object]]:
        command = await scene.command("servers", "--forget", "s1", *options)
        output, error = await command.communicate()
        assert command.returncode is not None
        return command.returncode, json.loads(output or error)

    async with running_scene(tmp_path, ("s1", "s2")) as scene:
        names = [f"left.{number}" for number in range(10)]
        await asyncio.gather(*(scene.client.stream(name).append(b"1") for name in names))
        assert (await forget(scene))[1]["error"] == "server_in_use"
        scene.servers["s1"].kill()
        await scene.eventually("s1", lambda one: one.state == ServerState.DEAD, "it is fenced")
        # Without that it depends on how many of its stores others have taken over by now.
        assert await forget(scene, "--reassign") == (0, {"server": "s1", "forgotten": True})
        assert await listed(scene) == {"s2"}
        # The next coordinator knows it too, and what s1 had acknowledged is there.
        scene.processes.coordinator.kill()
        scene.processes.start("coordinator", "again")
        for name in names:
            message = await scene.client.stream(name).get(1)
            assert message is not None and message.value == b"1"
        assert await listed(scene) == {"s2"}
        scene.processes.start_persist("s1")
        await scene.eventually("s1", lambda one: one.state == ServerState.LIVE, "it is back")


async def test_a_drain_goes_on_when_the_coordinator_is_replaced(tmp_path: Path) -> None:
    async with running_scene(tmp_path, ("s1", "s2")) as scene:
        standby = scene.processes.start("coordinator", "standby", "--standby")
        await until(lambda: "standing_by" in standby.log, "it stands by")
        async with running_load(scene.client, 100) as load:
            await scene.ask("drain", "s1")
            scene.processes.coordinator.kill()
            await scene.eventually("s1", lambda one: one.assigned_stores == 0, "it is empty")
            await load.more(1)
        print(load.pauses())
        assert set((await scene.owners()).values()) == {"s2"}
        await load.check()


async def test_a_planned_restart_hands_the_stores_over_without_an_error(tmp_path: Path) -> None:
    async with running_scene(tmp_path, ("s1", "s2", "s3")) as scene:
        async with running_load(scene.client, 120) as load:
            stopping = scene.servers["s2"]
            stopping.terminate()
            await until(lambda: not stopping.running, "it has stopped")
            assert stopping.wait() == 0
            await load.more(1)
            scene.processes.start_persist("s2")
            await scene.eventually("s2", lambda one: one.state == ServerState.LIVE, "it is back")
            await load.more(1)
        print(load.pauses())
        assert max(load.longest_pause_seconds.values()) < 10
        assert "store.taken_over" not in scene.servers["s1"].log + scene.servers["s3"].log
        assert scene.processes.incarnations("s2")[:-1] == []
        await load.check()


async def test_a_server_stops_while_the_coordinator_is_away_and_loses_nothing(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path, ("s1",)) as scene:
        streams = [scene.client.stream(f"s.{number}") for number in range(30)]
        await asyncio.gather(*(stream.append(b"1") for stream in streams))
        scene.processes.coordinator.kill()
        assert await asyncio.to_thread(scene.servers["s1"].stop) == 0
        scene.processes.start("coordinator", "coordinator")
        scene.processes.start_persist("s1")
        for stream in streams:
            assert [message.value async for message in stream.get_all()] == [b"1"]
