"""A whole cluster in one event loop: coordinators, persist servers and clients that can be harmed.

Every node lives in a `Process` of its own, sees the shared files through a `HostDisk` and the bus
through a connection, and dies with both: what a dead process still tries has no effect, and its
tasks are cancelled so that nothing is left behind. A supervisor starts the next life. All chance
comes from the seed, in one stream for each use, so that a change in one place does not move
everything. """

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import logging
import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.client.following.follower import Follower
from holdfast.client.wire.link import Link
from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.persist import service
from holdfast.persist.lifecycle.steady_clock import SteadyClock
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.persist.shared_disk import freshness
from holdfast.persist.shared_disk.fence_watch import no_watch
from holdfast.persist.threads.loop_watch import Turns
from holdfast.persist.write_path import checkpointing, materialising
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryDelivery, MemoryNetwork
from holdfast.protocol.errors import HoldfastError, RequestError
from holdfast.protocol.limits import (
    LOG_SEGMENT_BYTES,
    MAX_PENDING_CHANGES,
    PROBE_TIMEOUT_SECONDS,
    SILENCE_SECONDS,
)
from holdfast.protocol.subjects import Subjects, inboxes_of
from holdfast.shared_fs.bucket import cluster_id
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.simulation.simulated_bucket import SimulatedBucket
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_files import Inode, Operation, SimulatedFileSystem
from tests.simulation.simulated_threads import Outcome, SimulatedThread, current_thread
from tests.simulation.simulated_tiers import short_policy
from tests.simulation.virtual_loop import Process, current_process
from tests.support.checking.history import Broadcast, History, change_of_wire

ROOT: Final = Path("/data")
TENANT: Final = "acme"
SERVERS: Final = ("s1", "s2", "s3")
COORDINATORS: Final = ("c1", "c2")
#: Some time in 2025: what the simulated wall clocks start from.
#: Clients' names on the bus start with k.
_CLIENTS_INBOXES: Final = f"{inboxes_of(TENANT)}.k"
_EPOCH_MS: Final = 1_750_000_000_000
#: A coordinator that has heard nothing for longer fences nobody.
HEARING_SECONDS: Final = 2.0
#: A fence that was begun in a silence is not called off by what is heard later, and it may take so
#: long: a pause of the coordinator, and a slow disk.
_FENCE_SECONDS: Final = 10.0
#: In subjects that a stranger names for replies and has no business with.
CANARY: Final = "canary"
#: How long the tasks of a dead process may take to notice.
_UNWIND_SECONDS: Final = 120.0


