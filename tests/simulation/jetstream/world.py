"""What a simulation with JetStream has besides a cluster: NATS of the applications, and gateways.

The applications' NATS is one MemoryNats, as if it were another account: the cluster's own bus is
elsewhere, and each can fail alone. A gateway is a process with three connections, which die with
it; a supervisor starts the next life. All chance comes from the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.client.following.follower import Follower
from holdfast.client.wire.link import Link
from holdfast.gateway.jetstream.api import names
from holdfast.gateway.jetstream.api.acks import parse_ack_subject
from holdfast.gateway.jetstream.api.headers import get
from holdfast.gateway.jetstream.consumer_set import board
from holdfast.gateway.jetstream.serving import served_streams
from holdfast.gateway.jetstream.serving.gateway import GatewayOptions, JetStreamGateway
from holdfast.gateway.jetstream.streams import context
from holdfast.gateway.jetstream.wire.memory import MemoryClient, MemoryLeaf, MemoryNats
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.subjects import Subjects
from tests.simulation.jetstream.notes import AGAIN, ORDERS, Notes, SentCopy, SentDelivery
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import TENANT, Node
from tests.simulation.virtual_loop import Process

#: How long a gateway's operations are tried.
_TIMEOUT_SECONDS: Final = 10.0
#: How long nats-server takes to notice that a host is gone.
_SILENCE_SECONDS: Final = 3.0
_ACKS: Final = "$JS.ACK."
_LEAF: Final = "-leaf"


class World:
    """The applications' NATS and the gateways of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.notes = Notes()
        chance = simulation.chance("jetstream")
        self.nats = MemoryNats(seed=chance.randrange(1 << 31))
        self._latency_seconds = chance.choice((0.0002, 0.001, 0.005))
        self._loss = chance.choice((0.0, 0.0, 0.005, 0.02))
        self._weather = simulation.chance("weather of jetstream")
        #: Connections that are stalled, by name, and until when.
        self.stalled_until: dict[str, float] = {}
        self.nats.delay_seconds = self._delay
        self.nats.loses = self._loses
        self.nats.taps.append(self._sent)
        self.gateways = [
            GatewayNode(self, f"kg{number}") for number in range(1, chance.choice((2, 3)) + 1)
        ]
        #: Whoever sends the PubAck that is so many PubAcks ahead dies instead.
        self.dies_at_answer = 0
        #: Whoever sends the PubAck, or confirms the ack, that is so many ahead dies after that.
        self.dies_after_answer = 0
        self._applications: list[MemoryClient] = []
        #: The greatest serving epoch of each stream that any gateway had.
        self._epochs: dict[str, int] = {}

    def start(self) -> None:
        """Start the gateways."""
        for gateway in self.gateways:
            gateway.start()

    async def end(self) -> None:
        """End all that was started."""
        for client in self._applications:
            client.vanish()
        for gateway in self.gateways:
            gateway.end()
        ending = [task for gateway in self.gateways for task in gateway.tasks]
        if ending:
            _, left = await asyncio.wait(ending, timeout=60.0)
            for task in left:
                self.simulation.fail(f"a task of a dead gateway does not end: {task!r}")

    def connect(self, process: Process) -> MemoryClient:
        """Return a connection of an application, which hears in its process."""
        client = contextvars.copy_context().run(_connected, self.nats, process)
        self._applications.append(client)
        return client

    # --- NATS ------------------------------------------------------------------------------------
    def _delay(self, name: str) -> float:
        stalled = self.stalled_until.get(name, 0.0) - self.simulation.loop.time()
        if stalled > 0:
            return stalled
        typical, chance = self._latency_seconds, self._weather
        if chance.random() < 0.01:
            return typical + chance.uniform(0.0, 0.3)
        return typical * chance.uniform(0.5, 1.5)

    def _loses(self, name: str, message: PortMessage) -> bool:
        lost = self._loss > 0 and self._weather.random() < self._loss
        if lost:
            self.simulation.trace.add(f"lost {message.subject} to {name}")
        return lost

    def _sent(self, name: str, message: PortMessage) -> None:
        """Something is about to leave a connection."""
        simulation = self.simulation
        checksum = zlib.crc32(message.payload)
        simulation.trace.add(f"js {message.subject} of {name} {checksum:08x} {message.reply}")
        process = name.removesuffix(_LEAF)
        gateway = next((each for each in self.gateways if each.is_running(process)), None)
        if gateway is None:
            return
        if message.reply.startswith(_ACKS):
            self._note_delivery(gateway, message)
            return
        if message.subject.startswith(AGAIN):
            self._note_copy(gateway, message)
            return
        stored = message.payload.startswith(b'{"stream":')
        confirmed = not message.payload and not message.headers
        if self.dies_at_answer and stored:
            self.dies_at_answer -= 1
            if not self.dies_at_answer:
                gateway.kill()
        elif self.dies_after_answer and (stored or confirmed):
            self.dies_after_answer -= 1
            if not self.dies_after_answer:
                # The answer is on its way, and nothing that comes later.
                seconds, loop = 1.5 * self._latency_seconds, simulation.loop
                loop.call_later(seconds, gateway.kill, context=contextvars.Context())


    def _note_delivery(self, gateway: GatewayNode, message: PortMessage) -> None:
        ack = parse_ack_subject(message.reply)
        assert ack is not None, message.reply
        last = max(each.epoch(ack.stream) for each in self.gateways)
        last = self._epochs[ack.stream] = max(last, self._epochs.get(ack.stream, 0))
        at, name, epoch = self.simulation.loop.time(), gateway.bus.name, gateway.epoch(ack.stream)
        self.notes.sent.append(SentDelivery(at, name, ack.stream, ack.stream_seq, epoch, last))

    def _note_copy(self, gateway: GatewayNode, message: PortMessage) -> None:
        seq, last_seq = (
            int(get(message.headers, name) or "")
            for name in ("Nats-Sequence", "Nats-Last-Sequence")
        )
        name, epoch = gateway.bus.name, gateway.epoch(ORDERS)
        id_ = json.loads(message.payload)["id"]
        self.notes.republished.append(SentCopy(name, epoch, seq, last_seq, id_))


