"""A Chromium as a child, spoken to in its DevTools protocol over two pipes.

Nothing has to be installed beside the browser. It ends when the pipes do, however the tests end.
Messages are JSON ended by a zero byte; the first descriptor the browser reads is 3, and it answers
on 4. This module knows commands, answers and events, and nothing of pages.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

DEADLINE_SECONDS: Final = 30.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
#: It has to open nothing but what the tests open, and asks nobody for updates.
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--password-store=basic",
    # Pages that nobody looks at run as fast as others.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--lang=en-US",
)
#: Moves the pipes to where the browser expects them, and becomes the browser.
_TRAMPOLINE: Final = """\
import os, sys
takes, gives = map(int, sys.argv[1:3])
os.dup2(takes, 3), os.dup2(gives, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class DevToolsError(Exception):
    """The browser refused a command, did not answer in time, or ended."""


def find_chromium() -> str | None:
    """Return the path of a Chromium: `CHROMIUM`, or the first of its usual names."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    return next(filter(None, map(shutil.which, _NAMES)), None)


class DevTools:
    """Commands to one browser, and its events."""

    def __init__(self, program: str, profile: Path) -> None:
        """Start it with an empty folder for what it writes."""
        takes, self._to = _above_four(os.pipe(), keep=0)
        self._from, gives = _above_four(os.pipe(), keep=1)
        arguments = [*_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        trampoline = [sys.executable, "-ISc", _TRAMPOLINE, str(takes), str(gives)]
        self._process = subprocess.Popen(
            [*trampoline, program, *arguments, "about:blank"],
            pass_fds=(takes, gives),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(takes)
        os.close(gives)
        self._rest = b""
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}

    def listen(self, session: str, listener: Callable[[str, dict[str, Any]], None]) -> None:
        """Call `listener` with the name and the parameters of each event of a session."""
        self._listeners[session] = listener

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its answer. Raises DevToolsError."""
        self._count += 1
        number = self._count
        command = {"id": number, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
        self._send(json.dumps(command).encode() + b"\0")
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while number not in self._answers:
            if not self.take_events(give_up_at - time.monotonic()):
                raise DevToolsError(f"no answer to {method} in {DEADLINE_SECONDS:g} s")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def take_events(self, seconds: float) -> bool:
        """Wait for messages, so long at most, and tell their listeners; False if none came."""
        if not select.select([self._from], [], [], max(0.0, seconds))[0]:
            return False
        data = os.read(self._from, 1 << 20)
        if not data:
            raise DevToolsError("the browser ended")
        *whole, self._rest = (self._rest + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif listener := self._listeners.get(message.get("sessionId", "")):
                listener(message["method"], message.get("params", {}))
        return True

    def close(self) -> None:
        """End it: without pipes it goes by itself."""
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(DEADLINE_SECONDS)

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError as error:
            raise DevToolsError("the browser ended") from error


def _above_four(pipe: tuple[int, int], *, keep: int) -> tuple[int, int]:
    """Return the pipe with the browser's end where moving it to 3 or 4 overwrites no other."""
    ends = list(pipe)
    moved = fcntl.fcntl(ends[keep], fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(ends[keep])
    ends[keep] = moved
    return ends[0], ends[1]
