"""A supervised cluster of real processes, to be harmed, and its clients.

Each part is started by the command that an operator would type, and started again when it dies.
There are two coordinators, both as standbys: whichever gets the lock is the active one. No process
outlives `running`, also when it is cancelled, and on Linux also when this process is killed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from holdfast.cli.cluster.cluster import _free_port, _wait_for_nats
from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.cluster.part import Part

SERVERS: Final = ("s1", "s2", "s3")
_COORDINATORS: Final = ("c1", "c2")
_ADDRESS: Final = "127.0.0.1"
#: Where the package `tests` lies.
_ROOT: Final = Path(__file__).resolve().parents[2]
_LINE_BYTES: Final = 1024 * 1024


class Parts:
    """The running parts. Made by `running`."""

    def __init__(
        self,
        data: Path,
        servers: Sequence[str] = SERVERS,
        nats_options: Sequence[str] = (),
        user: str = "",
    ) -> None:
        """`user` is `name:password@` of the servers, if nats-server is started with options that
        ask for one."""
        self.data = data
        #: The coordinator that has the lock, as far as its log has told.
        self.active_coordinator: str | None = None
        port = _free_port()
        #: As the parts have it, and where others find it.
        self.nats_url = f"nats://{user}{_ADDRESS}:{port}"
        self.nats_address = f"{_ADDRESS}:{port}"
        logs = data / "logs"
        logs.mkdir(parents=True)
        common = ["--data", str(data / "shared"), "--nats", self.nats_url]
        program = [sys.executable, "-P", "-m", "holdfast.cli"]
        nats = [str(find_nats_server()), "--addr", _ADDRESS, "--port", str(port)]
        # The path tells whose process it is, should anyone wonder.
        nats += ["--pid", str(logs / "nats-server.pid"), *nats_options]

        def part(name: str, command: list[str]) -> Part:
            return Part(name, command, log_file=logs / f"{name}.log", say=self._heard)

        self.nats = part("nats-server", nats)
        self.coordinators = {
            name: part(name, [*program, "coordinator", "--standby", *common])
            for name in _COORDINATORS
        }
        self.servers = {
            name: part(name, [*program, "persist", "--name", name, *common]) for name in servers
        }
        #: How often each part told of an exception that nobody expected.
        self.tracebacks: Counter[str] = Counter()

    @property
    def all(self) -> list[Part]:
        return [self.nats, *self.coordinators.values(), *self.servers.values()]

    async def wait_for_nats(self) -> None:
        """Return once nats-server takes connections. Raises StartTimeoutError."""
        await _wait_for_nats(int(self.nats_url.rpartition(":")[2]))

    async def stop(self) -> None:
        """End all parts, servers first."""
        for part in self.all:
            part.signal(signal.SIGCONT)
        for group in (self.servers.values(), self.coordinators.values(), [self.nats]):
            async with asyncio.TaskGroup() as stopping:
                for part in group:
                    stopping.create_task(part.stop())

    def _heard(self, line: str) -> None:
        name, _, text = line.partition(" | ")
        if "Traceback (most recent call last)" in text:
            self.tracebacks[name] += 1
        if name in self.coordinators:
            if "coordinator.started" in text:
                self.active_coordinator = name
        elif self.active_coordinator is not None and line.startswith(
            f"{self.active_coordinator} ended"
        ):
            self.active_coordinator = None


@asynccontextmanager
async def running(parts: Parts) -> AsyncIterator[Parts]:
    """Run a cluster around the body. Raises what ends a part for good, PartFailedError among it."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts.all:
            tasks.create_task(part.keep_running())
        try:
            yield parts
        finally:
            await parts.stop()


class AnyTask(Protocol):
    """What a client process is started with."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> str: ...

    def to_json(self) -> str: ...


_Task = TypeVar("_Task", bound=AnyTask)


class ClientProcess(Generic[_Task]):
    """A client process, seen from outside: it runs a module with a task as JSON. It says how far it
    is on stdout, as JSON lines, and is told words on stdin."""

    def __init__(self, task: _Task, module: str) -> None:
        self.task = task
        self._module = module
        self.said: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Start it and listen to it until it ends. Raises RuntimeError if it fails."""
        command = [sys.executable, "-m", self._module, self.task.to_json()]
        log = Path(self.task.file).with_suffix(".stderr")
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *tethered(command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                limit=_LINE_BYTES,
                cwd=_ROOT,
            )
        self._process = process
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                self.said.update(json.loads(line))
                self._news.set()
            exit_code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if exit_code != 0:
            reason = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"{self.task.name} failed (exit code {exit_code}): {reason}")

    def tell(self, word: str) -> None:
        """Say a word to it."""
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            process.stdin.write(f"{word}\n".encode())

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def hear(self, word: str) -> None:
        """Wait until it has said `word`."""
        while word not in self.said:
            self._news.clear()
            await self._news.wait()