class Trace:
    """What happened, as text: the same for the same seed, to the byte."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._loop = asyncio.get_running_loop()

    def add(self, text: str) -> None:
        """Note `text` with the time and the process."""
        process = current_process()
        name = process.name if process is not None else "-"
        self.lines.append(f"{self._loop.time():12.6f} {name:8} {text}")

    @property
    def checksum(self) -> int:
        return zlib.crc32("\n".join(self.lines).encode())


class _LogToTrace(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        self._trace.add(f"{record.levelname.lower()} {record.getMessage()}")


class Weather:
    """How the bus and the disks behave, but for what is cut off altogether."""

    def __init__(self, chance: random.Random) -> None:
        self.loss = chance.choice((0.0, 0.0, 0.002, 0.02))
        self.doubling = chance.choice((0.0, 0.0, 0.01))
        self.in_order = chance.random() < 0.7
        self.latency_seconds = chance.choice((0.0002, 0.001, 0.005))
        self.sync_seconds = chance.choice((0.001, 0.005, 0.02, 0.06))
        self.slow_hosts: set[str] = set()
        #: Hosts whose operations fail, with the kinds that do and how often.
        self.failing: dict[str, tuple[frozenset[str], int, float]] = {}


class Simulation:
    """One run's cluster. Use it as `async with`, in a VirtualLoop."""

    def __init__(self, seed: int, *, tiers: bool = False) -> None:
        """With `tiers` there is a bucket, and stores go cold within seconds."""
        self.seed = seed
        self.loop = asyncio.get_running_loop()
        self.trace = Trace()
        self.history = History()
        self.weather = Weather(self.chance("weather"))
        self.layout = Layout(ROOT)
        self.network = MemoryNetwork(self._deliveries)
        self.files = SimulatedFileSystem(
            self.chance("power"), self._observe, lambda: _EPOCH_MS + int(self.loop.time() * 1000)
        )
        self.bucket = (
            SimulatedBucket(
                self.chance("bucket"), lambda: _EPOCH_MS / 1000 + self.loop.time()
            )
            if tiers
            else None
        )
        #: After so many more calls of the bucket, or operations of a thread on a disk, who makes it
        #: dies.
        self.crash_in_bucket = self.crash_on_disk = 0
        #: Who next publishes a snapshot is stopped for so long.
        self.stop_in_bucket_seconds = 0.0
        #: Names of connections that nothing reaches and nothing leaves.
        self.cut_off: set[str] = set()
        #: Names of connections that hear nothing, and since when, and may speak.
        self.deaf: dict[str, float] = {}
        limits = self.chance("limits")
        self.idle_close_seconds = limits.choice((1.0, 3.0, 10.0))
        self.max_open_stores = limits.choice((2, 4, 1000))
        tier_chance = self.chance("tiers")
        self.tier_policy = short_policy(tier_chance)
        if tiers:
            self.idle_close_seconds = tier_chance.choice((0.2, 0.5, 2.0))
        self._life_count = 0
        self._skews = self.chance("clocks")
        self._network_chance = self.chance("network")
        self._disk_chance = self.chance("disk")
        self._thread_chance = self.chance("threads")
        self.crash_chance = self.chance("crashes")
        self._arrivals: dict[tuple[str, str], float] = {}
        #: Where the fence of each incarnation lies, by the name of its process.
        self._fences: dict[str, Path] = {}
        #: When a heartbeat of a server last reached a coordinator, by the names of their processes.
        self._heard_at: dict[tuple[str, str], float] = {}
        #: When the last silence ended that was long enough for a fence to be begun in it.
        self._silent_until: dict[tuple[str, str], float] = {}
        #: These two exclude each other: see `Nemesis._restore_state`.
        self.power_was_cut = self.state_is_being_restored = False
        #: A coordinator may fence healthy servers: it began from an older state, which does not
        #: know them, or its disk failed, and it tries until a fence begun long ago is there.
        self.may_fence_the_healthy = False
        #: Whoever waits for the file server waits until then.
        self.storage_stops_until = 0.0
        self.servers = [ServerNode(self, name) for name in SERVERS]
        self.coordinators = [CoordinatorNode(self, name) for name in COORDINATORS]
        #: How often the coordinators' clocks have been set.
        self.coordinators_leapt = 0
        self.clients: list[ClientNode] = []
        self._handler = _LogToTrace(self.trace)
        self._subjects = Subjects()
        self.network.taps.append(self._on_publish)

    def chance(self, use: str) -> random.Random:
        """Return the stream of chance for one use."""
        return random.Random(f"{self.seed}/{use}")

    @property
    def nodes(self) -> list[Node]:
        return [*self.servers, *self.coordinators]

    def skew_ms(self) -> int:
        """Return how far a node's wall clock is off."""
        return self._skews.choice((0, 0, self._skews.randrange(-5000, 5000)))

    async def __aenter__(self) -> Self:
        logger = logging.getLogger("holdfast")
        self._log_state = (logger.level, logger.propagate)
        self._segment_bytes = commit_log.LOG_SEGMENT_BYTES
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self._handler)
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        for node in self.nodes:
            node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.stop()
        for node in self.nodes:
            node.end()
        dead = [task for node in self.nodes for task in node.tasks]
        dead += [task for client in self.clients for task in client.tasks]
        if dead:
            _ended, left = await asyncio.wait(dead, timeout=_UNWIND_SECONDS)
            for task in left:
                self.fail(f"a task of a dead process does not end: {task!r}")
        await self.end_lives()
        # A doomed stream may have made it smaller.
        commit_log.LOG_SEGMENT_BYTES = self._segment_bytes  # type: ignore[misc]
        logger = logging.getLogger("holdfast")
        logger.removeHandler(self._handler)
        logger.level, logger.propagate = self._log_state

    def fail(self, what: str) -> None:
        """Something is wrong beyond what the checker sees."""
        self.trace.add(f"FAILURE {what}")
        self.history.failures.append(what)

    def next_incarnation(self, node: Node) -> str:
        """Return the id of a server's next life; ids sort by their start."""
        self._life_count += 1
        number = node.life if self.bucket is None else self._life_count
        return f"{number:04d}{node.name}"

    def started(self, node: Node, incarnation: str) -> None:
        """A persist server's new incarnation is about to publish under this process's name."""
        assert node.process is not None
        self._fences[node.process.name] = self.layout.fence(node.name, incarnation)

    def ends_history(self) -> None:
        """What leaves servers from now on is no longer noted."""
        self.network.taps.remove(self._on_publish)

    def node_here(self) -> Node:
        """Return the node that the running callback belongs to."""
        process = current_process()
        return next(node for node in self.nodes if node.process is process)

    async def end_lives(self) -> None:
        """Kill every node, and return once nothing of them is left."""
        for node in self.nodes:
            node.kill()
        ending = [task for node in self.nodes for task in node.tasks]
        if ending:
            await asyncio.wait(ending, timeout=_UNWIND_SECONDS)
        give_up_at = self.loop.time() + _UNWIND_SECONDS
        while any(node.thread_count for node in self.nodes):
            if self.loop.time() > give_up_at:
                self.fail("a thread of a dead process does not end")
                return
            await asyncio.sleep(0.05)

    # --- the bus -----------------------------------------------------------------------------
    def _deliveries(self, delivery: MemoryDelivery) -> Sequence[float]:
        sender, receiver, subject, payload = delivery
        weather, chance = self.weather, self._network_chance
        if sender in self.cut_off or receiver in self.cut_off or receiver in self.deaf:
            return ()
        if chance.random() < weather.loss:
            self.trace.add(f"lost {subject} to {receiver}")
            return ()
        delays = [self._delay(chance)]
        if chance.random() < weather.doubling:
            delays.append(delays[0] + self._delay(chance) * 10)
        if weather.in_order:
            # As on one TCP connection.
            now = asyncio.get_running_loop().time()
            at = max(now + delays[0], self._arrivals.get((sender, receiver), 0.0) + 1e-7)
            self._arrivals[sender, receiver] = at
            delays[0] = at - now
        if subject == self._subjects.heartbeat():
            self._note_heartbeat(sender, receiver, asyncio.get_running_loop().time() + delays[0])
        self.trace.add(
            f"send {subject} to {receiver} in {delays[0]:.6f} {zlib.crc32(payload):08x}"
        )
        return delays

    def _delay(self, chance: random.Random) -> float:
        typical = self.weather.latency_seconds
        if chance.random() < 0.01:
            return typical + chance.uniform(0.0, 0.3)
        return typical * chance.uniform(0.5, 1.5)

    def _on_publish(self, sender: str, message: BusMessage) -> None:
        fence_path, subject = self._fences.get(sender), message.subject
        if CANARY in subject:
            self.fail(f"{sender} publishes on {subject}, where nobody has asked")
        if fence_path is None:
            return
        if ".chg." in subject:
            self._on_broadcast(sender, message)
        elif not subject.startswith(_CLIENTS_INBOXES):
            return
        fence = self.files.find(fence_path)
        if not isinstance(fence, Inode) or bytes(fence.content) != b"open  \n":
            self.fail(f"{sender} is fenced and publishes on {subject}")

    def _on_broadcast(self, sender: str, message: BusMessage) -> None:
        store = self._subjects.store_of(message.subject)
        batch = frames.decode_changes(message.payload)
        changes = tuple(
            (batch.previous_revision + number, change_of_wire(change))
            for number, change in enumerate(batch.changes, start=1)
        )
        self.history.broadcasts.append(
            Broadcast(sender, (store.kind, store.name), batch.epoch, changes)
        )

    # --- disks and threads -------------------------------------------------------------------
    def _observe(self, operation: Operation) -> None:
        if operation.kind != "read":
            self.trace.add(f"{operation.kind} {operation.path} {operation.size_bytes}")
        if operation.host in COORDINATORS and operation.process in self.deaf:
            self._observe_deaf(operation)
        is_fence = operation.kind == "write" and operation.path.endswith("/fence")
        failing = self.weather.failing.get(operation.host)
        if operation.host in COORDINATORS:
            self.may_fence_the_healthy |= failing is not None
            if is_fence and not self.may_fence_the_healthy:
                self._observe_fence(operation)
        if failing is not None:
            kinds, number, ratio = failing
            if operation.kind in kinds and self._disk_chance.random() < ratio:
                self.trace.add(f"disk fails {operation.kind} {operation.path}")
                raise OSError(number, f"simulated {errno.errorcode[number]}")
        if self.crash_on_disk and operation.kind != "read" and current_thread() is not None:
            self.crash_on_disk -= 1
            if self.crash_on_disk == 0:
                next(node for node in self.nodes if node.name == operation.host).crash()

    def _observe_deaf(self, operation: Operation) -> None:
        """A coordinator that hears nothing must know that it may be deaf itself. What it heard
        before counts: a server that was silent long enough by then may be fenced."""
        if operation.kind != "write" or not operation.path.endswith("/fence"):
            return
        deaf_at = self.deaf[operation.process]
        seconds = self.loop.time() - deaf_at
        heard_at = [
            self._heard_at.get((process, operation.process), -SILENCE_SECONDS)
            for process, path in self._fences.items()
            if str(path) == operation.path
        ]
        was_silent = all(deaf_at - at > SILENCE_SECONDS for at in heard_at)
        if seconds > HEARING_SECONDS and not was_silent:
            self.fail(f"{operation.process} fences, and has heard nothing for {seconds:.1f} s")

    def may_cut_power(self) -> bool:
        """Tell if the power may be cut now, which it is then."""
        if self.state_is_being_restored:
            return False
        self.power_was_cut = True
        return True

    def _note_heartbeat(self, server: str, coordinator: str, at: float) -> None:
        pair = server, coordinator
        silent_seconds = at - self._heard_at.get(pair, -SILENCE_SECONDS)
        if silent_seconds > SILENCE_SECONDS - PROBE_TIMEOUT_SECONDS:
            self._silent_until[pair] = at
        self._heard_at[pair] = at

    def _observe_fence(self, operation: Operation) -> None:
        """Who was heard a moment ago, and runs, is healthy, whatever NATS says of who listens."""
        path = Path(operation.path)
        for node in self.servers:
            process = node.process
            if process is None or not node.running or self._fences.get(process.name) != path:
                continue
            pair, now = (process.name, operation.process), self.loop.time()
            silent_seconds = now - self._heard_at.get(pair, -SILENCE_SECONDS)
            heard_seconds = now - self._silent_until.get(pair, now)
            if silent_seconds < SILENCE_SECONDS / 2 and heard_seconds > _FENCE_SECONDS:
                self.fail(f"{process.name} is fenced, heard {silent_seconds:.2f} s ago")

    def thread_seconds(self, host: str) -> float:
        """Return how long a call in a thread takes."""
        typical = self.weather.sync_seconds * (30 if host in self.weather.slow_hosts else 1)
        stopped_seconds = max(0.0, self.storage_stops_until - self.loop.time())
        if self._thread_chance.random() < 0.02:
            return stopped_seconds + typical * 10
        return stopped_seconds + typical * self._thread_chance.uniform(0.3, 1.7)

    def runs_early(self) -> bool:
        """Tell if a call in a thread has its effect at its start rather than at its end."""
        return self._thread_chance.random() < 0.7

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(f"in the loop: {context.get('message')}: {error!r}")


