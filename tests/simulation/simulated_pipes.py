"""Direct connections of a simulated cluster: each gateway reaches each server so, as if all were on
one host. They end with either process, and by themselves whenever a fault says so."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.direct.caller_bus import CallerBus
from holdfast.protocol.direct.door_bus import DoorBus
from holdfast.protocol.direct.memory_pipe import MemoryDoor, MemoryPipe
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.subjects import Subjects

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation
    from tests.simulation.simulated_nodes import Node


class SimulatedPipes:
    """All pipes of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._weather = simulation.chance("weather of pipes")
        #: The door of each server that runs, and its process.
        self._doors: dict[str, tuple[MemoryDoor, str]] = {}
        #: With the processes at both ends.
        self._pipes: list[tuple[MemoryPipe, str, str]] = []

    @property
    def pipes(self) -> list[MemoryPipe]:
        """Those that have not ended."""
        return [pipe for pipe, *_ in self._pipes if not pipe.ended]

    def of_server(self, node: Node) -> Bus:
        """Return the bus of this life of a server."""
        door = MemoryDoor()
        self._doors[node.name] = door, node.bus.name
        return DoorBus(node.bus, Subjects(), node.name, door)

    def of_gateway(self, node: Node) -> Bus:
        """Return the bus of this life of a gateway."""
        gateway = node.bus.name

        async def dial(server: str) -> DirectPipe | None:
            found = self._doors.get(server)
            if found is None:
                return None
            door, process = found
            mine, its = WatchedPipe.pair(self._delay)
            mine.simulation = its.simulation = self._simulation
            mine.name, its.name = gateway, process
            if not door.enter(its):
                return None
            self._simulation.trace.add(f"pipe {gateway} to {process}")
            self._pipes = [each for each in self._pipes if not each[0].ended]
            self._pipes.append((mine, gateway, process))
            return mine

        return CallerBus(node.bus, Subjects(), dial)

    def died(self, process: str) -> None:
        """A process is no more."""
        for pipe, *ends in self._pipes:
            if process in ends:
                pipe.cut()
        for server, (_, of_server) in list(self._doors.items()):
            if of_server == process:
                del self._doors[server]

    def _delay(self) -> float:
        return self._weather.uniform(0.00001, 0.0002)


class WatchedPipe(MemoryPipe):
    """One end of a pipe; what leaves it is noted, and must not leave a fenced server. What each end
    says first, a hello or a welcome, tells nothing of any store, so it passes no gate."""

    simulation: Simulation
    name: str = ""
    has_greeted: bool = False

    def send(self, *parts: bytes) -> bool:
        message = b"".join(parts)
        self.simulation.trace.add(f"pipe from {self.name} {zlib.crc32(message):08x}")
        if self.has_greeted:
            self.simulation.check_open(self.name, "a pipe")
        self.has_greeted = True
        return super().send(message)
