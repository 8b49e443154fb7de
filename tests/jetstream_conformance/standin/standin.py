"""The stand-in: starts and ends clusters with gateways as tests start and kill nats-servers.

`running_standin` writes a program named `nats-server` into a folder that goes first on PATH. That
program asks this process over a socket, and becomes the real server. Servers and gateways are
forked off a process that has imported everything: a test that restarts its server allows it about a
second, and one start of Python with all imports takes as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shlex
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.jetstream_conformance.standin.arguments import parse_arguments
from tests.jetstream_conformance.standin.instance import Instance, Ports, Say
from tests.jetstream_conformance.standin.nats_config import ConfigurationError
from tests.jetstream_conformance.standin.plan import Plan, UnsupportedError, plan_of
from tests.support.process import warm_up

_MAX_QUESTION_BYTES: Final = 65_536
#: Below the range that the system gives to outgoing connections.
_FREE_PORTS: Final = range(10_000, 32_768)
_BECOME: Final = "become_nats_server.py"
_END_SECONDS: Final = 20.0


class StandIn:
    """All instances that run or ran. Made by `running_standin`."""

    def __init__(self, folder: Path, nats_server: str, say: Say, *, in_server: bool) -> None:
        #: The persist server is the gateway as well.
        self.in_server = in_server
        self.programs = folder / "bin"
        self.instances: list[Instance] = []
        self.started_count = 0
        #: How long each took from listening to being a JetStream.
        self.ready_seconds: list[float] = []
        self._folder = folder
        self._nats_server = nats_server
        self._say = say
        self._lives: dict[Instance, asyncio.Task[None]] = {}

    def kill(self, part: str) -> int:
        """Kill a part of all that run; return how many there were."""
        return sum(instance.kill(part) for instance in list(self._lives))

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of what ran last."""
        for instance in self.instances:
            for log in instance.folder.glob("*.log"):
                shutil.copy(log, folder / f"{instance.folder.name}-{log.name}")

    async def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Answer all that want to become a nats-server, until cancelled."""
        self.programs.mkdir(parents=True)
        file = self._folder / "socket"
        program = self.programs / "nats-server"
        become = shlex.join(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name(_BECOME)), str(file)]
        )
        program.write_text(f'#!/bin/sh\nexec {become} "$@"\n')
        program.chmod(0o755)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(file))
            listener.listen(64)
            listener.setblocking(False)
            while True:
                asked, _ = await loop.sock_accept(listener)
                tasks.create_task(self._answer(asked, tasks))

    async def _answer(self, asked: socket.socket, tasks: asyncio.TaskGroup) -> None:
        with asked:
            asked.setblocking(True)
            message, descriptors, _flags, _address = await asyncio.to_thread(
                socket.recv_fds, asked, _MAX_QUESTION_BYTES, 1
            )
            question = json.loads(message)
            if "ends" in question:
                await self._end_gateway(question["ends"])
                return
            try:
                answer, passed = await self._command(question, descriptors[0], tasks)
            except (ConfigurationError, UnsupportedError, ValueError, OSError) as error:
                self._say(f"cannot start a nats-server: {error}")
                os.close(descriptors[0])
                answer, passed = {"error": str(error)}, []
            # A test may have killed it meanwhile.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(asked, [json.dumps(answer).encode()], passed)
            for descriptor in passed:
                os.close(descriptor)

    async def _end_gateway(self, pid: int) -> None:
        """End the gateway of the nats-server with this process, which is about to end."""
        for instance in list(self._lives):
            if instance.pid == pid:
                await instance.end_gateway()

    async def _command(
        self, question: dict[str, Any], test_stderr: int, tasks: asyncio.TaskGroup
    ) -> tuple[dict[str, Any], list[int]]:
        """Return what the asking process has to execute, and its new stderr."""
        home = Path(f"/proc/{question['pid']}/cwd").readlink()
        asked = parse_arguments(question["arguments"])
        base = home / Path(asked.config).parent

        def read_file(name: str) -> str:
            return (home / name if name == asked.config else base / name).read_text()

        plan = plan_of(asked, read_file)
        if plan is None:
            os.close(test_stderr)
            arguments = question["arguments"]
            return {"program": self._nats_server, "arguments": arguments, "is_jetstream": False}, []
        await self._make_room(plan)
        self.started_count += 1
        folder = self._folder_of(plan)
        ports = Ports(plan.port if plan.port > 0 else _free_port(), _free_port())
        (folder / "ports").mkdir(parents=True, exist_ok=True)
        file = folder / "nats-server.conf"
        file.write_text(json.dumps(plan.configuration_with(ports.leaf, str(folder / "ports"))))
        log, servers_stderr = os.pipe()
        instance = Instance(
            *(plan, question["pid"], ports, folder, self._say), in_server=self.in_server
        )
        self._lives[instance] = tasks.create_task(self._live(instance, log, test_stderr))
        self.instances.append(instance)
        arguments = ["-c", str(file), "-p", str(ports.client), *plan.arguments.others]
        answer = {"program": self._nats_server, "arguments": arguments, "is_jetstream": True}
        return answer, [servers_stderr]

    async def _live(self, instance: Instance, log: int, test_stderr: int) -> None:
        try:
            await instance.run(log, test_stderr)
        finally:
            del self._lives[instance]
            if instance.ready_seconds:
                self.ready_seconds.append(instance.ready_seconds)

    async def _make_room(self, plan: Plan) -> None:
        """Wait for servers that were killed and had the same store or port, and drop the data of
        those whose store the test has removed."""
        same = [
            life
            for instance, life in self._lives.items()
            if not instance.is_running
            or (plan.store and plan.store == instance.plan.store)
            or (plan.port > 0 and plan.port == instance.plan.port)
        ]
        if same:
            await asyncio.wait(same, timeout=_END_SECONDS)
        for instance in [each for each in self.instances if each not in self._lives]:
            store = instance.plan.store
            if not store or (store != plan.store and not Path(store).exists()):
                self.instances.remove(instance)
                await asyncio.to_thread(shutil.rmtree, instance.folder, ignore_errors=True)

    def _folder_of(self, plan: Plan) -> Path:
        name = Path(plan.store).name if plan.store else f"none-{self.started_count}"
        return self._folder / "stores" / name


@asynccontextmanager
async def running_standin(
    folder: Path, nats_server: str, say: Say, *, in_server: bool = False
) -> AsyncIterator[StandIn]:
    """Run a stand-in around the body: put its `programs` first on PATH. With `in_server` its
    persist servers are the gateways as well."""
    standin = StandIn(folder, nats_server, say, in_server=in_server)
    # The first test must not wait for all imports: it allows a server ten seconds.
    await asyncio.to_thread(warm_up)
    async with asyncio.TaskGroup() as lives:
        serving = lives.create_task(standin.serve(lives))
        try:
            while not (folder / "socket").exists():
                await asyncio.sleep(0)
            yield standin
        finally:
            serving.cancel()
            for life in list(standin._lives.values()):
                life.cancel()


def _free_port() -> int:
    for port in random.sample(_FREE_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("no free port was found")