class GatewayNode(Node):
    """A JetStream gateway and its supervisor."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.simulation, name)
        self.world = world
        self.ports: tuple[MemoryClient, MemoryLeaf] | None = None
        self.gateway: JetStreamGateway | None = None

    def epoch(self, stream: str) -> int:
        """Return the serving epoch by which it serves a stream, 0 if it does not."""
        served = None if self.gateway is None else self.gateway.streams.get(stream)
        return (served.store.serving_epoch or 0) if served is not None else 0

    def is_running(self, process: str) -> bool:
        """Tell if this is the process that runs now."""
        return self.running and self.process is not None and self.process.name == process

    async def live(self) -> None:
        simulation, nats = self.simulation, self.world.nats
        name = self.bus.name
        ports = nats.connect_client(name), nats.connect_leaf(name + _LEAF)
        self.ports = ports
        entropy = simulation.chance(f"client {name}")
        direct = simulation.direct
        bus = self.bus if direct is None else direct.of_gateway(self)
        link = Link(bus, Subjects(), TENANT, _TIMEOUT_SECONDS, entropy)
        follower = Follower(link)
        holdfast = Client(link, follower, owns_bus=False)
        try:
            await link.open(follower)
            options = GatewayOptions(name, now_ms=self.now_ms)
            self.gateway = JetStreamGateway(options, *ports, holdfast)
            await self.gateway.run(asyncio.Event())
        except BaseExceptionGroup as group:
            raise _first_error(group) from None
        finally:
            for port in ports:
                port.vanish()
            await holdfast.close()

    def kill(self, *, power: bool = False) -> None:
        if not self.running:
            return
        for port in self.ports or ():
            if power:
                # nats-server does not know.
                self.world.stalled_until[port.name] = float("inf")
                loop = asyncio.get_running_loop()
                loop.call_later(_SILENCE_SECONDS, port.vanish, context=contextvars.Context())
            else:
                port.vanish()
        super().kill(power=power)

    def stop(self) -> None:
        """Ask for a clean end."""
        if self.running:
            self.simulation.trace.add(f"stop {self.bus.name}")
            self.task.cancel()


def _connected(nats: MemoryNats, process: Process) -> MemoryClient:
    process.enter()
    return nats.connect_client(process.name)


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Errors(logging.Handler):
    """A gateway that logs an exception has a bug."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.ERROR)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._simulation.fail(f"{record.getMessage()}: {error!r}")


@contextlib.contextmanager
def watched(simulation: Simulation) -> Iterator[None]:
    """Take all chance of gateways from the seed, and what they log as an error for a failure."""
    chance = simulation.chance("chance of gateways")
    secrets: Any = SimpleNamespace(
        token_hex=lambda count: chance.randbytes(count).hex(), choice=chance.choice
    )
    handler, logger = _Errors(simulation), logging.getLogger("holdfast.gateway")
    logger.addHandler(handler)
    try:
        with (
            patch.object(served_streams, "random", chance),
            patch.object(context, "secrets", secrets),
            patch.object(board, "secrets", secrets),
            patch.object(names, "secrets", secrets),
        ):
            yield
    finally:
        logger.removeHandler(handler)
