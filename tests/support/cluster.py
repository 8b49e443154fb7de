"""Real coordinator and persist processes around a real nats-server, and a peer that speaks to them
in raw frames, as a client in any language would.

with running_processes(tmp_path) as processes:
    server = processes.start_persist("s1")
    async with connected_peer(processes) as peer:
        await peer.write("notes", 1, [frames.APPEND, b"hello"])
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import Bus, BusMessage, BusTimeoutError, NoRespondersError
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.errors import HoldfastError, UnavailableError, error_from_wire
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.layout import Layout
from tests.support.nats_server import NatsServer, running_nats_server
from tests.support.process import DEADLINE_SECONDS, Process
from tests.support.waiting import until  # noqa: F401 (many import it from here)

TENANT = "acme"
SUBJECTS = Subjects()


class Processes:
    """What was started for one test; all of it is ended with it."""

    def __init__(self, directory: Path, nats: NatsServer) -> None:
        self.directory = directory
        self.nats = nats
        self.data = directory / "data"
        self.layout = Layout(self.data)
        self._started: list[Process] = []
        self.coordinator = self.start("coordinator", "coordinator")

    def start(
        self,
        part: str,
        name: str,
        *arguments: str,
        data: Path | None = None,
        module: str = "",
        with_data: bool = True,
    ) -> Process:
        """Start a part, or instead of it what another module runs, which may have no data."""
        number = len(self._started)
        place = ["--data", str(data or self.data)] if with_data else []
        process = Process(
            module or f"holdfast.{part}.__main__",
            [*place, "--nats", self.nats.url, *arguments],
            self.directory / f"{name}-{number}.log",
        )
        self._started.append(process)
        return process

    def start_persist(
        self, name: str, *arguments: str, data: Path | None = None, module: str = ""
    ) -> Process:
        return self.start("persist", name, "--name", name, *arguments, data=data, module=module)

    def living(self, name: str) -> list[Process]:
        """What was started under a name and still runs."""
        return [
            each
            for each in self._started
            if each.log_file.name.startswith(f"{name}-") and each.running
        ]

    def incarnations(self, server: str) -> list[str]:
        """The incarnations of a server that have a folder."""
        home = self.layout.server(server)
        return sorted(each.name for each in home.iterdir() if each.is_dir())

    def end(self) -> None:
        for process in self._started:
            process.kill()


@contextmanager
def running_processes(directory: Path) -> Iterator[Processes]:
    """Run a nats-server and a coordinator around the body, with what else it starts."""
    with running_nats_server(directory) as nats:
        processes = Processes(directory, nats)
        try:
            yield processes
        finally:
            processes.end()


class Peer:
    """A client in raw frames. Every answer is kept under the reply subject it came to."""

    def __init__(self, bus: Bus, writer: bytes = b"peer") -> None:
        self.bus = bus
        self.writer = writer
        #: How long one try waits for its answer.
        self.try_seconds = 1.0
        #: By the tenant in whose name it asks.
        self._inboxes: dict[str, str] = {}
        self._numbers = itertools.count()
        self._replies: dict[str, asyncio.Queue[BusMessage]] = {}

    async def _inbox(self, tenant: str) -> str:
        if tenant not in self._inboxes:
            self._inboxes[tenant] = self.bus.new_inbox(tenant)
            await self.bus.subscribe(f"{self._inboxes[tenant]}.*", self._on_reply)
        return self._inboxes[tenant]

    def _on_reply(self, message: BusMessage) -> None:
        queue = self._replies.get(message.subject)
        if queue is not None:
            queue.put_nowait(message)

    async def ask(
        self,
        payload: bytes,
        *,
        groups: int = 1,
        server: str = "s1",
        tenant: str = TENANT,
        timeout_seconds: float = DEADLINE_SECONDS,
    ) -> list[list[Any]]:
        """Send any bytes as a frame and return the elements of the reply, by index.

        Raises BusTimeoutError, NoRespondersError.
        """
        reply = f"{await self._inbox(tenant)}.{next(self._numbers)}"
        queue = self._replies[reply] = asyncio.Queue()
        elements: dict[int, list[Any]] = {}
        try:
            await self.bus.publish(SUBJECTS.server(tenant, server), payload, reply)
            async with asyncio.timeout(timeout_seconds):
                while len(elements) < groups and -1 not in elements:
                    message = await queue.get()
                    if message.no_responders:
                        raise NoRespondersError(subject=SUBJECTS.server(tenant, server))
                    for element in frames.decode(message.payload):
                        elements[element[0]] = element
        except TimeoutError as error:
            raise BusTimeoutError(subject=reply, timeout_seconds=timeout_seconds) from error
        finally:
            del self._replies[reply]
        return [elements[index] for index in sorted(elements)]

    async def group(self, group: tuple[Any, ...], **options: Any) -> frames.Outcome:
        """Send one group and return its outcome. Raises what it was refused with."""
        payload = frames.encode_request(options.pop("writer", self.writer), [group])
        (element,) = await self.ask(payload, **options)
        if element[1] != 0:
            raise error_from_wire(element[2], element[3])
        outcome = frames.decode_outcome(element[2])
        if isinstance(outcome.results, frames.Run):
            acks = outcome.results.acks(outcome.time, Durability.SYNCED)
            return outcome._replace(results=[[ack.seq or 0, ack.revision] for ack in acks])
        return outcome

    async def write(
        self,
        name: str,
        counter: int,
        *operations: list[Any],
        kind: StoreKind = StoreKind.STREAM,
        first_unacked: int | None = None,
        durability: int = 0,
        **options: Any,
    ) -> frames.Outcome:
        """Send one group of writes until it is answered, as a client does."""
        first_unacked = counter if first_unacked is None else first_unacked
        group = (kind, name, counter, first_unacked, durability, list(operations))
        return await self._patiently(name, kind, group, options)

    async def read(
        self, name: str, *operations: list[Any], kind: StoreKind = StoreKind.STREAM, **options: Any
    ) -> list[Any]:
        """Send one group of reads until it is answered and return the results."""
        group = (kind, name, 0, 0, 0, list(operations))
        return (await self._patiently(name, kind, group, options)).results

    async def _patiently(
        self, name: str, kind: StoreKind, group: tuple[Any, ...], options: dict[str, Any]
    ) -> frames.Outcome:
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                owner = await self.resolve(name, kind)
                return await self.group(
                    group, server=owner, timeout_seconds=self.try_seconds, **options
                )
            except UnavailableError:
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(0.02)

    async def resolve(self, name: str, kind: StoreKind = StoreKind.STREAM) -> str:
        """Return the server that owns a store, by the coordinator."""
        answer = await self.bus.request(
            SUBJECTS.coordinator(TENANT, "resolve"),
            frames.encode_control(stores=[[kind, name]]),
            2.0,
            TENANT,
        )
        owner = frames.decode_control(answer)["owners"][0]
        if owner[0] is None:
            raise error_from_wire(owner[1], owner[2])
        return str(owner[0])

    async def live(self, server: str = "s1") -> None:
        """Return once the server answers frames."""
        await self.read("is-it-there", [frames.HEAD])


@asynccontextmanager
async def connected_peer(processes: Processes, writer: bytes = b"peer") -> AsyncIterator[Peer]:
    """Connect a peer around the body."""
    bus = await connect_nats(processes.nats.url, name="test-peer")
    try:
        yield Peer(bus, writer)
    finally:
        await bus.close()


def all_files(processes: Processes, name: str, kind: StoreKind = StoreKind.STREAM) -> list[str]:
    """The names of all files of a store."""
    folder = processes.layout.store(StoreId(TENANT, kind, name)).parent
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


async def refusal(asked: Any) -> HoldfastError:
    """Return the error that an awaitable raises."""
    try:
        await asked
    except HoldfastError as error:
        return error
    raise AssertionError("it was not refused")


async def values(peer: Peer, name: str = "notes") -> list[bytes]:
    ((rows, _after),) = await peer.read(name, [frames.GET_MESSAGES])
    return [row[3] for row in rows]


@asynccontextmanager
async def serving(
    tmp_path: Path, *arguments: str
) -> AsyncIterator[tuple[Processes, Process, Peer]]:
    """Run one persist server around the body, which begins when it takes frames."""
    with running_processes(tmp_path) as processes:
        server = processes.start_persist("s1", *arguments)
        try:
            async with connected_peer(processes) as peer:
                await peer.live()
                yield processes, server, peer
        except BaseException:
            print(server.log[-4000:])
            raise
