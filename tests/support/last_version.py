"""holdfast as it was in its last version, from the history of this clone, beside that of the tree.

with running_last_version(tmp_path) as version:
    server = version.start("persist", log_file, "--name", "s1", ...)
    server.wait_for_log("server.started")

Its processes are forked off one that has imported the last version, as `process.py` does with this
one. Only the packages come from the history: nats-py and the others are those that are installed.
"""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.documents import ROOT
from tests.support.process import DEADLINE_SECONDS

#: The last version that users may run: with each release, that of the release before.
COMMIT: Final = "c53e6346816e32f178fc1c77b225a57c4a3ac2a3"
#: What servers and clients are made of.
_PACKAGES: Final = ("client", "coordinator", "persist", "protocol", "shared_fs")
#: Forks what it is told to, and says how its children are. It ends with its parent, and they too.
_LAUNCHER: Final = """
import importlib, json, os, signal, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
import holdfast.client, holdfast.coordinator.__main__, holdfast.persist.__main__
for module in (holdfast.client, holdfast.coordinator.__main__, holdfast.persist.__main__):
    assert module.__file__.startswith(folder), module.__file__
running = set()
for line in sys.stdin:
    verb, *words = json.loads(line)
    if verb == "start":
        module, log, arguments, listens = words
        pid = os.fork()
        if pid == 0:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(os.open(log + ".in" if listens else os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdin = open(0, closefd=False)
            sys.exit(importlib.import_module(module).main(arguments))
        running.add(pid)
        answer = pid
    else:
        [pid] = words
        ended, status = os.waitpid(pid, os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if ended else None
        running.discard(ended)
    print(json.dumps(answer), flush=True)
for pid in running:
    os.kill(pid, signal.SIGKILL)
"""


@contextmanager
def running_last_version(directory: Path) -> Iterator[LastVersion]:
    """Unpack the last version below `directory`, for the processes of the body. Skips the test if
    this clone does not have it."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT, *_PACKAGES]
    try:
        archive = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("needs git, which has the last version of holdfast")
    if archive.returncode != 0:
        pytest.skip(f"needs the history of a full clone: commit {COMMIT[:12]} is not here")
    folder = directory / "last-version"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder / "holdfast", filter="data")
    with subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as launcher:
        yield LastVersion(folder, launcher)


class LastVersion:
    """The unpacked packages of the last version, and the process that starts others with them."""

    def __init__(self, folder: Path, launcher: subprocess.Popen[str]) -> None:
        self._folder = folder
        self._launcher = launcher

    def constant(self, module: str, name: str) -> object:
        """Return a constant that a module of it gives by a literal."""
        for node in ast.parse((self._folder / "holdfast" / module).read_text()).body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value:
                return ast.literal_eval(node.value)
        raise AssertionError(f"{module} of commit {COMMIT[:12]} has no {name}")

    def start(self, part: str, log_file: Path, *arguments: str) -> LastVersionProcess:
        """Start a server."""
        return LastVersionProcess(self, f"holdfast.{part}.__main__", log_file, arguments)

    def run(self, module: str, log_file: Path, *arguments: str) -> ListeningProcess:
        """Run `main` of a module of the tests on top of it."""
        return ListeningProcess(self, module, log_file, arguments)

    def ask(self, *words: object) -> Any:
        """Ask the launcher."""
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        print(json.dumps(words), file=self._launcher.stdin, flush=True)
        return json.loads(self._launcher.stdout.readline())


class LastVersionProcess:
    """A running process; like `tests.support.process.Process`. One thread at a time may use the
    processes of a version."""

    _listens = False

    def __init__(
        self, version: LastVersion, module: str, log_file: Path, arguments: tuple[str, ...]
    ) -> None:
        self.log_file = log_file
        log_file.touch()
        self._version = version
        self._pid: int = version.ask("start", module, str(log_file), arguments, self._listens)
        self._exit_code: int | None = None

    @property
    def log(self) -> str:
        """What it has written."""
        return self.log_file.read_text()

    @property
    def running(self) -> bool:
        if self._exit_code is None:
            self._exit_code = self._version.ask("poll", self._pid)
        return self._exit_code is None

    def wait_for_log(self, event: str, times: int = 1) -> None:
        """Return once it has written `event` so many times."""
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while self.log.count(event) < times:
            assert self.running, f"ended without {event}: {self.log}"
            assert time.monotonic() < give_up_at, self.log
            time.sleep(0.01)

    def wait(self) -> int:
        """Return the exit code, once it has ended."""
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while self.running:
            assert time.monotonic() < give_up_at, f"process {self._pid} still runs"
            time.sleep(0.01)
        assert self._exit_code is not None
        return self._exit_code

    def stop(self) -> int:
        """Ask it to end and return the exit code."""
        os.kill(self._pid, signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it at once."""
        os.kill(self._pid, signal.SIGKILL)
        self.wait()


class ListeningProcess(LastVersionProcess):
    """A process that is told words on its stdin."""

    _listens = True

    def __init__(
        self, version: LastVersion, module: str, log_file: Path, arguments: tuple[str, ...]
    ) -> None:
        words = Path(f"{log_file}.in")
        os.mkfifo(words)
        super().__init__(version, module, log_file, arguments)
        # Returns once the process has opened the other end.
        self._words = words.open("w")

    def tell(self, word: str) -> None:
        """Write a line to its stdin."""
        print(word, file=self._words, flush=True)

    def wait(self) -> int:
        self._words.close()
        return super().wait()
