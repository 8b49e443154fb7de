"""The coordinator dies, with and without its state, under load: no data is lost and nobody is
told."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest

from holdfast.client import Client, connect
from holdfast.client.wire.router import Router
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.control import ServerState, StoreInfo, StoreState
from holdfast.protocol.errors import HoldfastError, UnavailableError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.disk import Disk
from tests.support.cluster import DEADLINE_SECONDS, Process, Processes, running_processes
from tests.support.load import Load, running_load
from tests.support.waiting import until

TENANT = "acme"


class Supervised:
    """A server process that is started again when it ends, as under any supervisor."""

    def __init__(self, processes: Processes, name: str, idle_close_seconds: float) -> None:
        self._processes = processes
        self._name = name
        self._idle_close_seconds = str(idle_close_seconds)
        self.lives: list[Process] = []

    async def keep_running(self) -> None:
        while True:
            process = self._processes.start_persist(
                self._name, "--idle-close-seconds", self._idle_close_seconds
            )
            self.lives.append(process)
            while process.running:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def supervised(
    tmp_path: Path, *, idle_close_seconds: float = 1
) -> AsyncIterator[tuple[Processes, Client]]:
    """Run two supervised servers around the body."""
    with running_processes(tmp_path) as processes:
        servers = [Supervised(processes, name, idle_close_seconds) for name in ("s1", "s2")]
        try:
            async with (
                connect(processes.nats.url, tenant=TENANT) as client,
                asyncio.TaskGroup() as tasks,
            ):
                running = [tasks.create_task(server.keep_running()) for server in servers]
                try:
                    await all_live(client)
                    yield processes, client
                finally:
                    for task in running:
                        task.cancel()
        except BaseException:
            for log in sorted(tmp_path.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}")
            raise


async def all_live(client: Client) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                live = [one for one in await client.servers() if one.state == ServerState.LIVE]
            except UnavailableError:
                live = []
            if len(live) == 2:
                return
            await asyncio.sleep(0.05)


def epochs_on_disk(processes: Processes, names: list[str]) -> dict[str, int]:
    """The epoch in each store's file, read from a copy of file and WAL: the file is locked."""
    found = {}
    for name in names:
        store = StoreId(TENANT, StoreKind.STREAM, name)
        generations = processes.layout.generations(Disk(), store)
        if generations:
            found[name] = epoch_of(
                processes.layout.store(store, generations[-1]), processes.directory / "copy.db"
            )
    return found


def epoch_of(path: Path, copy: Path) -> int:
    for part in ("", "-wal"):
        source, target = Path(f"{path}{part}"), Path(f"{copy}{part}")
        target.unlink(missing_ok=True)
        if source.exists():
            target.write_bytes(source.read_bytes())
    with closing(apsw.Connection(str(copy))) as connection:
        return int(connection.execute("SELECT epoch FROM meta").get)


def lose_state(processes: Processes) -> None:
    for path in processes.layout.coordinator.glob("state.db*"):
        path.unlink()


async def listed(client: Client) -> dict[str, int]:
    return {one.name: one.state async for one in client.stores()}


