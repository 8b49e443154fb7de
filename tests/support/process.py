"""The launcher of server processes: each is forked off one that has imported everything already.

Most of what a short-lived server costs is the start of Python and its imports, and the tests start
hundreds. Only that is spared: each is a process of its own with its own loop, files, signals and
end. That `python -m holdfast.persist` and `holdfast persist` start as well is shown wherever a test
runs `holdfast up`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, Self

DEADLINE_SECONDS: Final = 30.0
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "holdfast.persist.__main__",
        "holdfast.coordinator.__main__",
        "holdfast.gateway.jetstream.__main__",
    ]
)


def warm_up() -> None:
    """Return once processes can be forked off: everything has been imported."""
    process = _CONTEXT.Process(target=_nothing, daemon=True)
    process.start()
    process.join()


def _nothing() -> None:
    pass


class Process:
    """Runs `main` of a module with arguments; both outputs are appended to a file. Use it as
    `with`, or end it yourself."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is added to that of this process."""
        self.log_file = log_file
        log_file.touch()
        # Two threads must not read the exit code at once.
        self._lock = threading.Lock()
        # A daemon, so that what a failed test leaves behind ends with the tests.
        self._process = _CONTEXT.Process(
            target=_run,
            args=(module, list(arguments), log_file, {**os.environ, **(environment or {})}),
            daemon=True,
        )
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once it has ended."""
        return self._process.sentinel

    @property
    def log(self) -> str:
        """What it has written."""
        return self.log_file.read_text()

    @property
    def running(self) -> bool:
        return self.poll() is None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout_seconds: float = DEADLINE_SECONDS) -> int:
        """Return the exit code, once it has ended."""
        wait([self._process.sentinel], timeout_seconds)
        exit_code = self.poll()
        assert exit_code is not None, f"process {self.pid} still runs"
        return exit_code

    def wait_for_log(self, event: str) -> None:
        """Return once it has written `event`."""
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while event not in self.log:
            assert self.running, f"ended without {event}: {self.log}"
            assert time.monotonic() < give_up_at, self.log
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def stop(self) -> int:
        """Ask it to end and return the exit code."""
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._process.kill()
        self.wait()


def _run(module: str, arguments: list[str], output: Path, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.exit(import_module(module).main(arguments))
