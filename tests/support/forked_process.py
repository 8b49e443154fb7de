"""A server process that is forked off one which has imported everything already.

Most of what a short-lived server costs is the start of Python and its imports, and the tests start
hundreds. Only that is spared: each is a process of its own with its own loop, files, signals and
end. That `python -m holdfast.persist` and `holdfast persist` start as well is shown wherever a test
runs `holdfast up`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "holdfast.persist.__main__", "holdfast.coordinator.__main__"]
)


class ForkedProcess:
    """Runs `main` of a module with arguments; both outputs are appended to a file."""

    def __init__(self, module: str, arguments: Sequence[str], output: Path) -> None:
        # Two threads must not read the exit code at once.
        self._lock = threading.Lock()
        # A daemon, so that what a failed test leaves behind ends with the tests.
        self._process = _CONTEXT.Process(
            target=_run, args=(module, list(arguments), output, dict(os.environ)), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout_seconds: float) -> int:
        """Return the exit code, once it has ended."""
        wait([self._process.sentinel], timeout_seconds)
        exit_code = self.poll()
        assert exit_code is not None, f"process {self.pid} still runs"
        return exit_code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _run(module: str, arguments: list[str], output: Path, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.exit(import_module(module).main(arguments))