async def test_a_lost_state_loses_no_data_and_no_epoch_goes_back(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (processes, client):
        idle = [f"idle.{number}" for number in range(50)]
        await asyncio.gather(*(client.stream(name).append(b"before") for name in idle))
        async with AsyncExitStack() as followers, running_load(client, 40) as load:
            await followers.enter_async_context(load.followed(load.names[::10]))
            # Move everything a few times, so that there are epochs to lose.
            for server in ("s1", "s2", "s1"):
                await drain_for_a_moment(processes, client, server)
            await until(
                lambda: len(epochs_on_disk(processes, idle)) == len(idle), "the idle have files"
            )
            processes.coordinator.kill()
            lose_state(processes)
            before = epochs_on_disk(processes, load.names + idle)
            assert max(before.values()) > 2
            again = processes.start("coordinator", "coordinator")
            await until(lambda: "coordinator.survey_done" in again.log, "the survey is done")
            found = await listed(client)
            assert {name: found.get(name) for name in idle} == dict.fromkeys(
                idle, StoreState.DURABLE
            )
            await load.more(3)
        print(load.pauses())
        for name in idle:
            stream = client.stream(name)
            assert [message.value async for message in stream.get_all()] == [b"before"]
            assert (await stream.append(b"after")).seq == 2
        await load.check()
        heads = {name: await client.stream(name).head() for name in load.names + idle}
        assert all(heads[name].epoch > epoch for name, epoch in before.items())
        after = epochs_on_disk(processes, list(before))
        assert all(after[name] >= epoch for name, epoch in before.items())
        assert set(await listed(client)) == {*load.names, *idle}


async def test_an_older_state_that_is_restored_makes_no_second_owner(tmp_path: Path) -> None:
    # What stays open stays its owner's, whatever a coordinator says.
    async with supervised(tmp_path, idle_close_seconds=60) as (processes, client):
        names = [f"notes.{number}" for number in range(6)]
        folder, backup = processes.layout.coordinator, tmp_path / "backup"

        async def append_all(client: Client, value: bytes) -> None:
            await asyncio.gather(*(client.stream(name).append(value) for name in names))

        await append_all(client, b"1")
        processes.coordinator.stop()
        shutil.copytree(folder, backup)
        middle = processes.start("coordinator", "middle")
        await until(lambda: "coordinator.started" in middle.log, "it is up")
        # The owners change after the backup, and go on with writes that are acknowledged.
        processes.living("s1")[0].kill()
        await append_all(client, b"2")
        await all_live(client)
        middle.stop()
        await append_all(client, b"3")
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        again = processes.start("coordinator", "again")
        await until(lambda: "coordinator.survey_done" in again.log, "it is up")
        assert "coordinator.state_old" in again.log
        # One that knows no owner yet is told of them by the coordinator alone.
        async with connect(processes.nats.url, tenant=TENANT) as other:
            await append_all(other, b"4")
            await append_all(client, b"5")
            for name in names:
                values = [message.value async for message in other.stream(name).get_all()]
                assert values == [b"1", b"2", b"3", b"4", b"5"], name


async def drain_for_a_moment(processes: Processes, client: Client, server: str) -> None:
    async def is_there() -> bool:
        return any(
            one.server == server and not one.assigned_stores for one in await client.servers()
        )

    bus = await connect_nats(processes.nats.url, name="test-operator")
    try:
        router = Router(bus, Subjects(), TENANT)
        await router.drain(server)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await is_there():
                await asyncio.sleep(0.05)
        await router.drain(server, undo=True)
        await all_live(client)
    finally:
        await bus.close()


async def test_a_store_whose_file_is_gone_is_noticed_after_the_state_was_lost_and_found_again(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path) as (processes, client):
        await client.stream("notes").append(b"1")
        store = StoreId(TENANT, StoreKind.STREAM, "notes")
        path = processes.layout.store(store)
        wal = path.with_name(path.name + "-wal")
        await until(lambda: path.exists() and not wal.exists(), "it is closed")
        processes.coordinator.kill()
        lose_state(processes)
        again = processes.start("coordinator", "coordinator")
        await until(lambda: "coordinator.survey_done" in again.log, "the survey is done")
        path.unlink()
        for server in ("s1", "s2"):
            for incarnation in processes.incarnations(server):
                log = processes.layout.log(server, incarnation)
                for segment in log.iterdir() if log.exists() else ():
                    segment.unlink()
        with pytest.raises(HoldfastError, match="missing"):
            await client.stream("notes").get(1)


async def test_a_damaged_state_is_refused_and_replaced_when_the_operator_says_so(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path) as (processes, client):
        await client.stream("notes").append(b"1")
        processes.coordinator.kill()
        lose_state(processes)
        (processes.layout.coordinator / "state.db").write_bytes(b"no database " * 100)
        refused = processes.start("coordinator", "refused")
        assert refused.wait() == 1
        assert "is damaged" in refused.log
        again = processes.start("coordinator", "coordinator", "--replace-damaged-state")
        await until(lambda: "coordinator.started" in again.log, "it is up")
        assert (await client.stream("notes").append(b"2")).seq == 2
        assert [m.value async for m in client.stream("notes").get_all()] == [b"1", b"2"]
        kept = processes.layout.quarantine / "_coordinator"
        assert [each.name for each in kept.glob("*/state.db")] == ["state.db"]


@pytest.fixture
def takeover_seconds() -> Iterator[list[float]]:
    found: list[float] = []
    yield found
    print(f"the standby answered after {max(found, default=0.0):.2f} s")


async def test_a_standby_takes_over_under_load_and_nobody_is_told_of_an_error(
    tmp_path: Path, takeover_seconds: list[float]
) -> None:
    async with supervised(tmp_path) as (processes, client):
        active = processes.coordinator
        async with AsyncExitStack() as followers, running_load(client, 60) as load:
            await followers.enter_async_context(load.followed(load.names[::20]))
            for number in range(3):
                standby = processes.start("coordinator", f"standby{number}", "--standby")
                await until(waits(standby), "it stands by")
                active.kill()
                killed_at = time.monotonic()
                active = standby
                # Stores in use go on meanwhile; a new one waits for the standby.
                await client.stream(f"new.{number}").append(b"1")
                takeover_seconds.append(time.monotonic() - killed_at)
                await load.more(1)
        print(load.pauses())
        await load.check()
        assert no_store_moved(load, [one async for one in client.stores(prefix="load.")])


def waits(standby: Process) -> Callable[[], bool]:
    return lambda: "coordinator.standing_by" in standby.log


def no_store_moved(load: Load, stores: list[StoreInfo]) -> bool:
    return [store.name for store in stores] == load.names and {one.epoch for one in stores} == {1}
