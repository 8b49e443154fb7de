"""What a server tells its supervisor: that it is ready, that its event loop turns, that it stops.

systemd is told by datagrams (sd_notify(3), from the environment that systemd sets); a supervisor
that can only look at files, such as a container's probe, by the modification time of a file. Both
come from the event loop, so a loop that is stuck says nothing, and the supervisor may end the
process. A server whose file system or NATS is away goes on saying that it turns: a restart would
not bring them back, and the coordinator decides what becomes of its stores.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.serving")

#: How often the file is touched. A probe should allow for several of these.
ALIVE_SECONDS: Final = 5.0
#: systemd recommends half of the time after which it acts (sd_watchdog_enabled(3)).
_WATCHDOG_SHARE: Final = 0.5


class Supervision:
    """The supervisor of this process, if it has one. Without one, nothing is said."""

    def __init__(
        self, notify_socket: str, watchdog_seconds: float, alive_file: Path | None
    ) -> None:
        """`notify_socket` is empty without systemd, `watchdog_seconds` 0 without its watchdog."""
        self._notify_socket = notify_socket
        self._watchdog_seconds = watchdog_seconds
        self._alive_file = alive_file
        self._untold = Trouble(logger, "server.not_told")

    @classmethod
    def of_this_process(
        cls, alive_file: Path | None, environment: Mapping[str, str] = os.environ
    ) -> Self:
        """Return what the environment and the options of this process say. The variables of systemd
        that are meant for another process are ignored."""
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        micros = environment.get("WATCHDOG_USEC", "") if watched else ""
        seconds = int(micros) / 1_000_000 if micros.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds, alive_file)

    async def tell_when(self, ready: asyncio.Event) -> None:
        """Say that this server serves, once `ready` is set."""
        await ready.wait()
        self._notify("READY=1")

    def stopping(self) -> None:
        """Say that this server was asked to end, and is ending."""
        self._notify("STOPPING=1")

    async def keep_telling(self) -> None:
        """Say that the event loop turns, until cancelled. Returns at once if nobody listens."""
        if self._alive_file is None and not self._watchdog_seconds:
            return
        seconds = ALIVE_SECONDS
        if self._watchdog_seconds:
            seconds = min(seconds, self._watchdog_seconds * _WATCHDOG_SHARE)
        while True:
            if self._watchdog_seconds:
                self._notify("WATCHDOG=1")
            self._touch()
            await asyncio.sleep(seconds)

    def _touch(self) -> None:
        if self._alive_file is None:
            return
        try:
            self._alive_file.touch()
        except OSError as error:
            # The supervisor will notice; the stores of this server must not suffer for it.
            self._untold.note("supervisor=%s reason=%s", self._alive_file, error, of="file")
        else:
            self._untold.over("file")

    def _notify(self, words: str) -> None:
        if not self._notify_socket:
            return
        # A name that begins with @ is in the abstract namespace.
        address = self._notify_socket.replace("@", "\0", 1)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(words.encode(), address)
        except OSError as error:
            self._untold.note("supervisor=%s reason=%s", self._notify_socket, error, of="socket")
        else:
            self._untold.over("socket")
