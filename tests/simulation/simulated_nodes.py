"""The processes of a simulated cluster: servers and coordinators, each supervised, and clients.

Every node lives in a `Process` of its own, sees the shared files through a `HostDisk` and the bus
through a connection, and dies with both: what a dead process still tries has no effect, and its
tasks are cancelled so that nothing is left behind. A supervisor starts the next life."""

from __future__ import annotations

import asyncio
import contextvars
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.client.connection import Client
from holdfast.client.following.follower import Follower
from holdfast.client.wire.link import Link
from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.persist.lifecycle.steady_clock import SteadyClock
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.persist.shared_disk.fence_watch import no_watch
from holdfast.protocol.access.own_token import OwnToken
from holdfast.protocol.errors import HoldfastError, RequestError
from holdfast.protocol.subjects import Inboxes, Subjects
from holdfast.shared_fs.access.token_source import RegisteredTokens
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.read_ahead.host_cache import HostCache
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_threads import Outcome, SimulatedThread
from tests.simulation.virtual_loop import Process

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation

ROOT: Final = Path("/data")
TENANT: Final = "acme"
#: Some time in 2025: what the simulated wall clocks start from.
EPOCH_MS: Final = 1_750_000_000_000


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
        self.note_clock()

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
        self._end_pipes()
        if power:
            self.simulation.cut_off.add(self.bus.name)
            asyncio.get_running_loop().call_later(3.0, self.bus.drop)
        else:
            self.bus.drop()
        self.task.cancel()
        self.process.resume()

    def _end_pipes(self, process: str = "") -> None:
        if self.simulation.direct is not None:
            self.simulation.direct.died(process or self.bus.name)

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
        return EPOCH_MS + self._skew_ms + self.leap_ms + now_ms

    def note_clock(self) -> None:
        """Note in the history how far this host's clock is behind."""
        history, behind_ms = self.simulation.history, -self._skew_ms - self.leap_ms
        history.clocks_behind_seconds = max(history.clocks_behind_seconds, behind_ms / 1000)

    def run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Call `function` as if in a thread: it takes a while, during which the loop goes on."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()
        seconds = self.simulation.thread_seconds(self.name)
        reads_tokens = isinstance(getattr(function, "__self__", None), RegisteredTokens)
        if self.simulation.bucket is not None or reads_tokens:
            self._run_in_simulated_thread(lambda: function(*arguments), seconds, finished)
        elif self.simulation.runs_early():
            outcome = _outcome(function, arguments)
            loop.call_later(seconds, _settle, finished, outcome)
        else:
            loop.call_later(seconds, lambda: _settle(finished, _outcome(function, arguments)))
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

    async def tokens(self) -> RegisteredTokens | None:
        """Return where this life reads tokens, as it finds out when it starts; None in an open
        cluster. Raises what keeps it from finding out."""
        office = self.simulation.office
        if office is None:
            return None
        tokens = office.view.tokens_of(self.disk)
        assert await self.run_in_thread(tokens.is_set_up), "it takes the cluster for an open one"
        return tokens

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
            self._end_pipes(bus.name)
            await bus.close()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self.tasks.remove(task)
        if not task.cancelled():
            task.exception()
        if task is self.task and self.running:
            self.running = False
            self.start_later(self.simulation.weather.sync_seconds + 0.2)


def memory_of(disk: HostDisk) -> HostCache | None:
    """Return the memory of a host for files, if anything is known of it."""
    return None


class ServerNode(Node):
    """A persist server and its supervisor."""

    server: PersistServer | None = None

    async def live(self) -> None:
        simulation = self.simulation
        layout = open_layout(ROOT, self.disk)
        incarnation = simulation.next_incarnation(self)
        simulation.started(self, incarnation)
        tokens, direct = await self.tokens(), simulation.direct
        self.server = PersistServer(
            self.bus if direct is None else direct.of_server(self),
            layout,
            self.disk,
            self.name,
            ServerOptions(
                idle_close_seconds=simulation.idle_close_seconds,
                max_open_stores=simulation.max_open_stores,
                max_awake_files=simulation.max_awake_files,
                tier_policy=simulation.tier_policy,
                tokens=tokens,
                keys=simulation.keys,
                master_keys=simulation.master_keys,
                roles=simulation.roles[self.name],
            ),
            incarnation=incarnation,
            bucket=self.own_bucket(),
            machine=Machine(
                clock_ms=SteadyClock(lambda: self.now_ms() / 1000, simulation.loop.time),
                run_in_thread=self.run_in_thread,
                watch=no_watch,
                host_cache=memory_of(self.disk),
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
            Storage(layout, self.disk, bucket=self.own_bucket(), tokens=await self.tokens()),
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
        office = simulation.office
        #: What it shows in a cluster that asks for tokens.
        self.badge = office.badge_of(self) if office is not None else None
        permits = office.permits_of(self.badge) if office is not None and self.badge else None
        self.bus = simulation.network.connect(name, permits)
        self._client: Client | None = None

    async def start(self, timeout_seconds: float) -> Client:
        """Connect; return the client. Call it, and use the client, within the process."""
        entropy = self._simulation.chance(f"client {self.name}")
        subjects, token = Subjects(), None
        if self.badge is not None:
            token = OwnToken(self.badge.present)
            subjects = Subjects(grant=token.id)
            token.on_renewed = lambda: self._move_inboxes(token)
            self._move_inboxes(token)
        link = Link(self.bus, subjects, TENANT, timeout_seconds, entropy, token=token)
        follower = Follower(link)
        await link.open(follower)
        self._client = Client(link, follower, owns_bus=True)
        return self._client

    def _move_inboxes(self, token: OwnToken) -> None:
        self.bus.move_inboxes(token.inboxes(Inboxes(tenant=TENANT)))

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