class Node(ABC):
    """A supervised process on a host of its own."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.life = 0
        self.running = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.process: Process | None = None
        self._skew_ms = simulation.skew_ms()
        #: How far the wall clock is ahead besides, for a while.
        self.leap_ms = 0
        #: Its mount goes on showing a fence as it was first read.
        self.mount_lies = False
        self._restart: asyncio.TimerHandle | None = None
        self._ended = False
        #: Calls in threads that have not ended.
        self.thread_count = 0

    def start(self) -> None:
        """Begin the next life, unless this one runs."""
        if self.running or self._ended:
            return
        if self._restart is not None:
            self._restart.cancel()
        simulation = self.simulation
        self.life += 1
        self.process = Process(f"{self.name}-{self.life}")
        self.disk = HostDisk(simulation.files, self.name, self.process.name)
        self.disk.cached = {} if self.mount_lies else None
        self.bus = simulation.network.connect(self.process.name)
        self.running = True
        simulation.trace.add(f"start {self.process.name}")
        self.task = self.process.start(self._live())
        self.tasks.append(self.task)
        self.task.add_done_callback(self._on_end, context=contextvars.Context())

    def kill(self, *, power: bool = False) -> None:
        """Die at once. Without `power` on the host, the bus learns of it only later."""
        if not self.running:
            return
        assert self.process is not None
        self.simulation.trace.add(f"kill {self.process.name} power={power}")
        self.running = False
        self.disk.kill()
        if power:
            self.simulation.cut_off.add(self.bus.name)
            asyncio.get_running_loop().call_later(3.0, self.bus.drop)
        else:
            self.bus.drop()
        self.task.cancel()
        self.process.resume()

    def crash(self) -> None:
        """Die in the middle of a call in a thread. Raises OSError, by which the thread is
        unwound."""
        self.simulation.trace.add(f"crash {self.disk.process}")
        self.disk.kill()
        life, chance = self.life, self.simulation.crash_chance
        power, everybody = chance.random() < 0.3, chance.random() < 0.15
        power |= everybody
        pause_seconds = chance.choice((0.05, 0.5, 3.0))

        def die() -> None:
            nodes = self.simulation.nodes if everybody else [self]
            if self.life != life:
                return
            is_power = power and self.simulation.may_cut_power()
            for node in nodes:
                node.kill(power=is_power)
            if is_power:
                self.simulation.files.power_cut(
                    {node.name for node in nodes}, file_server=everybody
                )
            for node in nodes:
                node.start_later(pause_seconds)

        # The loop stands still as long as a thread runs.
        self.simulation.loop.call_soon(die, context=contextvars.Context())
        raise OSError(errno.EIO, f"process {self.disk.process} has just died")

    def start_later(self, seconds: float) -> None:
        """Begin the next life after a while."""
        loop = asyncio.get_running_loop()
        self._restart = loop.call_later(seconds, self.start, context=contextvars.Context())

    def end(self) -> None:
        """Die and stay dead."""
        self._ended = True
        self.kill()

    @abstractmethod
    async def live(self) -> None:
        """Live one life. Raises what ended it."""

    def now_ms(self) -> int:
        """The wall clock of this host."""
        now_ms = int(self.simulation.loop.time() * 1000)
        return _EPOCH_MS + self._skew_ms + self.leap_ms + now_ms

    def run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Call `function` as if in a thread: it takes a while, during which the loop goes on."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()
        seconds = self.simulation.thread_seconds(self.name)
        if self.simulation.bucket is not None:
            self._run_in_simulated_thread(lambda: function(*arguments), seconds, finished)
        elif self.simulation.runs_early():
            outcome = _outcome(function, arguments)
            loop.call_later(seconds, _settle, finished, outcome)
        else:
            loop.call_later(
                seconds, lambda: _settle(finished, _outcome(function, arguments))
            )
        return finished

    def _run_in_simulated_thread(
        self, function: Callable[[], Any], seconds: float, finished: asyncio.Future[Any]
    ) -> None:
        loop, disk = asyncio.get_running_loop(), self.disk
        ends_at = loop.time() + seconds

        def ended(outcome: Outcome) -> None:
            self.thread_count -= 1
            if disk.dead:
                # Nobody may be left to hear of it.
                finished.cancel()
            elif loop.time() >= ends_at:
                _settle(finished, outcome)
            else:
                loop.call_at(ends_at, _settle, finished, outcome)

        self.thread_count += 1
        thread = SimulatedThread(function, ended, lambda: disk.dead)
        if self.simulation.runs_early():
            thread.advance()
        else:
            loop.call_later(seconds, thread.advance)

    def own_bucket(self) -> Bucket | None:
        """Return the bucket as this life sees it."""
        shared = self.simulation.bucket
        return shared.of(_Caller(self)) if shared is not None else None

    async def _live(self) -> None:
        bus, disk = self.bus, self.disk
        try:
            await self.live()
            self.simulation.trace.add("ended")
        except HoldfastError as error:
            self.simulation.trace.add(f"ended by {type(error).__name__}: {error}")
            if isinstance(error, RequestError) and not disk.dead:
                self.simulation.fail(f"{bus.name} ended by {error!r}")
        except Exception as error:
            if not disk.dead:
                self.simulation.fail(f"{bus.name} ended by {error!r}")
                raise
            self.simulation.trace.add(f"unwound by {error!r}")
        finally:
            disk.kill()
            disk.close()
            await bus.close()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self.tasks.remove(task)
        if not task.cancelled():
            task.exception()
        if task is self.task and self.running:
            self.running = False
            self.start_later(self.simulation.weather.sync_seconds + 0.2)


class ServerNode(Node):
    """A persist server and its supervisor."""

    server: PersistServer | None = None

    async def live(self) -> None:
        simulation = self.simulation
        layout = open_layout(ROOT, self.disk)
        incarnation = simulation.next_incarnation(self)
        simulation.started(self, incarnation)
        self.server = PersistServer(
            self.bus,
            layout,
            self.disk,
            self.name,
            ServerOptions(
                idle_close_seconds=simulation.idle_close_seconds,
                max_open_stores=simulation.max_open_stores,
                tier_policy=simulation.tier_policy,
            ),
            incarnation=incarnation,
            bucket=self.own_bucket(),
            machine=Machine(
                clock_ms=SteadyClock(lambda: self.now_ms() / 1000, simulation.loop.time),
                run_in_thread=self.run_in_thread,
                watch=no_watch,
            ),
        )
        await self.server.run()

    def stop(self) -> None:
        """Ask for a clean end."""
        if self.running and self.server is not None:
            self.server.stop()


class CoordinatorNode(Node):
    """A coordinator, active or standing by, and its supervisor."""

    async def live(self) -> None:
        layout = open_layout(ROOT, self.disk)
        coordinator = Coordinator(
            self.bus,
            Storage(layout, self.disk, bucket=self.own_bucket()),
            clock_ms=self.now_ms,
            standby=True,
            run_blocking=self.run_in_thread,
            new_id=lambda: self.bus.name,
        )
        await coordinator.run()


class ClientNode:
    """An application's process with one client."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.process = Process(name)
        self.tasks: list[asyncio.Task[Any]] = []
        self._simulation = simulation
        self.bus = simulation.network.connect(name)
        self._client: Client | None = None

    async def start(self, timeout_seconds: float) -> Client:
        """Connect; return the client. Call it, and use the client, within the process."""
        entropy = self._simulation.chance(f"client {self.name}")
        link = Link(self.bus, Subjects(), TENANT, timeout_seconds, entropy)
        follower = Follower(link)
        await link.open(follower)
        self._client = Client(link, follower, owns_bus=True)
        return self._client

    def run(self, work: Any) -> asyncio.Task[Any]:
        """Run `work` in this process."""
        task = self.process.start(work)
        self.tasks.append(task)
        return task

    async def stop(self) -> None:
        """Close the client and cancel what still runs."""
        self.process.resume()
        for task in self.tasks:
            task.cancel()
        if self._client is not None:
            await self.run(self._client.close())


