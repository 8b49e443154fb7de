"""Transcripts of terminals in a document, replayed: docs/tutorial.md as a reader follows it.

Blocks are worked off in the order of the document.

- A ```` ```python ```` block that begins with `# name.py` is that file from then on.
- A ```` ```console ```` block is a shell: `$ ` runs a command to its end, and what follows is what
  it prints.
- A ```` ```console ada ```` block is a terminal named `ada`, where `$ ` starts a program that goes
  on running: a later block of that name is the same program. `> ` types a line, `^C` and `^D` are
  what they are on a terminal, and each other line is waited for. Lines between two typed ones may
  come in any order; `...` stands for any lines, and lines that begin with `* ` may come without
  being shown.
"""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

_BLOCK = re.compile(r"^```(python|console)(?: (\w+))?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_DEADLINE_SECONDS = 60.0


class Terminal:
    """A program whose output is read line by line."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def expect(self, lines: list[str], where: str) -> None:
        """Wait until all of `lines` have come, in any order."""
        missing = [line for line in lines if line != "..."]
        while missing:
            line = self._lines.get(timeout=_DEADLINE_SECONDS)
            assert line is not None, f"{where}: it ended, and did not print {missing}"
            if line in missing:
                missing.remove(line)
            else:
                assert line.startswith("* ") or "..." in lines, f"{where}: {line}, not {missing}"

    def end(self, *, interrupted: bool) -> None:
        """Press Ctrl-C or Ctrl-D, and wait for the end."""
        if interrupted:
            self._process.send_signal(signal.SIGINT)
        else:
            assert self._process.stdin is not None
            self._process.stdin.close()
        assert self.stop() == 0

    def stop(self) -> int:
        """Wait for the end and return the exit code; kill the program if it takes too long."""
        try:
            return self._process.wait(_DEADLINE_SECONDS)
        finally:
            self._process.kill()
            self._reader.join()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()

    def abort(self) -> None:
        """End the program, whatever it does."""
        self._process.terminate()
        self.stop()


def replay(document: Path, folder: Path, environment: Mapping[str, str], nats: str) -> list[str]:
    """Do in `folder` what `document` shows; return the names of the files it made."""
    text = document.read_text()
    terminals: dict[str, Terminal] = {}
    files = []
    try:
        for block in _BLOCK.finditer(text):
            language, name, body = block.groups()
            where = f"{document.name}:{text.count(chr(10), 0, block.start()) + 1}"
            if language == "python":
                file = re.match(r"# (\w+\.py)\n", body)
                assert file, f"{where} names no file"
                (folder / file[1]).write_text(body.replace("nats://127.0.0.1:4222", nats))
                files.append(file[1])
                continue
            for first, *shown in _steps(body):
                if name is None:
                    _run(first, shown, folder, environment, where)
                elif first.startswith("$ "):
                    assert name not in terminals, f"{name} still runs: {where}"
                    terminals[name] = Terminal(first[2:], folder, environment)
                elif first.startswith("^"):
                    terminals.pop(name).end(interrupted=first == "^C")
                elif first:
                    terminals[name].type(first[2:])
                if name in terminals:
                    terminals[name].expect(shown, where)
        assert not terminals, f"{list(terminals)} were never ended"
    finally:
        for terminal in terminals.values():
            terminal.abort()
    return files


def _steps(body: str) -> list[list[str]]:
    """Split a block: each step is what is typed, or nothing, and what is shown then."""
    steps: list[list[str]] = [[""]]
    for line in body.splitlines():
        if line.startswith(("$ ", "> ", "^")):
            steps.append([line])
        else:
            steps[-1].append(line)
    return steps[steps[0] == [""] :]


def _run(
    line: str, shown: list[str], folder: Path, environment: Mapping[str, str], where: str
) -> None:
    assert line.startswith("$ "), where
    done = subprocess.run(
        ["/bin/sh", "-c", line[2:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{where}: {done.stderr}"
    if "..." not in shown:
        assert done.stdout.splitlines() == shown, where
