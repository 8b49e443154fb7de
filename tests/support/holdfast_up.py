"""A real `holdfast up` for tests, and the `holdfast` command as a user runs it.

with running_up(tmp_path / "data") as cluster:
    cluster.holdfast("stream", "append", "notes", "hello")
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from holdfast.cli.command import holdfast

COMMAND = [sys.executable, "-P", "-m", "holdfast.cli"]
DEADLINE_SECONDS = 60.0


def run_holdfast(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, in a process of its own."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def call_holdfast(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command in this process, one at a time: starting Python and all imports takes twenty
    times as long as what most commands do. Real pipes, signals and exit codes need
    `run_holdfast`."""
    result = CliRunner().invoke(
        holdfast, arguments, input=stdin, prog_name="holdfast", catch_exceptions=False
    )
    return subprocess.CompletedProcess(
        arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes
    )


@contextmanager
def started_holdfast(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command around the body; killed if it still runs then."""
    # Unbuffered, so that what was not read yet is seen by a selector.
    with subprocess.Popen([*COMMAND, *arguments], bufsize=0, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition` holds."""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, f"still not so: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Tell if a process runs; one that ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return sys.platform != "linux"
    return state != "Z"


def read_line(process: subprocess.Popen[bytes]) -> str:
    """Return the next line of the process's stdout."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(DEADLINE_SECONDS), "nothing on stdout"
    return process.stdout.readline().decode()


@dataclass
class RunningUp:
    """One `holdfast up` that is ready."""

    process: subprocess.Popen[bytes]
    data: Path
    welcome: dict[str, Any]
    stderr_file: Path

    @property
    def nats(self) -> str:
        return str(self.welcome["nats"])

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()

    def holdfast(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command against this cluster, in this process."""
        return call_holdfast("--nats", self.nats, *arguments, stdin=stdin)

    def output(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed; return what it prints."""
        result = self.holdfast(*arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout.decode()

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Run a command that must succeed, with --json; return its object."""
        return json.loads(self.output("--json", *arguments, stdin=stdin))

    def pids(self) -> dict[str, int | None]:
        """The pids of the parts as `cluster.json` has them now."""
        state = json.loads((self.data / "run" / "cluster.json").read_text())
        parts: dict[str, int | None] = state["parts"]
        return parts

    def live_servers(self) -> set[str]:
        rows = self.json("servers")["servers"]
        return {row["server"] for row in rows if row["state"] == "live"}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def running_up(
    data: Path, *options: str, own_nats: bool = True, http: bool = False
) -> Iterator[RunningUp]:
    """Run `holdfast up` around the body, with a nats-server of its own on a free port unless it
    shall join what `options` or the environment name. `http`: also a gateway, on a free port."""
    stderr_file = data.with_name(f"{data.name}.stderr")
    port = ("--port", "0") if own_nats else ()
    gateway = ("--http", "127.0.0.1:0") if http else ("--no-http",)
    arguments = ("--json", "up", "--data", str(data), *port, *gateway, *options)
    with (
        stderr_file.open("ab") as stderr,
        started_holdfast(*arguments, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            line = read_line(process)
            assert line, stderr_file.read_text()
            yield RunningUp(process, data, json.loads(line), stderr_file)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(DEADLINE_SECONDS)
