"""One nats-server that a test has started, with the cluster and the gateway beside it.

The server is no child of this process: `become_nats_server.py`, which the test started, runs it.
When it ends, all else is killed with it, as if they were one; the gateway ends before it, if it was
asked to end. A part that dies by itself, or by a fault that a judge injects, is started again at
once, as `holdfast up` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.jetstream_conformance.standin.parts import PartCommand, commands_of, gateway_part
from tests.jetstream_conformance.standin.plan import Plan
from tests.jetstream_conformance.standin.readiness import until_listening, until_serving
from tests.support.process import Process

Say = Callable[[str], None]
_READY_LINE: Final = b"Server is ready"
_POLL_SECONDS: Final = 0.005
_VARZ: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    b"Connection: close\r\n\r\n{}"
)


class Ports:
    """Where an instance listens."""

    def __init__(self, client: int, leaf: int) -> None:
        self.client = client
        self.leaf = leaf


class Instance:
    """A running nats-server, from the moment when its process may run it. `run` is its life."""

    def __init__(
        self, plan: Plan, pid: int, ports: Ports, folder: Path, say: Say, *, in_server: bool
    ) -> None:
        """With `in_server` the persist server is the gateway as well."""
        self.plan = plan
        self._in_server = in_server
        self._gateway = gateway_part(in_server=in_server)
        self.pid = pid
        self.folder = folder
        self.ready_seconds = 0.0
        self._ports = ports
        self._say = say
        self._descriptor = os.pidfd_open(pid)
        self._parts: dict[str, Process] = {}
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_ending = False

    @property
    def url(self) -> str:
        return f"nats://{self.plan.login}127.0.0.1:{self._ports.client}"

    @property
    def leaf_url(self) -> str:
        return f"nats-leaf://{self.plan.leaf_login}127.0.0.1:{self._ports.leaf}"

    @property
    def is_running(self) -> bool:
        """Whether the nats-server runs. This is asked, because nobody may have told us yet."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self.is_running

    def kill(self, part: str) -> bool:
        """Kill a part, which is then started again. Tell whether there was one to kill."""
        process = self._parts.get(part)
        if process is None or not process.running or not self.is_ready:
            return False
        process.signal(signal.SIGKILL)
        return True

    async def end_gateway(self) -> None:
        """End the gateway as an operator does, for good."""
        self._is_ending = True
        gateway = self._parts.get(self._gateway)
        if gateway is not None and gateway.running:
            gateway.terminate()
            # It may be killed meanwhile, with all else.
            while gateway.running and not self._ended.is_set():
                await asyncio.sleep(_POLL_SECONDS)

    async def run(self, log: int, test_stderr: int) -> None:
        """Start all parts, and return when the nats-server has ended and they have too. `log` is
        the read end of the server's stderr, `test_stderr` where the test wants it."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, self._ended.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._relay_log(log, test_stderr)),
                    tasks.create_task(self._start(tasks)),
                ]
                await self._ended.wait()
                for process in self._parts.values():
                    if process.running:
                        process.signal(signal.SIGKILL)
                for task in running:
                    task.cancel()
        finally:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            for process in self._parts.values():
                process.kill()

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the parts and tell once they are a JetStream."""
        began_at = time.monotonic()
        await until_listening(self._ports.client)
        log = self.folder / f"{self._gateway}.log"
        offset = log.stat().st_size if log.exists() else 0
        commands = commands_of(
            *(self.plan, self.folder, self.url, self.leaf_url), in_server=self._in_server
        )
        for command in commands:
            tasks.create_task(self._keep_running(command))
        try:
            await until_serving(log, offset)
        except TimeoutError:
            self._say(f"not ready in time; its logs are in {self.folder}")
            os.kill(self.pid, signal.SIGKILL)
            return
        self.ready_seconds = time.monotonic() - began_at
        self._ready.set()
        await self._show_ports()
        if self.plan.arguments.http_port:
            await self._serve_varz(self.plan.arguments.http_port)

    async def _keep_running(self, command: PartCommand) -> None:
        loop = asyncio.get_running_loop()
        while not self._ended.is_set():
            process = Process(
                command.module,
                command.arguments,
                self.folder / f"{command.name}.log",
                command.environment,
            )
            self._parts[command.name] = process
            ended = asyncio.Event()
            loop.add_reader(process.sentinel, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(process.sentinel)
            if self._is_ending and command.name == self._gateway:
                return
            if not self._ended.is_set():
                self._say(f"{command.name} ended with {process.poll()}: starting it again")

    async def _serve_varz(self, port: int) -> None:
        """Answer all requests of HTTP until cancelled: tests ask for `/varz` until there is an
        answer."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                if self.is_running:
                    writer.write(_VARZ)
                    await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", port, reuse_address=True):
            await asyncio.Event().wait()

    async def _show_ports(self) -> None:
        """Write the file with the ports where the test looks for it."""
        wanted = self.plan.ports_file_dir
        if wanted:
            found = list((self.folder / "ports").glob("nats-server_*.ports"))
            text = max(found, key=lambda file: file.stat().st_mtime_ns).read_text()
            name = f"nats-server_{self.pid}.ports"
            temporary = Path(wanted, f"{name}.new")
            temporary.write_text(text)
            temporary.replace(Path(wanted, name))

    async def _relay_log(self, log: int, test_stderr: int) -> None:
        """Pass the server's log on, and hold the line back that says that it is ready."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(log, "rb", buffering=0)
        )
        try:
            with (self.folder / "nats-server.log").open("ab", buffering=0) as file:
                while line := await reader.readline():
                    file.write(line)
                    if _READY_LINE in line:
                        await self._ready.wait()
                    await _written(test_stderr, line)
        finally:
            transport.close()
            os.close(test_stderr)


def _written(descriptor: int, line: bytes) -> Awaitable[None]:
    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptor, line)

    # In a thread, because a test that reads no more blocks it.
    return asyncio.to_thread(write)
