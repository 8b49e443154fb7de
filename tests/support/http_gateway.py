"""HTTP gateways as processes, and requests to them."""

from __future__ import annotations

import http.client
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

DEADLINE_SECONDS = 60.0
_LISTENING = re.compile(rb"gateway\.listening url=https?://[^ ]+:(\d+)")


class HttpAnswer(NamedTuple):
    """An answer. The names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class RunningGateway:
    """A gateway that listens."""

    process: subprocess.Popen[bytes]
    port: int

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> HttpAnswer:
        """Send one request; `Content_Type` stands for the header Content-Type."""
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        return self.request(method, path, body, names)

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """Send one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            connection.request(method, path, body, dict(headers))
            found = connection.getresponse()
            named = {name.lower(): text for name, text in found.getheaders()}
            return HttpAnswer(found.status, named, found.read())
        finally:
            connection.close()

    def raw(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes until the gateway closes the connection."""
        with self.connected() as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: connection.recv(65536), b""))
            except OSError:
                return b""

    def connected(self) -> socket.socket:
        """Return a connection."""
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_SECONDS)

    @contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[dict[str, str]]]:
        """Follow server-sent events: each as its fields."""
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            connection.request("GET", path, headers=names)
            found = connection.getresponse()
            assert found.status == 200, found.read()
            yield _events(found)
        finally:
            connection.close()

    def kill(self) -> None:
        """End it with SIGKILL."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_SECONDS)


def _events(answer: Any) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in iter(answer.readline, b""):
        text = line.decode().rstrip("\n")
        if not text and fields:
            yield fields
            fields = {}
        elif text and not text.startswith(":"):
            name, _, rest = text.partition(":")
            joined = f"{fields[name]}\n{rest}" if name in fields else rest
            fields[name] = joined.removeprefix(" ")


@contextmanager
def running_http_gateway(
    nats: str, *options: str, long_poll_seconds: str | None = None
) -> Iterator[RunningGateway]:
    """Run a gateway on a free port around the body. How long polls wait is no option of the
    command."""
    command = [sys.executable, "-P", "-m", "holdfast.cli", "--nats", nats, "gateway"]
    if long_poll_seconds is not None:
        command = [sys.executable, "-P", "-m", "holdfast.gateway.http", "--nats", nats]
        command += ["--long-poll-seconds", long_poll_seconds]
    arguments = [*command, "--http", "127.0.0.1:0", *options]
    with subprocess.Popen(arguments, bufsize=0, stderr=subprocess.PIPE) as process:
        try:
            yield RunningGateway(process, _port_of(process))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(DEADLINE_SECONDS)


def _port_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stderr is not None
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.select(DEADLINE_SECONDS):
            line = process.stderr.readline()
            assert line, seen.decode()
            seen += line
            if found := _LISTENING.search(line):
                return int(found[1])
    raise AssertionError(seen.decode())
