"""A server and clients of one host, whose bus and pipes are in memory."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.direct.caller_bus import CallerBus
from holdfast.protocol.direct.door_bus import DoorBus, Knows
from holdfast.protocol.direct.memory_pipe import MemoryDoor, MemoryPipe
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.subjects import Subjects, granted
from tests.support.received import Received
from tests.support.waiting import until

SERVER = "s1"
SUBJECT = Subjects().server("acme", SERVER)


class DirectWorld:
    """What travels over NATS is in `over_nats`, pairs of subject and payload."""

    def __init__(self, knows: Knows | None = None) -> None:
        self.network = MemoryNetwork()
        self.over_nats: list[tuple[str, bytes]] = []
        self.network.taps.append(
            lambda _, message: self.over_nats.append((message.subject, message.payload))
        )
        self.door = MemoryDoor()
        self.server = DoorBus(
            self.network.connect("server"), Subjects(), SERVER, self.door, knows
        )
        #: The clients' ends of all pipes that were made.
        self.pipes: list[MemoryPipe] = []
        #: The frames that the server got.
        self.frames = Received()
        self._subscriptions: list[Callable[[], object]] = []

    async def dial(self, server: str) -> DirectPipe | None:
        assert server == SERVER
        mine, its = MemoryPipe.pair()
        if not self.door.enter(its):
            return None
        self.pipes.append(mine)
        return mine

    def client(self, token: str = "") -> CallerBus:
        return CallerBus(self.network.connect("client"), Subjects(), self.dial, lambda: token)

    async def serve(self) -> None:
        """Have the server take frames."""
        self._ending = [
            await self.server.subscribe(pattern, self.frames)
            for pattern in granted(Subjects().server_pattern(SERVER))
        ]

    async def rest(self) -> None:
        """Have it take no more."""
        for each in self._ending:
            await each.unsubscribe()


async def listening(bus: CallerBus, tenant: str = "acme") -> tuple[str, Received]:
    """Return an inbox of a client, and what comes there."""
    received, inbox = Received(), bus.new_inbox(tenant)
    await bus.subscribe(f"{inbox}.*", received)
    return inbox, received


async def begun(world: DirectWorld, bus: CallerBus, inbox: str, subject: str = SUBJECT) -> None:
    """Send a frame, and return once the next ones go directly."""
    before = len(world.frames.messages)
    await bus.publish(subject, b"first", f"{inbox}.1")
    await world.frames.first(before + 1)
    await until(lambda: subject in bus.direct_subjects)
    world.over_nats.clear()


def reply_of(message: BusMessage) -> tuple[str, bytes, bool]:
    return message.subject, message.payload, message.no_responders
