"""The servers of durable streams that are measured: an HTTP gateway with a cluster, and the
reference server of the protocol with its files.

with running_gateway(options, folder) as server:
    ... server.port ... server.process.usage() ...
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import (
    BenchCluster,
    BenchProcess,
    ProcessUsage,
    free_port,
    running_cluster,
)

#: Stores stay open during the turns of the other side, as under a continuous load.
_IDLE_CLOSE_SECONDS: Final = 3600
#: It keeps its streams in files and syncs each append before it answers.
_REFERENCE: Final = """
import { pathToFileURL } from "node:url";
const [entry, dataDir, port] = process.argv.slice(1);
const { DurableStreamTestServer } = await import(pathToFileURL(entry).href);
await new DurableStreamTestServer({ dataDir, host: "127.0.0.1", port: Number(port) }).start();
"""
_ENTRY: Final = Path("node_modules/@durable-streams/server/dist/index.js")


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that listens on a port of loopback, and the cluster behind it, if it has one."""

    port: int
    process: BenchProcess
    cluster: BenchCluster | None = None

    def usage(self) -> list[ProcessUsage]:
        """Return the resources of all its processes."""
        behind = {} if self.cluster is None else self.cluster.usage()
        return [self.process.usage(), *behind.values()]


@contextlib.contextmanager
def running_gateway(options: BenchOptions, folder: Path) -> Iterator[HttpServer]:
    """Run a cluster with one persist server and one gateway around the body."""
    arguments = ("--idle-close-seconds", str(_IDLE_CLOSE_SECONDS))
    with running_cluster(options, folder, persist_arguments=arguments) as cluster:
        port = free_port()
        module = "holdfast.gateway.http"
        program = [sys.executable, "-P", "-m", module]
        if options.profile is not None:
            out = options.profile / f"{folder.name}-http"
            program = [sys.executable, "-P", "-m", "holdfast.bench.profiled", str(out), module]
        command = [*program, "--nats", cluster.url, "--http", f"127.0.0.1:{port}"]
        command += ["--log-level", "warning"]
        process = BenchProcess("http", options.tethered(command), folder / "http.log")
        try:
            yield HttpServer(_awaited(process, port), process, cluster)
        finally:
            process.stop()


@contextlib.contextmanager
def running_reference(options: BenchOptions, folder: Path, modules: Path) -> Iterator[HttpServer]:
    """Run the reference server around the body: `modules` has a `node_modules` with it."""
    node = shutil.which("node")
    entry = modules.resolve() / _ENTRY
    data = folder / "data"
    data.mkdir(parents=True)
    port = free_port()
    script = ["--input-type=module", "--eval", _REFERENCE]
    command = [node or "node", *script, str(entry), str(data), str(port)]
    process = BenchProcess("reference", options.tethered(command), folder / "reference.log")
    try:
        yield HttpServer(_awaited(process, port), process)
    finally:
        process.stop()


def has_reference(modules: Path) -> bool:
    """Return whether the reference server is installed there, and Node is found."""
    return shutil.which("node") is not None and (modules / _ENTRY).is_file()


def _awaited(process: BenchProcess, port: int) -> int:
    """Return the port once the process listens there. Raises BenchProcessError."""

    def listening() -> int | None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            return None
        return port

    return process.awaited(listening)
