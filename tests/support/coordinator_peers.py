"""What a coordinator has to do with: servers that speak the real wire and have no stores, clients,
NATS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.protocol.bus.bus import BusMessage, BusSubscription
from holdfast.protocol.bus.bus_nats import NatsBus, connect_nats
from holdfast.protocol.control import ServerInfo
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import decode_control, encode_control, encode_control_error
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS, HEARTBEAT_SECONDS
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, is_open
from holdfast.shared_fs.disk.layout import Layout
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

DEADLINE_SECONDS = 20.0
SUBJECTS = Subjects()


def plain(reply: bytes) -> Mapping[str, Any]:
    """Return what a coordinator answers, without the id of its cluster, which all its answers
    have."""
    fields = dict(decode_control(reply))
    assert fields.pop("cluster")
    return fields


class FakeServer:
    """A persist server without stores: registers, sends heartbeats, answers probes."""

    def __init__(self, bus: NatsBus, layout: Layout, name: str, incarnation: str) -> None:
        self.bus = bus
        self.layout = layout
        self.name = name
        self.incarnation = incarnation
        self.state = "running"
        self.mute = False
        #: Until it is killed.
        self.runs = True
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
        return plain(reply)

    async def open(self, name: str, *, create: bool = False, tenant: str = "acme") -> Any:
        reply = await self.ask("open", stores=[[tenant, 1, name, create]])
        # Whether the bucket may have it is told besides.
        return reply["grants"][0][:3]

    async def kill(self) -> None:
        """End as a process that is killed: its subjects go with its connection."""
        self.runs = False
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
        reply = await self.bus.request(subject, payload, CONTROL_TIMEOUT_SECONDS, tenant)
        return plain(reply)

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


class StorageOfFakes(Storage):
    """Storage in which a fake server holds its lock as long as it runs. A lock of this process
    would be invisible to the coordinator in it, and lost when that looks."""

    def __init__(self, layout: Layout, disk: Disk, servers: Sequence[FakeServer]) -> None:
        super().__init__(layout, disk)
        self._servers = servers

    def may_run(self, server: str) -> bool:
        return any(each.runs for each in self._servers if each.name == server)


class Cluster:
    """What a test starts, ended in reverse order."""

    def __init__(self, nats: NatsServer, layout: Layout) -> None:
        self.nats = nats
        self.layout = layout
        self.disk = Disk()
        self._servers: list[FakeServer] = []
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
        self._servers.append(server)
        return server

    @contextlib.asynccontextmanager
    async def coordinator(self, disk: Disk | None = None) -> AsyncIterator[Coordinator]:
        bus = await connect_nats(self.nats.url, name="test-coordinator")
        try:
            coordinator = Coordinator(
                bus, StorageOfFakes(self.layout, disk or self.disk, self._servers)
            )
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
