"""A small cluster on simulated disks whose power is cut at one chosen change of a file.

A coordinator and persist servers, the shipped ones, each on a host of its own, in one event loop
with virtual time, over the bus in memory. Every change of a file, SQLite's included, is an event: a
write, truncation, sync, creation, rename or removal. `arm` counts them from there on, and at the
chosen one the power goes *before* the event takes place, so number n + 1 is the cut right after
event n. What a thread does elsewhere is done at one moment here, and the loop goes on before and
after it.

Kept: a dead process has no effect, and what a live one logs as an error is noted in `errors`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.persist.shared_disk.fence_watch import no_watch
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import FencedError
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_files import Operation, SimulatedFileSystem, Survival
from tests.simulation.virtual_loop import Process, current_process, process_of

ROOT: Final = Path("/data")
LAYOUT: Final = Layout(ROOT)
COORDINATOR: Final = "c1"
#: What changes nothing on a disk.
_HARMLESS: Final = frozenset({"read", "lock"})
_EPOCH_MS: Final = 1_750_000_000_000
_THREAD_SECONDS: Final = 0.002
_RESTART_SECONDS: Final = 0.2
_UNWIND_SECONDS: Final = 60.0


class Scope(StrEnum):
    """Who loses power."""

    #: The host whose event it is.
    HOST = "host"
    #: Every host and the file server.
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut before event `at`, counted from 1, and what it leaves."""

    at: int
    survival: Survival
    scope: Scope = Scope.ALL
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cut that prints as `text`. Raises ValueError."""
        at, survival, scope, seed = text.split("/")
        return cls(int(at), Survival(survival), Scope(scope), int(seed))

    def __str__(self) -> str:
        return f"{self.at}/{self.survival}/{self.scope}/{self.seed}"


class Life:
    """One process, from its start to its death."""

    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        self.name = name
        self.incarnation = f"{number:04d}{name}"
        self.process = Process(f"{name}-{number}")
        self.disk = HostDisk(cluster.files, name, self.process.name)
        self.bus = cluster.network.connect(self.process.name)
        self.part: PersistServer | Coordinator | None = None
        self.stopping = False
        self.killed = False
        self._loop = asyncio.get_running_loop()
        self.task = self.process.start(self._live(cluster))

    def die(self) -> None:
        """End without another word or effect. May be called from within its own operation."""
        if not self.disk.dead:
            self.killed = True
            self.disk.kill()
            self.bus.drop()
            self._loop.call_soon(self._unwind)

    def stop(self) -> None:
        """Ask for a clean end."""
        self.stopping = True
        if self.part is not None:
            self.part.stop()

    def _unwind(self) -> None:
        self.process.resume()
        self.task.cancel()

    async def _live(self, cluster: Cluster) -> None:
        try:
            self.part = cluster.make_part(self)
            await self.part.run()
        finally:
            self.disk.kill()
            self.disk.close()
            await self.bus.close()


class Cluster:
    """All of it. Use it as `async with`, in a VirtualLoop."""

    def __init__(self, names: tuple[str, ...], *, idle_close_seconds: float) -> None:
        self.names = names
        self.idle_close_seconds = idle_close_seconds
        self._chance = random.Random(0)
        self.files = SimulatedFileSystem(self._chance, self._observe)
        self.network = MemoryNetwork()
        self.lives: dict[str, Life] = {}
        self._by_process: dict[str, Life] = {}
        self._cut: Cut | None = None
        self._armed = False
        #: Events since `arm`, and what they were when `keep_events` is set.
        self.event_count = 0
        self.events: list[str] = []
        self.powered_off = asyncio.Event()
        #: What a live process logged at level ERROR or beyond, or ended with.
        self.errors: list[str] = []
        self._thread_count = 0
        self._log = _Log(self)

    async def __aenter__(self) -> Self:
        logger = logging.getLogger("holdfast")
        self._log_state = (logger.level, logger.propagate)
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(self._log)
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        return self

    async def __aexit__(self, *_: object) -> None:
        lives = list(self._by_process.values())
        for life in lives:
            life.die()
        await self._unwound(lives)
        logger = logging.getLogger("holdfast")
        logger.removeHandler(self._log)
        logger.level, logger.propagate = self._log_state

    # Processes
    def make_part(self, life: Life) -> PersistServer | Coordinator:
        """Return what a process is to run."""
        layout = open_layout(ROOT, life.disk)
        if life.name == COORDINATOR:
            return Coordinator(
                life.bus,
                Storage(layout, life.disk),
                clock_ms=self.now_ms,
                run_blocking=self.run_in_thread,
            )
        return PersistServer(
            life.bus,
            layout,
            life.disk,
            life.name,
            ServerOptions(idle_close_seconds=self.idle_close_seconds),
            incarnation=life.incarnation,
            machine=self.machine(),
        )

    def machine(self) -> Machine:
        """Return what a server takes from its machine."""
        return Machine(
            clock_ms=self.now_ms,
            run_in_thread=self.run_in_thread,
            watch=no_watch,
            host_cache=None,
        )

    def start(self, *names: str) -> None:
        """Start what is not running; without names, everything."""
        for name in names or self.names:
            life = self.lives.get(name)
            if life is not None and not life.disk.dead:
                continue
            number = sum(each.name == name for each in self._by_process.values()) + 1
            life = self.lives[name] = Life(self, name, number)
            self._by_process[life.process.name] = life
            life.task.add_done_callback(lambda task, ended=life: self._on_end(ended, task))

    def kill(self, name: str) -> None:
        """End a process; its host goes on."""
        self.lives[name].die()

    def resume(self) -> None:
        """Let paused processes go on."""
        for life in self.lives.values():
            life.process.resume()

    async def stop(self, *names: str) -> None:
        """Stop processes cleanly."""
        lives = [self.lives[name] for name in names]
        for life in lives:
            life.stop()
        await asyncio.wait([life.task for life in lives])

    async def stopped(self) -> None:
        """Return once those that were asked to stop have."""
        tasks = [life.task for life in self.lives.values() if life.stopping]
        if tasks:
            await asyncio.wait(tasks)

    async def unwind(self) -> None:
        """Return once the tasks of dead processes have ended."""
        await self._unwound([life for life in self._by_process.values() if life.disk.dead])

    def disk_of_nobody(self) -> HostDisk:
        """Return a way to the files for whoever only looks."""
        return HostDisk(self.files, "onlooker", "onlooker")

    def now_ms(self) -> int:
        return _EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Call `function` now or a little later, in turns; the loop goes on before its result is
        there."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()
        self._thread_count += 1
        if self._thread_count % 2:
            outcome = _outcome(function, arguments)
            loop.call_later(_THREAD_SECONDS, lambda: _settle(finished, outcome))
        else:
            loop.call_later(
                _THREAD_SECONDS, lambda: _settle(finished, _outcome(function, arguments))
            )
        return finished

    # Power
    def arm(self, cut: Cut | None) -> None:
        """Count events from here on, and cut the power as `cut` says."""
        self._cut = cut
        self.event_count = 0
        self.events.clear()
        self.powered_off.clear()
        self._armed = True
        if cut is not None:
            self._chance.seed(f"{cut.seed}/{cut.at}")

    def disarm(self) -> None:
        """Let nothing happen any more; a cut that has not happened happens now."""
        if self._armed and self._cut is not None:
            self._cut_power(self._cut, set(self.names))
        self._armed = False

    def cut_power(self, survival: Survival, *hosts: str) -> None:
        """Cut the power of these hosts now; without any, of all hosts and the file server."""
        for life in self.lives.values():
            if not hosts or life.name in hosts:
                life.die()
        self.files.power_cut(set(hosts or self.names), file_server=not hosts, survival=survival)

    def _observe(self, operation: Operation) -> None:
        if not self._armed or operation.kind in _HARMLESS or operation.host not in self.lives:
            return
        self.event_count += 1
        self.events.append(f"{operation.process} {operation.kind} {operation.path}")
        if self._cut is not None and self.event_count == self._cut.at:
            self._cut_power(self._cut, {operation.host})
            raise OSError(errno.EIO, "the power is gone")

    def _cut_power(self, cut: Cut, hosts: set[str]) -> None:
        self._armed = False
        everything = cut.scope is Scope.ALL or hosts == set(self.names)
        self.cut_power(cut.survival, *(() if everything else sorted(hosts)))
        self.powered_off.set()

    # What goes wrong
    def speaks(self, process: Process | None) -> bool:
        """Tell if what is logged in `process` counts."""
        life = self._by_process.get(process.name) if process is not None else None
        return life is None or not life.disk.dead

    def _on_end(self, life: Life, task: asyncio.Task[None]) -> None:
        if life.killed:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, FencedError):
            self.errors.append(f"{life.process.name} ended by {error!r}")
        if not life.stopping:
            asyncio.get_running_loop().call_later(_RESTART_SECONDS, self.start, life.name)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.speaks(process_of(context)):
            return
        error = context.get("exception")
        self.errors.append(f"in the loop: {context.get('message')}: {error!r}")

    async def _unwound(self, lives: list[Life]) -> None:
        tasks = [life.task for life in lives if not life.task.done()]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_UNWIND_SECONDS)
            assert not left, f"tasks of dead processes do not end: {left}"


_Outcome = tuple[Any, Exception | None]


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Outcome:
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 (whoever awaits it gets it)
        return None, error


def _settle(finished: asyncio.Future[Any], outcome: _Outcome) -> None:
    result, error = outcome
    if finished.done():
        return
    if error is not None:
        finished.set_exception(error)
    else:
        finished.set_result(result)


class _Log(logging.Handler):
    """Notes the errors of processes that live."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(logging.ERROR)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        if self._cluster.speaks(current_process()):
            self._cluster.errors.append(record.getMessage())
