"""holdfast as it was in its last version, from the history of this clone, beside that of the tree.

version = unpacked(tmp_path)
with version.start("persist", log_file, "--name", "s1", ...) as server:
    server.wait_for_log("server.started")

A process of it is a Python of its own, since the launcher of other tests has this version imported.
Only the packages come from the history: nats-py and the others are those that are installed now.
"""

from __future__ import annotations

import ast
import io
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import pytest

from tests.support.documents import ROOT
from tests.support.process import DEADLINE_SECONDS

#: The last version that users may run: with each release, that of the release before.
COMMIT: Final = "c53e6346816e32f178fc1c77b225a57c4a3ac2a3"
#: What servers and clients are made of.
_PACKAGES: Final = ("client", "coordinator", "persist", "protocol", "shared_fs")
#: Takes the folder of the version first, so that nothing of this one is imported.
_PROGRAM: Final = """
import sys
folder, module, *arguments = sys.argv[1:]
sys.path.insert(0, folder)
import holdfast.protocol, importlib
assert holdfast.protocol.__file__.startswith(folder), holdfast.protocol.__file__
sys.exit(importlib.import_module(module).main(arguments))
"""


def unpacked(directory: Path) -> LastVersion:
    """Return the last version, unpacked below `directory`. Skips the test if this clone does not
    have it."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT, *_PACKAGES]
    try:
        archive = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("needs git, which has the last version of holdfast")
    if archive.returncode != 0:
        pytest.skip(f"needs the history of a full clone: commit {COMMIT[:12]} is not here")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory / "last-version" / "holdfast", filter="data")
    return LastVersion(directory / "last-version")


class LastVersion:
    """The unpacked packages of the last version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def constant(self, module: str, name: str) -> object:
        """Return a constant that a module of it gives by a literal."""
        for node in ast.parse((self.folder / "holdfast" / module).read_text()).body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value:
                return ast.literal_eval(node.value)
        raise AssertionError(f"{module} of commit {COMMIT[:12]} has no {name}")

    def start(self, part: str, log_file: Path, *arguments: str) -> LastVersionProcess:
        """Start a server."""
        return self.run(f"holdfast.{part}.__main__", log_file, *arguments)

    def run(self, module: str, log_file: Path, *arguments: str) -> LastVersionProcess:
        """Run `main` of a module of it, or of a module of the tests on top of it."""
        command = [sys.executable, "-c", _PROGRAM, str(self.folder), module, *arguments]
        return LastVersionProcess(command, log_file)


class LastVersionProcess:
    """A running process; like `tests.support.process.Process`."""

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        self.log_file = log_file
        with log_file.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=ROOT
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for_log(self, event: str, times: int = 1) -> None:
        """Return once it has written `event` so many times."""
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while self.log.count(event) < times:
            assert self.running, f"ended without {event}: {self.log}"
            assert time.monotonic() < give_up_at, self.log
            time.sleep(0.01)

    def tell(self, word: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def wait(self, timeout_seconds: float = DEADLINE_SECONDS) -> int:
        return self._process.wait(timeout_seconds)

    def stop(self) -> int:
        """Ask it to end and return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
