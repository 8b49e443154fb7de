"""The processes that a benchmark measures: nats-server with or without JetStream, and clusters of
holdfast. They are started on free ports of loopback, and ended by their handles.

with running_nats(options, folder, jetstream=JetStreamSync.ALWAYS) as nats:
    ... nats.url ... nats.usage() ...
with running_cluster(options, folder, servers=2) as cluster:
    ... cluster.url ... cluster.usage() ... cluster.stop("s1"); cluster.start_persist("s1") ...

Each process has a log file in its folder. Nothing is restarted automatically: a process that dies
fails the benchmark at the next `check`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from holdfast.bench.options import BenchOptions
from holdfast.protocol.bus.nats_server_process import (
    nats_server_command,
    nats_server_environment,
    usable_cores,
)
from holdfast.protocol.errors import HoldfastError

_START_SECONDS: Final = 60.0
#: Long, because a server with very many stores stops slowly.
_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.005
_LOG_TAIL_CHARACTERS: Final = 500

#: With the complement of a process's id above it, Linux's clock of that process's processor time
#: (clock_getcpuclockid(3)). It counts nanoseconds; /proc/<pid>/stat counts 10 ms.
_PROCESS_CLOCK: Final = 2

#: Below the range that systems give to outgoing connections (Linux: from 32768), which could take a
#: port before the process listens on it.
_FREE_PORTS: Final = range(10_000, 32_768)

T = TypeVar("T")


class BenchProcessError(HoldfastError):
    """A process that is measured did not start, or ended by itself."""

    code = "bench_process_failed"
    template = "{process} failed: {reason}"


class JetStreamSync(StrEnum):
    """When JetStream syncs."""

    #: Every two minutes.
    DEFAULT = "default"
    #: Before each ack.
    ALWAYS = "always"


class ProcessUsage(NamedTuple):
    """The resources of a process: CPU time since its start, and memory now."""

    cpu_seconds: float
    rss_bytes: int
    peak_rss_bytes: int


class BenchProcess:
    """One process under measurement. `environment` is added to that of this process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            # A session of its own: Ctrl-C reaches only the benchmark, which then ends its
            # processes.
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def check(self) -> None:
        """Raise BenchProcessError if the process has ended."""
        if not self.running:
            raise self.failure(f"exit code {self._popen.returncode}")

    def awaited(self, look: Callable[[], T | None], timeout_seconds: float = _START_SECONDS) -> T:
        """Call `look` until it returns something: the sign that the process has started. Raises
        BenchProcessError if the process has ended, or takes too long."""
        give_up_at = time.monotonic() + timeout_seconds
        while (found := look()) is None:
            self.check()
            if time.monotonic() > give_up_at:
                raise self.failure("took no connections")
            time.sleep(_POLL_SECONDS)
        return found

    def usage(self) -> ProcessUsage:
        """Return its CPU time and memory; Linux only. Raises BenchProcessError if it has ended."""
        self.check()
        return usage_of(self.pid)

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait; kill it if that takes too long."""
        if self.running:
            self._popen.terminate()
        try:
            self._popen.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._popen.kill()
        self._popen.wait()

    def failure(self, reason: str) -> BenchProcessError:
        """Return an error with `reason` and the last output of the process."""
        said = self._log_file.read_text(errors="replace").strip()[-_LOG_TAIL_CHARACTERS:]
        return BenchProcessError(process=self.name, reason=f"{reason}: {said}")


def usage_of(pid: int) -> ProcessUsage:
    """Return what a process uses, from /proc. Raises OSError if there is no such process."""
    status = dict(
        line.partition(":")[::2] for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return ProcessUsage(
        cpu_seconds=time.clock_gettime(~pid << 3 | _PROCESS_CLOCK),
        rss_bytes=_kib(status["VmRSS"]) * 1024,
        peak_rss_bytes=_kib(status["VmHWM"]) * 1024,
    )


class NatsServer:
    """A nats-server. Made by `running_nats`. It keeps its port and its files when it is
    started again."""

    def __init__(
        self, options: BenchOptions, folder: Path, jetstream: JetStreamSync | None, leaf_port: int
    ) -> None:
        self.port = free_port()
        #: Where it listens for leafnodes; 0 if it does not.
        self.leaf_port = leaf_port
        self._process: BenchProcess | None = None
        self._options = options
        self._folder = folder
        self._jetstream = jetstream

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def store_folder(self) -> Path:
        """The folder of JetStream's files."""
        return self._folder / "jetstream"

    @property
    def process(self) -> BenchProcess:
        assert self._process is not None, "nats-server was not started"
        return self._process

    def start(self, timeout_seconds: float = _START_SECONDS) -> None:
        """Start it. Return once it accepts connections. Raises BenchProcessError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        configuration = self._folder / "nats.conf"
        configuration.write_text(self._configuration())
        command = [str(self._options.nats_server), "--config", str(configuration)]
        log_file = self._folder / "nats-server.log"
        environment: Mapping[str, str] = {}
        if self._jetstream is None:
            # As `holdfast up` does. JetStream's are as they come: most of its works would be slower
            # (docs/decisions/115).
            cores = usable_cores()
            environment = nats_server_environment(os.environ, cores)
            command = nats_server_command(command, os.environ, cores)
        self._process = BenchProcess(
            "nats-server", self._options.tethered(command), log_file, environment
        )
        self._process.awaited(self._listens, timeout_seconds)

    def stop(self) -> None:
        """End it, if it was started. It can be started again."""
        if self._process is not None:
            self._process.stop()

    def usage(self) -> dict[str, ProcessUsage]:
        return {self.process.name: self.process.usage()}

    def _configuration(self) -> str:
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            f"ports_file_dir: {json.dumps(str(self._folder))}",
        ]
        if self.leaf_port:
            lines.append(f'leafnodes {{ listen: "127.0.0.1:{self.leaf_port}" }}')
        if self._jetstream is not None:
            lines += ["jetstream {", f"  store_dir: {json.dumps(str(self.store_folder))}"]
            if self._jetstream is JetStreamSync.ALWAYS:
                lines.append("  sync_interval: always")
            lines.append("}")
        return "\n".join([*lines, ""])

    def _listens(self) -> Literal[True] | None:
        # The process writes it when it listens: another server that has the port does not.
        if not (self._folder / f"nats-server_{self.process.pid}.ports").exists():
            return None
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return None
        return True


@contextlib.contextmanager
def running_nats(
    options: BenchOptions,
    folder: Path,
    jetstream: JetStreamSync | None = None,
    *,
    leaf_port: int = 0,
) -> Iterator[NatsServer]:
    """Run a nats-server around the body, with all its files in `folder`."""
    server = NatsServer(options, folder, jetstream, leaf_port)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class BenchCluster:
    """A coordinator and persist servers around a nats-server. Made by `running_cluster`.

    `start_*` returns before the process is ready: a client waits for it with its first operation.
    """

    def __init__(self, options: BenchOptions, folder: Path, nats: NatsServer) -> None:
        self.nats = nats
        #: The shared file system.
        self.data = folder / "shared"
        #: The running processes by name: `coordinator`, `s1`, `s2`, ...
        self.processes: dict[str, BenchProcess] = {}
        self._options = options
        self._folder = folder
        self._start_count = 0
        self._persist_arguments: dict[str, Sequence[str]] = {}

    @property
    def url(self) -> str:
        return self.nats.url

    def start_coordinator(self, *arguments: str) -> BenchProcess:
        return self._start("coordinator", "holdfast.coordinator", [*self._of_data, *arguments])

    def start_persist(self, name: str, *arguments: str) -> BenchProcess:
        self._persist_arguments[name] = arguments
        return self._start(name, "holdfast.persist", [*self._of_data, "--name", name, *arguments])

    def start_gateway(self, leaf_url: str, *arguments: str) -> BenchProcess:
        """Start a JetStream gateway, if its nats-server listens for leafnodes."""
        leafnodes = ["--leafnodes", leaf_url]
        return self._start("gateway", "holdfast.gateway.jetstream", [*leafnodes, *arguments])

    def start_persist_with_gateway(
        self, name: str, leaf_url: str, *arguments: str
    ) -> BenchProcess:
        """Start a persist server that is a JetStream gateway as well."""
        gateway = ["--jetstream", "--leafnodes", leaf_url]
        of_server = [*self._of_data, "--name", name, *arguments]
        return self._start(name, "holdfast.cli", [*gateway, *of_server], command="persist")

    def restart_persist(self, name: str) -> BenchProcess:
        """End a persist server cleanly, and start it again with the same arguments."""
        self.stop(name)
        return self.start_persist(name, *self._persist_arguments[name])

    def stop(self, name: str) -> None:
        """End a process cleanly. It can be started again."""
        self.processes.pop(name).stop()

    def kill(self, name: str) -> None:
        """End a process as a crash would. It can be started again."""
        self.processes.pop(name).kill()

    def stop_all(self) -> None:
        """End the gateway, the persist servers, then the coordinator."""
        order = {"coordinator": 0, "gateway": 2}
        with contextlib.ExitStack() as last_first:
            for name in sorted(self.processes, key=lambda name: order.get(name, 1)):
                last_first.callback(self.stop, name)

    def check(self) -> None:
        """Raise BenchProcessError if one of the processes has ended."""
        for process in (self.nats.process, *self.processes.values()):
            process.check()

    def usage(self) -> Mapping[str, ProcessUsage]:
        """Return the resources of each process, including nats-server."""
        own = {name: process.usage() for name, process in self.processes.items()}
        return self.nats.usage() | own

    @property
    def _of_data(self) -> Sequence[str]:
        return ("--data", str(self.data))

    def _start(
        self, name: str, module: str, arguments: Sequence[str], command: str = ""
    ) -> BenchProcess:
        assert name not in self.processes, f"{name} runs"
        self._start_count += 1
        program = [sys.executable, "-P", "-m", module]
        if self._options.profile is not None:
            out = self._options.profile / f"{self._folder.name}-{name}-{self._start_count}"
            program = [sys.executable, "-P", "-m", "holdfast.bench.profiled", str(out), module]
        if command:
            program.append(command)
        whole = [*program, "--nats", self.url, "--log-level", "warning", *arguments]
        log_file = self._folder / f"{name}.log"
        process = BenchProcess(name, self._options.tethered(whole), log_file)
        self.processes[name] = process
        return process


@contextlib.contextmanager
def running_cluster(
    options: BenchOptions,
    folder: Path,
    servers: int = 1,
    persist_arguments: Sequence[str] = (),
    *,
    leaf_port: int = 0,
) -> Iterator[BenchCluster]:
    """Run a cluster around the body, with all its files in `folder`: nats-server, a coordinator and
    the persist servers `s1`, `s2`, ..."""
    with stopped_cluster(options, folder, leaf_port=leaf_port) as cluster:
        cluster.start_coordinator()
        for number in range(1, servers + 1):
            cluster.start_persist(f"s{number}", *persist_arguments)
        yield cluster


@contextlib.contextmanager
def stopped_cluster(
    options: BenchOptions, folder: Path, *, leaf_port: int = 0
) -> Iterator[BenchCluster]:
    """Run a nats-server around the body, and end all parts of the cluster that the body
    has started."""
    with running_nats(options, folder / "nats", leaf_port=leaf_port) as nats:
        cluster = BenchCluster(options, folder, nats)
        try:
            yield cluster
        finally:
            cluster.stop_all()


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    for port in random.sample(_FREE_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("no free port was found")


def _kib(text: str) -> int:
    return int(text.split()[0])
