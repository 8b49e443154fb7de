"""One part of an embedded cluster: a child process that is restarted when it dies.

Each part runs in its own session, so that Ctrl-C in a terminal reaches the supervisor alone and the
supervisor can stop the parts in order. The output of a part goes line by line to `say`, under its
name, and to a log file of bounded size.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.cluster.restart import SILENT_START_SECONDS, RestartPolicy, RestartVerdict
from holdfast.protocol.errors import HoldfastError

#: How long a part may take to end after SIGTERM.
STOP_SECONDS: Final = 10.0
#: A log file of this size is moved aside, and replaces the one before. So a part's logs take at
#: most twice as much.
LOG_FILE_BYTES: Final = 4 * 1024 * 1024
_LINE_BYTES: Final = 64 * 1024
_REMEMBERED_LINES: Final = 5

Say = Callable[[str], None]


class PartFailedError(HoldfastError):
    """A part ended at its start, repeatedly or for a reason that a restart cannot fix."""

    code = "part_failed"
    template = "{part} did not start (exit code {exit_code}): {reason}"


class Part:
    """A supervised child process. `keep_running` runs until `stop`, or fails.

    `environment` is added to that of this process. Unlike `command`, no other user can read it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        say: Say,
        environment: Mapping[str, str] | None = None,
        is_noise: Callable[[str], bool] = lambda line: False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.restart_count = 0
        self._log_file = log_file
        self._say = say
        self._environment = environment or {}
        self._is_noise = is_noise
        self._on_start = on_start
        self._policy = RestartPolicy()
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=_REMEMBERED_LINES)
        #: When the running process said its first word.
        self._spoke_at: float | None = None
        self._stopping = asyncio.Event()
        #: Set unless `keep_running` runs, so a part that was never started need not be waited for.
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def pid(self) -> int | None:
        """The pid of the running process; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def keep_running(self) -> None:
        """Start the part, and restart it each time it ends. Raises PartFailedError."""
        self._ended.clear()
        try:
            while not self._stopping.is_set():
                await self._run_once()
        finally:
            self._ended.set()

    def works(self) -> None:
        """Note that the part does its work, so that no later exit is taken for a failed start."""
        self._policy.works()

    async def stop(self) -> None:
        """End the part with SIGTERM, and with SIGKILL if that takes too long."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            self._say(f"{self.name} did not stop within {STOP_SECONDS:g} s: killed")
            self.signal(signal.SIGKILL)
            await self._ended.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the running process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run_once(self) -> None:
        self._spoke_at = None
        process = await asyncio.create_subprocess_exec(
            *tethered(self.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        self._process = process
        began_at = asyncio.get_running_loop().time()
        try:
            if self._stopping.is_set():
                process.terminate()
            self._tell_of_start()
            assert process.stdout is not None
            await self._copy_log(process.stdout)
            exit_code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if not self._stopping.is_set():
            started_at = self._spoke_at or began_at + SILENT_START_SECONDS
            lived_seconds = asyncio.get_running_loop().time() - started_at
            await self._after_exit(exit_code, max(0.0, lived_seconds))

    async def _after_exit(self, exit_code: int, lived_seconds: float) -> None:
        decision = self._policy.ended(exit_code, lived_seconds)
        if decision.verdict is RestartVerdict.GIVE_UP:
            reason = self._last_lines[-1] if self._last_lines else "it said nothing"
            raise PartFailedError(part=self.name, exit_code=exit_code, reason=reason)
        self.restart_count += 1
        self._say(
            f"{self.name} ended ({_ending(exit_code)}): "
            f"starting it again in {decision.delay_seconds:g} s"
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(decision.delay_seconds):
                await self._stopping.wait()

    def _tell_of_start(self) -> None:
        try:
            self._on_start()
        except OSError as error:
            if not self.restart_count:
                raise
            # A part that runs again on a full disk is better than none.
            self._say(f"{self.name} was started again, and that cannot be written down: {error}")

    async def _copy_log(self, stream: asyncio.StreamReader) -> None:
        with contextlib.closing(_LogFile(self._log_file)) as log_file:
            # The file is there from the start, for those who follow it.
            self._write_log(log_file, b"")
            async for line in _lines(stream):
                self._spoke_at = self._spoke_at or asyncio.get_running_loop().time()
                self._write_log(log_file, line)
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._last_lines.append(text)
                    if not self._is_noise(text):
                        self._say(f"{self.name} | {text}")

    def _write_log(self, log_file: _LogFile, line: bytes) -> None:
        if failure := log_file.write(line):
            self._say(f"{self.name}: its log cannot be written, and it runs on: {failure}")


class _LogFile:
    """A file that grows to LOG_FILE_BYTES, is then moved aside, and starts again. Lines that it
    cannot take, for example because the disk is full, are left out: a part is worth more than its
    log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._size_bytes = 0
        self._fails = False

    def write(self, line: bytes) -> OSError | None:
        """Write a line. Return why that fails, the first time in a row."""
        try:
            self._write(line)
        except OSError as error:
            first, self._fails = not self._fails, True
            return error if first else None
        self._fails = False
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, line: bytes) -> None:
        if self._file is not None and self._size_bytes + len(line) > LOG_FILE_BYTES:
            self._file.close()
            self._file = None
            self._path.replace(self._path.with_suffix(".log.old"))
        if self._file is None:
            self._file = io.FileIO(self._path, "ab")
            self._size_bytes = self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._size_bytes += len(line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each line with its end; lines longer than _LINE_BYTES in pieces."""
    pending = b""
    while chunk := await stream.read(_LINE_BYTES):
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(pending) >= _LINE_BYTES:
            yield pending + b"\n"
            pending = b""
    if pending:
        yield pending + b"\n"


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
