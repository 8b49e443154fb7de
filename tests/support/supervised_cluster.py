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

from holdfast.cli.cluster.cluster import _wait_for_nats
from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.cluster.part import Part
from holdfast.cli.cluster.ports import free_port

SERVERS: Final = ("s1", "s2", "s3")
#: The command `holdfast`.
PROGRAM: Final = (sys.executable, "-P", "-m", "holdfast.cli")
_COORDINATORS: Final = ("c1", "c2")
_ADDRESS: Final = "127.0.0.1"
#: Where the package `tests` lies.
_ROOT: Final = Path(__file__).resolve().parents[2]
_LINE_BYTES: Final = 1024 * 1024
#: Each of the three groups of parts has ten seconds, and is then killed.
_STOP_SECONDS: Final = 60.0


class SupervisedParts:
    """The running parts, wherever they run. `running` runs them."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.logs = data / "logs"
        self.logs.mkdir(parents=True)
        self.nats_servers: dict[str, Part] = {}
        self.auth_services: dict[str, Part] = {}
        self.coordinators: dict[str, Part] = {}
        self.servers: dict[str, Part] = {}
        #: Where this process and its clients find NATS.
        self.nats_url = ""
        #: The coordinator that has the lock, as far as its log has told.
        self.active_coordinator: str | None = None
        #: How often each part told of an exception that nobody expected.
        self.tracebacks: Counter[str] = Counter()

    @property
    def all(self) -> list[Part]:
        groups = (self.nats_servers, self.auth_services, self.coordinators, self.servers)
        return [part for group in groups for part in group.values()]

    async def wait_for_nats(self) -> None:
        """Return once NATS takes connections. Raises StartTimeoutError."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End all parts, servers first."""
        for part in self.all:
            part.signal(signal.SIGCONT)
        for group in (self.servers, self.coordinators, self.auth_services, self.nats_servers):
            async with asyncio.TaskGroup() as stopping:
                for part in group.values():
                    stopping.create_task(part.stop())

    def part(self, name: str, command: Sequence[str]) -> Part:
        """Return a part to be run; what it says is heard."""
        log_file = self.logs / f"{name}.log"
        # Not with `--nats`, because the URL may have a password.
        environment = {"HOLDFAST_NATS": self.nats_url} if self.nats_url else {}
        return Part(name, command, log_file=log_file, say=self._heard, environment=environment)

    def heard(self, name: str, text: str) -> None:
        """Take note of a line that a part has logged."""
        if "Traceback (most recent call last)" in text:
            self.tracebacks[name] += 1
        if name in self.coordinators and "coordinator.started" in text:
            self.active_coordinator = name

    def _heard(self, line: str) -> None:
        name, _, text = line.partition(" | ")
        if text:
            self.heard(name, text)
        elif self.active_coordinator is not None and line.startswith(
            f"{self.active_coordinator} ended"
        ):
            self.active_coordinator = None


class Parts(SupervisedParts):
    """All on loopback, with one nats-server, and with tokens one auth service."""

    def __init__(
        self,
        data: Path,
        servers: Sequence[str] = SERVERS,
        nats_options: Sequence[str] = (),
        user: str = "",
        servers_nkey: Path | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """`user` is `name:password@` of the servers, if nats-server is started with options that
        ask for one. With `servers_nkey`, the nkey of servers, there is an auth service too."""
        super().__init__(data)
        port = free_port()
        #: As the parts have it, and where others find it.
        self.nats_url = f"nats://{user}{_ADDRESS}:{port}"
        self.nats_address = f"{_ADDRESS}:{port}"
        common = ["--data", str(data / "shared")]
        nats = [str(find_nats_server()), "--addr", _ADDRESS, "--port", str(port)]
        # The path tells whose process it is, should anyone wonder.
        nats += ["--pid", str(self.logs / "nats-server.pid"), *nats_options]
        self.nats = self.part("nats-server", nats)
        self.nats_servers[self.nats.name] = self.nats
        if servers_nkey is not None:
            self.auth_services["auth"] = self.part("auth", [*program, "auth", "serve", *common])
            common += ["--nats-nkey", str(servers_nkey)]
        for name in _COORDINATORS:
            self.coordinators[name] = self.part(
                name, [*program, "coordinator", "--standby", *common]
            )
        for name in servers:
            self.servers[name] = self.part(name, [*program, "persist", "--name", name, *common])

    async def wait_for_nats(self) -> None:
        await _wait_for_nats(int(self.nats_url.rpartition(":")[2]))


_Parts = TypeVar("_Parts", bound=SupervisedParts)


@asynccontextmanager
async def running(parts: _Parts) -> AsyncIterator[_Parts]:
    """Run a cluster around the body. Raises what ends a part for good, PartFailedError among it."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts.all:
            tasks.create_task(part.keep_running())
        try:
            yield parts
        finally:
            async with asyncio.timeout(_STOP_SECONDS):
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

    def __init__(self, task: _Task, module: str, prefix: Sequence[str] = ()) -> None:
        """`prefix` is what its command begins with, such as `nsenter` and its options."""
        self.task = task
        self._prefix = prefix
        self._module = module
        self.said: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Start it and listen to it until it ends. Raises RuntimeError if it fails."""
        command = [*self._prefix, sys.executable, "-m", self._module, self.task.to_json()]
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