class _Caller:
    """One life of a node, to the bucket."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self._node = node
        self._disk = node.disk
        self._simulation = node.simulation

    def trace(self, text: str) -> None:
        self._simulation.trace.add(text)

    def may_crash(self) -> None:
        if self._disk.dead:
            raise OSError(errno.EIO, f"process {self._disk.process} is dead")
        if self._simulation.crash_in_bucket:
            self._simulation.crash_in_bucket -= 1
            if self._simulation.crash_in_bucket == 0:
                self._node.crash()

    def may_stop(self, kind: str, key: str) -> None:
        seconds, process = self._simulation.stop_in_bucket_seconds, self._node.process
        if not seconds or kind != "put" or not key.startswith("manifests/"):
            return
        assert process is not None
        self._simulation.stop_in_bucket_seconds = 0.0
        self.trace(f"stop {process.name}")
        process.pause()
        self.later(seconds, process.resume)

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        self._simulation.loop.call_later(seconds, function, context=contextvars.Context())

    def fail(self, what: str) -> None:
        self._simulation.fail(f"{self._disk.process}: {what}")


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 (whoever awaits it gets it)
        return None, error


def _settle(finished: asyncio.Future[Any], outcome: tuple[Any, Any]) -> None:
    if finished.cancelled():
        return
    result, error = outcome
    if error is not None:
        finished.set_exception(error)
    else:
        finished.set_result(result)


@contextlib.contextmanager
def small_limits(chance: random.Random) -> Iterator[None]:
    """Make limits so small that a short run reaches them."""
    with contextlib.ExitStack() as stack:
        segment_bytes = chance.choice((2048, 16384, LOG_SEGMENT_BYTES))
        stack.enter_context(patch.object(commit_log, "LOG_SEGMENT_BYTES", segment_bytes))
        stack.enter_context(patch.object(checkpointing, "_QUIET_SEGMENTS", chance.choice((1, 4))))
        changes = chance.choice((2, 32, MAX_PENDING_CHANGES))
        stack.enter_context(patch.object(materialising, "MAX_PENDING_CHANGES", changes))
        stack.enter_context(patch.object(materialising, "MAX_PENDING_MESSAGES", changes))
        stack.enter_context(patch.object(freshness, "PROOF_ROUNDS", 2))
        # Neither what is drawn elsewhere nor the time of this machine may show in a trace.
        tokens = SimpleNamespace(token_hex=lambda count: "5a" * count)
        stack.enter_context(patch.object(cluster_id, "secrets", tokens))
        clock = asyncio.get_running_loop().time
        stack.enter_context(patch.object(service, "Turns", lambda server: Turns(server, clock)))
        yield
