"""A real nats-server for tests: on loopback, on a free port, ended by the process that started it.

with running_nats_server(tmp_path) as server:
    ... server.url ...
    server.kill()      # as a crash
    server.restart()   # on the same port

with running_nats_cluster(tmp_path, 3) as (one, other, third):
    ...

async with running_divisible_cluster(tmp_path, 3) as cluster:
    cluster.close_route(0, 1)
    cluster.split({0}, {1, 2})
    cluster.heal()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.cli.cluster.ports import free_port
from tests.support.stalling_proxy import StallingProxy, stalling_proxy

_DEADLINE_SECONDS = 15.0


def nats_server_binary() -> str:
    """Return the nats-server of HOLDFAST_TEST_NATS_SERVER, beside the interpreter or on PATH; skips
    the test without one."""
    if chosen := os.environ.get("HOLDFAST_TEST_NATS_SERVER"):
        return chosen
    beside = Path(sys.prefix) / "bin" / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        pytest.skip("needs nats-server: the extra embedded")
    return found


class NatsServer:
    """One nats-server process at a time, always on the port of the first."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        #: Kept while it restarts: the system gives ports of this range to nobody.
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return once it takes connections."""
        assert self._process is None
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "nats-server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    nats_server_binary(),
                    *("-a", "127.0.0.1", "-p", str(self.port)),
                    *("--ports_file_dir", str(self._directory)),
                    *self._options,
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"nats-server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(kill=True)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end(kill=False)

    def restart(self) -> None:
        """Kill it if it runs, and start it again on the same port."""
        self.kill()
        self.start()

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _listens(self) -> bool:
        assert self._process is not None
        # This one writes it when it listens: another server that has the port does not.
        if not (self._directory / f"nats-server_{self._process.pid}.ports").exists():
            return False
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def running_nats_server(directory: Path, *options: str) -> Iterator[NatsServer]:
    """Run a nats-server whose files lie in `directory`; `options` go to its command line."""
    server = NatsServer(directory / "nats", *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_nats_cluster(directory: Path, count: int, *options: str) -> Iterator[list[NatsServer]]:
    """Run a NATS cluster whose servers all have routes to each other."""
    routes = [f"nats://127.0.0.1:{port}" for port in _free_ports(count)]
    with contextlib.ExitStack() as running:
        yield [
            running.enter_context(
                running_nats_server(
                    directory / f"node{number}",
                    *("--cluster_name", "test", "--cluster", own, "--routes", ",".join(routes)),
                    *options,
                )
            )
            for number, own in enumerate(routes)
        ]


class DivisibleCluster:
    """A NATS cluster whose routes can be closed. NATS passes a message over one route at most, so
    two nodes without a route do not hear each other, also if a third one hears both."""

    def __init__(
        self, nodes: list[NatsServer], proxies: Mapping[tuple[int, int], StallingProxy]
    ) -> None:
        self.nodes = nodes
        #: By the node that opens a connection, and the node that it leads to.
        self._proxies = proxies

    def close_route(self, one: int, other: int) -> None:
        """Close the route between two nodes, and keep it closed until `heal`."""
        self._proxies[one, other].refuse()
        self._proxies[other, one].refuse()

    def split(self, one_side: Collection[int], other_side: Collection[int]) -> None:
        """Close all routes between two sides."""
        for one in one_side:
            for other in other_side:
                self.close_route(one, other)

    def heal(self) -> None:
        """Let routes be opened again; NATS tries every second."""
        for proxy in self._proxies.values():
            proxy.heal()


@contextlib.asynccontextmanager
async def running_divisible_cluster(
    directory: Path, count: int, *options: str
) -> AsyncIterator[DivisibleCluster]:
    """Run a NATS cluster whose routes all pass through proxies of this process."""
    ports = _free_ports(count)
    async with contextlib.AsyncExitStack() as running:
        proxies = {
            (one, other): await running.enter_async_context(stalling_proxy(ports[other]))
            for one in range(count)
            for other in range(count)
            if one != other
        }
        nodes = [
            # In a thread, so that the proxies pass on what the first ones say meanwhile.
            await asyncio.to_thread(
                running.enter_context,
                running_nats_server(
                    directory / f"node{number}",
                    *("--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{port}"),
                    # Nodes tell each other where they are found: here is nobody, so that they
                    # come by the proxies alone.
                    *("--cluster_advertise", "127.0.0.1:1"),
                    "--routes",
                    ",".join(proxy.url for (one, _), proxy in proxies.items() if one == number),
                    *options,
                ),
            )
            for number, port in enumerate(ports)
        ]
        yield DivisibleCluster(nodes, proxies)


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
