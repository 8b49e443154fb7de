"""The coordinator over a real NATS server, with servers that speak the real wire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
from nats_server import NatsServer, running_nats_server

from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.term import TermFile
from holdfast.protocol.bus import BusMessage, BusSubscription, BusTimeoutError, NoRespondersError
from holdfast.protocol.bus_nats import NatsBus, connect_nats
from holdfast.protocol.control import ServerInfo, StoreInfo, StoreState
from holdfast.protocol.errors import (
    BusyError,
    DeposedError,
    FencedError,
    HoldfastError,
    InvalidNameError,
    MalformedFrameError,
    StorageFailedError,
    UnavailableError,
    UnknownOperationError,
)
from holdfast.protocol.frames import decode_control, encode_control, encode_control_error
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, HEARTBEAT_SECONDS
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.fence import create_fence, is_open
from holdfast.shared_fs.layout import Layout, open_layout

DEADLINE_SECONDS = 20.0
SUBJECTS = Subjects()


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise AssertionError(f"waited in vain until {what}") from error


class FakeServer:
    """A persist server without stores: registers, sends heartbeats, answers probes."""

    def __init__(self, bus: NatsBus, layout: Layout, name: str, incarnation: str) -> None:
        self.bus = bus
        self.layout = layout
        self.name = name
        self.incarnation = incarnation
        self.state = "running"
        self.mute = False
        self.refusal: HoldfastError | None = None
        self.registered_count = 0
        self._subscription: BusSubscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        url: str,
        layout: Layout,
        name: str,
        incarnation: str,
        *,
        register: bool = True,
        mute: bool = False,
    ) -> FakeServer:
        server = cls(await connect_nats(url, name=name), layout, name, incarnation)
        server.mute = mute
        disk = Disk()
        disk.make_directory(layout.incarnation(name, incarnation))
        if not disk.exists(layout.fence(name, incarnation)):
            create_fence(disk, layout.fence(name, incarnation))
        server._subscription = await server.bus.subscribe(
            SUBJECTS.control(name), server._on_control
        )
        if register:
            await server.register()
        server._task = asyncio.create_task(server._beat())
        return server

    async def register(self) -> Mapping[str, Any]:
        reply = await self.ask("register")
        self.registered_count += 1
        return reply

    async def ask(self, verb: str, **fields: object) -> Mapping[str, Any]:
        payload = encode_control(server=self.name, incarnation=self.incarnation, **fields)
        reply = await self.bus.request(SUBJECTS.cluster(verb), payload, CONTROL_TIMEOUT_SECONDS)
        return decode_control(reply)

    async def open(self, name: str, *, create: bool = False, tenant: str = "acme") -> Any:
        reply = await self.ask("open", stores=[[tenant, 1, name, create]])
        # Whether the bucket may have it is told besides.
        return reply["grants"][0][:3]

    async def kill(self) -> None:
        """End as a process that is killed: its subjects go with its connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for task in self._answers:
            task.cancel()
        await self.bus.close()

    @property
    def fence_is_open(self) -> bool:
        return is_open(Disk(), self.layout.fence(self.name, self.incarnation))

    def _on_control(self, message: BusMessage) -> None:
        if self.mute:
            return
        task = asyncio.create_task(self._answer(message))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, message: BusMessage) -> None:
        command = decode_control(message.payload)["command"]
        if self.refusal is not None:
            await self.bus.publish(message.reply, encode_control_error(self.refusal))
        elif command == "probe":
            reply = encode_control(server=self.name, incarnation=self.incarnation, state=self.state)
            await self.bus.publish(message.reply, reply)
        else:
            assert command == "register"
            await self.bus.publish(message.reply, encode_control())
            await self.register()

    async def _beat(self) -> None:
        while True:
            if not self.mute:
                heartbeat = encode_control(
                    server=self.name,
                    incarnation=self.incarnation,
                    state=self.state,
                    open_stores=7,
                    log_bytes=8,
                    operations_per_second=9.0,
                )
                await self.bus.publish(SUBJECTS.heartbeat(), heartbeat)
            await asyncio.sleep(HEARTBEAT_SECONDS)


