"""Whether a connection still passes data: judged by what arrives, and by what the peer's kernel
acknowledges."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from enum import Enum
from typing import Final

from holdfast.protocol.limits import BUS_DEAD_LOOKS, BUS_PING_LOOKS

if sys.platform == "linux":
    import fcntl
    import termios

logger = logging.getLogger("holdfast.bus")

#: `tcpi_bytes_acked` in Linux's `struct tcp_info` (include/uapi/linux/tcp.h, since 4.1).
_ACKED_AT: Final = slice(120, 128)


class Step(Enum):
    """What a look at the connection calls for."""

    NONE = "none"
    PING = "ping"
    ABORT = "abort"


class Watch:
    """Decides when a connection no longer passes data. Pure; `look` is called at even intervals.

    It counts looks since anything was received, not seconds. So a process that was stopped, or
    whose loop was busy, receives what waits in the socket before it has looked often enough. A PING
    with unsent bytes ahead of it is waited for as long as the peer's kernel acknowledges any of
    them: on a slow line, a megabyte takes seconds.
    """

    def __init__(self) -> None:
        self._silent_looks = 0
        #: Once this many bytes are acknowledged, the PING has arrived; None without a PING.
        self._ping_at: int | None = None
        self._acked_bytes = 0

    def look(self, heard: bool, acked_bytes: int, unacked_bytes: int) -> Step:
        """Return what to do now.

        `heard` means that anything was received since the last look. `unacked_bytes` are written
        but not acknowledged. `acked_bytes` never shrinks.
        """
        before, self._acked_bytes = self._acked_bytes, acked_bytes
        if heard:
            self._silent_looks, self._ping_at = 0, None
            return Step.NONE
        if self._ping_at is not None and before < min(self._ping_at, acked_bytes):
            return Step.NONE
        self._silent_looks += 1
        if self._silent_looks >= BUS_DEAD_LOOKS:
            return Step.ABORT
        if self._silent_looks >= BUS_PING_LOOKS and self._ping_at is None:
            self._ping_at = acked_bytes + unacked_bytes
            return Step.PING
        return Step.NONE


def sent_bytes(transport: asyncio.BaseTransport, waiting_bytes: int) -> tuple[int, int]:
    """Return how many bytes the peer has acknowledged, and how many it has not: `waiting_bytes`,
    and those that the kernel holds."""
    connection = transport.get_extra_info("socket")
    if sys.platform == "linux" and connection is not None:
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT.stop)
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError as error:
            logger.debug("bus.no_tcp_info reason=%s", error)
        else:
            if len(info) == _ACKED_AT.stop:
                acked = int.from_bytes(info[_ACKED_AT], sys.byteorder)
                return acked, waiting_bytes + int.from_bytes(queued, sys.byteorder)
    # Elsewhere, bytes that the kernel took from us stand for bytes that the peer acknowledged.
    return -waiting_bytes, waiting_bytes