class Asker:
    """A client that asks one thing at a time."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus = bus

    async def ask(self, verb: str, tenant: str = "acme", **fields: object) -> Mapping[str, Any]:
        return await self.ask_raw(verb, encode_control(**fields), tenant)

    async def ask_raw(self, verb: str, payload: bytes, tenant: str = "acme") -> Mapping[str, Any]:
        subject = SUBJECTS.coordinator(tenant, verb)
        return decode_control(await self.bus.request(subject, payload, CONTROL_TIMEOUT_SECONDS))

    async def owner(self, name: str) -> Any:
        return (await self.ask("resolve", stores=[[1, name]]))["owners"][0]

    async def settled_owner(self, name: str) -> Any:
        """The owner, asked again while there is none."""
        found: Any = None

        async def has_owner() -> bool:
            nonlocal found
            found = await self.owner(name)
            return found[0] is not None

        await eventually(has_owner, "there is an owner")
        return found

    async def suspect(self, server: FakeServer) -> bool:
        fields = {"server": server.name, "incarnation": server.incarnation}
        return bool((await self.ask("suspect", **fields))["alive"])

    async def servers(self) -> dict[str, ServerInfo]:
        rows = (await self.ask("servers"))["servers"]
        return {row[0]: ServerInfo(*row) for row in rows}


class Cluster:
    """What a test starts, ended in reverse order."""

    def __init__(self, nats: NatsServer, layout: Layout) -> None:
        self.nats = nats
        self.layout = layout
        self.disk = Disk()
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exits.aclose()

    async def client(self) -> Asker:
        bus = await connect_nats(self.nats.url, name="test-client")
        self._exits.push_async_callback(bus.close)
        return Asker(bus)

    async def server(
        self, name: str, incarnation: str = "1", *, register: bool = True, mute: bool = False
    ) -> FakeServer:
        server = await FakeServer.start(
            self.nats.url, self.layout, name, incarnation, register=register, mute=mute
        )
        self._exits.push_async_callback(server.kill)
        return server

    @contextlib.asynccontextmanager
    async def coordinator(self, disk: Disk | None = None) -> AsyncIterator[Coordinator]:
        bus = await connect_nats(self.nats.url, name="test-coordinator")
        try:
            coordinator = Coordinator(bus, self.layout, disk or self.disk)
            ready = asyncio.Event()
            running = asyncio.create_task(coordinator.run(ready))
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            try:
                if not running.done():
                    yield coordinator
            finally:
                coordinator.stop()
                await running
        finally:
            await bus.close()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path) as server:
        yield server


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


Scenario = Callable[[Cluster], Awaitable[None]]


@pytest.fixture
def run(nats: NatsServer, layout: Layout) -> Callable[[Scenario], None]:
    def runner(scenario: Scenario) -> None:
        async def main() -> None:
            async with Cluster(nats, layout) as cluster:
                await scenario(cluster)

        asyncio.run(main())

    return runner


Run = Callable[[Scenario], None]


def test_without_a_server_a_store_has_the_error_in_its_slot(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            client = await cluster.client()
            reply = await client.ask("resolve", stores=[[1, "one"], [1, "no name"]])
            assert reply["term"] == 1
            no_server, bad_name = reply["owners"]
            assert no_server[:2] == [None, "no_server"]
            assert bad_name[:2] == [None, "invalid_name"]

    run(scenario)


def test_a_store_is_resolved_opened_created_and_released(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            a = await cluster.server("a")
            client = await cluster.client()
            assert await client.owner("one") == ["a", "1", 1]
            assert await client.owner("one") == ["a", "1", 1]
            b = await cluster.server("b")
            assert (await b.open("one"))[:2] == [None, "not_owner"]
            assert await a.open("one") == [1, StoreState.UNKNOWN, StoreState.UNKNOWN]
            assert await a.open("one", create=True) == [1, StoreState.CREATED, StoreState.UNKNOWN]
            assert await a.ask("created", stores=[["acme", 1, "one"]]) == {"term": 1}
            assert await a.open("one") == [1, StoreState.DURABLE, StoreState.DURABLE]
            assert await a.ask("release", stores=[["acme", 1, "one"]]) == {"term": 1}
            assert (await a.open("one"))[:2] == [None, "not_owner"]
            server, _, epoch = await client.owner("one")
            assert epoch == 2
            owner = a if server == "a" else b
            assert await owner.open("one") == [2, StoreState.DURABLE, StoreState.DURABLE]
            reply = await client.ask("stores", prefix="o")
            (row,) = (StoreInfo(*row) for row in reply["stores"])
            assert (row.kind, row.name, row.server, row.epoch) == (1, "one", server, 2)
            assert reply["next"] is None
            info = (await client.servers())["a"]
            assert (info.state, info.incarnation) == ("live", "1")

    run(scenario)


def test_a_killed_servers_stores_move_after_a_suspicion_once_its_fence_is_written(
    run: Run,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            a = await cluster.server("a")
            client = await cluster.client()
            assert await client.owner("one") == ["a", "1", 1]
            await cluster.server("b")
            await a.kill()
            assert a.fence_is_open
            assert await client.owner("one") == ["a", "1", 1]
            assert await client.suspect(a) is False
            assert not a.fence_is_open
            assert await client.owner("one") == ["b", "1", 2]
            assert (await client.servers())["a"].state == "dead"

    run(scenario)


def test_a_silent_server_is_noticed_without_any_client(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            a = await cluster.server("a")
            client = await cluster.client()
            await client.owner("one")
            await cluster.server("b")
            a.mute = True

            async def moved() -> bool:
                owner = await client.owner("one")
                assert owner == ["a", "1", 1] or not a.fence_is_open
                return bool(owner == ["b", "1", 2])

            await eventually(moved, "the store moves")

    run(scenario)


def test_a_healthy_server_survives_any_suspicion(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            a = await cluster.server("a")
            client = await cluster.client()
            assert all(await asyncio.gather(*(client.suspect(a) for _ in range(50))))
            fields = {"server": "a", "incarnation": "never-seen"}
            assert (await client.ask("suspect", **fields)) == {"alive": False}
            assert a.fence_is_open
            assert await client.owner("one") == ["a", "1", 1]

    run(scenario)


class RefusingDisk(Disk):
    """A disk on which nothing can be overwritten while `refuses`."""

    refuses = False

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        if self.refuses:
            raise StorageFailedError(reason=f"{path}: input/output error")
        super().overwrite_durably(path, content)


def test_a_server_that_cannot_be_fenced_keeps_its_stores_until_it_can(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        disk = RefusingDisk()
        async with cluster.coordinator(disk):
            a = await cluster.server("a")
            client = await cluster.client()
            await client.owner("one")
            await cluster.server("b")
            disk.refuses = True
            await a.kill()
            with pytest.raises(StorageFailedError):
                await client.suspect(a)
            assert await client.owner("one") == ["a", "1", 1]
            assert (await client.servers())["a"].state == "suspect"
            with pytest.raises(StorageFailedError):
                while True:
                    # Waits for the next attempt, which fails too.
                    await client.suspect(a)
            disk.refuses = False

            async def moved() -> bool:
                return bool(await client.owner("one") == ["b", "1", 2])

            await eventually(moved, "the store moves")
            assert not a.fence_is_open

    run(scenario)


def test_a_new_incarnation_is_let_in_after_the_older_is_fenced_which_never_returns(
    run: Run,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            old = await cluster.server("a", "1")
            client = await cluster.client()
            await client.owner("one")
            await cluster.server("a", "2")
            assert not old.fence_is_open
            assert await client.owner("one") == ["a", "2", 2]
            with pytest.raises(FencedError):
                await old.register()
            with pytest.raises(FencedError):
                await old.open("one", create=True)
        async with cluster.coordinator():
            with pytest.raises(FencedError):
                await old.register()

    run(scenario)


def test_an_incarnation_whose_fence_is_missing_is_refused(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            server = await cluster.server("a", register=False)
            cluster.layout.fence("a", "1").unlink()
            with pytest.raises(FencedError):
                await server.register()

    run(scenario)


def test_a_tenant_cannot_drain_a_server(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            await cluster.server("a")
            await cluster.server("b")
            client = await cluster.client()
            for verb in ("drain", "undrain"):
                with pytest.raises(UnknownOperationError):
                    await client.ask(verb, server="a")
            assert (await client.servers())["a"].state == "live"
            assert await client.ask("drain", tenant="_", server="a") == {
                "term": 1,
                "incarnation": "1",
            }
            assert (await client.servers())["a"].state == "draining"

    run(scenario)


def test_a_server_that_releases_everything_is_gone_and_its_stores_move(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            a = await cluster.server("a")
            client = await cluster.client()
            await client.owner("one")
            a.state = "stopping"

            async def draining() -> bool:
                return (await client.servers())["a"].state == "draining"

            await eventually(draining, "the server drains")
            assert await client.owner("one") == ["a", "1", 1]
            assert (await client.owner("two"))[:2] == [None, "no_server"]
            await cluster.server("b")
            assert await a.ask("release", stores=None) == {"term": 1}
            assert await a.ask("release", stores=None) == {"term": 1}
            assert await client.owner("one") == ["b", "1", 2]
            with pytest.raises(FencedError):
                await a.register()

    run(scenario)


def test_a_restarted_coordinator_keeps_the_owners_and_takes_a_higher_term(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = await cluster.client()
        async with cluster.coordinator():
            a, b = await cluster.server("a"), await cluster.server("b")
            before = [await client.owner(f"s{number}") for number in range(10)]
            assert {owner[0] for owner in before} == {"a", "b"}
        with pytest.raises(NoRespondersError):
            await client.owner("s0")
        async with cluster.coordinator():
            reply = await client.ask("resolve", stores=[[1, f"s{n}"] for n in range(10)])
            assert reply["term"] == 2
            assert reply["owners"] == before
            owner = a if before[0][0] == "a" else b
            assert await owner.open("s0") == [1, StoreState.UNKNOWN, StoreState.UNKNOWN]
            assert (await client.settled_owner("new"))[2] == 1
            assert a.fence_is_open
            assert b.fence_is_open
            assert a.registered_count == 1

    run(scenario)


def test_a_coordinator_that_lost_its_state_fences_everyone_and_starts_empty(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = await cluster.client()
        async with cluster.coordinator():
            old = await cluster.server("a", "1")
            await client.owner("one")
        (cluster.layout.coordinator / "state.db").unlink()
        await old.kill()
        with caplog.at_level(logging.WARNING, logger="holdfast.coordinator"):
            async with cluster.coordinator():
                assert not old.fence_is_open
                await cluster.server("a", "2")
                assert (await client.owner("one"))[:2] == ["a", "2"]
        assert "coordinator.state_missing" in caplog.text

    run(scenario)


def test_servers_that_were_started_before_the_first_coordinator_are_let_in(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        early = await cluster.server("a", register=False)
        async with cluster.coordinator():
            await early.register()
            assert early.fence_is_open

    run(scenario)


def test_a_server_the_coordinator_does_not_know_is_asked_to_register(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            client = await cluster.client()
            server = await cluster.server("a", register=False)

            async def known() -> bool:
                return "a" in await client.servers()

            await eventually(known, "the server is known")
            assert server.registered_count > 0
            assert await client.settled_owner("one") == ["a", "1", 1]

    run(scenario)


def test_a_restart_of_nats_moves_nothing(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            client = await cluster.client()
            a, b = await cluster.server("a"), await cluster.server("b")
            before = [await client.owner(f"s{number}") for number in range(4)]
            cluster.nats.restart()

            async def answers() -> bool:
                try:
                    for server in (a, b):
                        await client.suspect(server)
                    return await client.owner("s0") is not None
                except (NoRespondersError, BusTimeoutError):
                    return False

            await eventually(answers, "the coordinator is back")
            assert [await client.owner(f"s{number}") for number in range(4)] == before
            assert a.fence_is_open
            assert b.fence_is_open
            assert (await client.settled_owner("new"))[2] == 1

    run(scenario)


@pytest.mark.parametrize(
    ("tenant", "verb", "payload", "error"),
    [
        ("acme", "resolve", b"", MalformedFrameError),
        ("acme", "resolve", b"\x01\xc1", MalformedFrameError),
        ("acme", "resolve", encode_control(error="busy", fields={1: 2}), MalformedFrameError),
        ("acme", "nonsense", encode_control(), UnknownOperationError),
        ("acme", "open", encode_control(), UnknownOperationError),
        ("_", "resolve", encode_control(stores=[]), UnknownOperationError),
        ("-", "resolve", encode_control(stores=[]), InvalidNameError),
        ("_", "register", encode_control(server="a b", incarnation="1"), InvalidNameError),
    ],
)
def test_a_malformed_request_gets_a_typed_error_and_hurts_nobody(
    run: Run, tenant: str, verb: str, payload: bytes, error: type[HoldfastError]
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            client = await cluster.client()
            for heartbeat in (
                b"",
                b"\x01\xc0",
                encode_control(server="a b", incarnation=".."),
                encode_control(error="busy", fields=[1]),
                encode_control(server="a", incarnation="1", open_stores=1e300),
                encode_control(server="a", incarnation="1", operations_per_second=math.nan),
            ):
                await client.bus.publish(SUBJECTS.heartbeat(), heartbeat)
            with pytest.raises(error):
                await client.ask_raw(verb, payload, tenant)
            assert await client.servers() == {}

    run(scenario)


def test_a_burst_of_clients_is_answered_in_few_commits(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            await cluster.server("a")
            await cluster.server("b")
            client = await cluster.client()
            owners = await asyncio.gather(
                *(client.owner(f"store.{number}") for number in range(1000))
            )
            counts = [sum(owner[0] == name for owner in owners) for name in ("a", "b")]
            assert sum(counts) == 1000
            assert min(counts) >= 450

    run(scenario)


class CoordinatorProcess:
    """`python -m holdfast.coordinator`, ended by its own handle."""

    def __init__(self, nats: NatsServer, layout: Layout, *options: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "holdfast.coordinator"),
                *("--data", str(layout.root), "--nats", nats.url),
                *options,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_log(self, event: str) -> None:
        assert self.process.stderr is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        for line in self.process.stderr:
            if event in line:
                return
            assert time.monotonic() < deadline
        raise AssertionError(f"ended without {event}")

    def wait(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def test_a_second_coordinator_is_refused_in_one_line(nats: NatsServer, layout: Layout) -> None:
    with CoordinatorProcess(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with CoordinatorProcess(nats, layout, "--log-level", "error") as second:
            code, errors = second.wait()
        assert code == 1
        assert errors.count("\n") == 1
        assert "already running" in errors
        first.process.send_signal(signal.SIGTERM)
        assert first.wait()[0] == 0
    assert not (layout.coordinator / "state.db-wal").exists()


@contextlib.contextmanager
def coordinator_and_standby(
    nats: NatsServer, layout: Layout
) -> Iterator[tuple[CoordinatorProcess, CoordinatorProcess]]:
    with CoordinatorProcess(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with CoordinatorProcess(nats, layout, "--standby") as standby:
            standby.wait_for_log("coordinator.standing_by")
            yield first, standby


async def successor_of(first: CoordinatorProcess, client: Asker) -> None:
    """Kill `first`; return once another answers."""
    first.process.kill()

    async def answers() -> bool:
        try:
            return bool((await client.ask("servers"))["term"] == 2)
        except (NoRespondersError, BusTimeoutError):
            return False

    await eventually(answers, "the standby answers")


def test_a_standby_takes_over_with_a_higher_term_and_the_same_owners(
    nats: NatsServer, layout: Layout
) -> None:
    async def scenario(first: CoordinatorProcess) -> None:
        async with Cluster(nats, layout) as cluster:
            server, client = await cluster.server("a"), await cluster.client()
            assert await client.settled_owner("one") == ["a", "1", 1]
            await successor_of(first, client)
            assert await client.owner("one") == ["a", "1", 1]
            assert server.fence_is_open

    with coordinator_and_standby(nats, layout) as (first, standby):
        asyncio.run(asyncio.wait_for(scenario(first), DEADLINE_SECONDS))
        standby.process.send_signal(signal.SIGINT)
        assert standby.wait()[0] == 0


def test_a_server_that_is_killed_with_its_coordinator_is_found_out_by_the_standby_at_once(
    nats: NatsServer, layout: Layout
) -> None:
    async def scenario(first: CoordinatorProcess) -> None:
        async with Cluster(nats, layout) as cluster:
            server, client = await cluster.server("a"), await cluster.client()
            assert await client.settled_owner("one") == ["a", "1", 1]
            await cluster.server("b")

            async def heard() -> bool:
                return all(row.open_stores == 7 for row in (await client.servers()).values())

            await eventually(heard, "heartbeats were heard")
            await server.kill()
            await successor_of(first, client)

            async def moved() -> bool:
                return bool((await client.owner("one"))[0] == "b")

            await eventually(moved, "the store is b's")

    with coordinator_and_standby(nats, layout) as (first, standby):
        asyncio.run(asyncio.wait_for(scenario(first), DEADLINE_SECONDS))
        standby.process.send_signal(signal.SIGTERM)
        _, log = standby.wait()
        assert "reason=nobody listens on its subject" in log
        assert "reason=silent" not in log


def test_a_deposed_coordinator_ends_and_fences_nobody(nats: NatsServer, layout: Layout) -> None:
    async def scenario() -> None:
        async with Cluster(nats, layout) as cluster:
            server = await cluster.server("a")
            # As when the network file system had given its lock to another, which then died.
            TermFile(Disk(), layout.coordinator / "term").begin()
            server.mute = True
            while deposed.process.poll() is None:
                await asyncio.sleep(0.02)
            assert server.fence_is_open

    with CoordinatorProcess(nats, layout) as deposed:
        deposed.wait_for_log("coordinator.started")
        asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))
        code, errors = deposed.wait()
        assert code == 1
        assert "the coordinator of term 1 has been succeeded by that of term 2" in errors
        assert "Traceback" not in errors


def test_a_coordinator_that_a_server_knows_to_be_deposed_ends(
    nats: NatsServer, layout: Layout
) -> None:
    async def scenario() -> None:
        async with Cluster(nats, layout) as cluster:
            server = await cluster.server("a")
            server.refusal = DeposedError(term=1, newer_term=5)
            client = await cluster.client()
            with contextlib.suppress(NoRespondersError, BusTimeoutError):
                await client.suspect(server)
            while deposed.process.poll() is None:
                await asyncio.sleep(0.02)
            assert server.fence_is_open

    with CoordinatorProcess(nats, layout) as deposed:
        deposed.wait_for_log("coordinator.started")
        asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))
        code, errors = deposed.wait()
        assert code == 1
        assert "succeeded by that of term 5" in errors


def test_a_standby_stops_when_asked(nats: NatsServer, layout: Layout) -> None:
    with CoordinatorProcess(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with CoordinatorProcess(nats, layout, "--standby") as standby:
            standby.wait_for_log("coordinator.standing_by")
            standby.process.send_signal(signal.SIGTERM)
            assert standby.wait()[0] == 0


def test_what_cannot_run_says_why_in_one_line(nats: NatsServer, layout: Layout) -> None:
    nats.kill()
    with CoordinatorProcess(nats, layout, "--log-level", "error") as unreachable:
        code, errors = unreachable.wait()
    assert code == 1
    assert "cannot reach NATS" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    with CoordinatorProcess(nats, layout, "--prefix", "a b") as wrong:
        assert wrong.wait()[0] == 2


def test_a_joining_incarnation_makes_a_third_one_wait(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        disk = RefusingDisk()
        async with cluster.coordinator(disk):
            first = await cluster.server("a", "1")
            second = await cluster.server("a", "2", register=False, mute=True)
            third = await cluster.server("a", "3", register=False, mute=True)
            disk.refuses = True
            with pytest.raises(StorageFailedError):
                await second.register()
            with pytest.raises((UnavailableError, StorageFailedError)):
                await third.register()
            disk.refuses = False
            await second.register()
            assert not first.fence_is_open
            await third.register()
            assert not second.fence_is_open
            assert third.fence_is_open

    run(scenario)


def test_beyond_its_bounds_the_coordinator_says_busy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            client = await cluster.client()
            with monkeypatch.context() as patch:
                patch.setattr("holdfast.coordinator.service.MAX_WAITING_REQUESTS", 0)
                with pytest.raises(BusyError):
                    await client.servers()
            assert await client.servers() == {}

    run(scenario)


def test_a_reply_that_nobody_can_get_hurts_nobody(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.coordinator():
            client = await cluster.client()
            subject = SUBJECTS.coordinator("acme", "servers")
            for reply in ("", "ends.", ".starts", "a..b", "*", ">", "hf._.hb", subject):
                await client.bus.publish(subject, encode_control(), reply)
            assert await client.servers() == {}

    run(scenario)
