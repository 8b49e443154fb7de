"""A pipe over a stream socket: each message with its length before it, in four bytes.

The socket is read and written in the turn of the loop in which there is something, without a task
and without asyncio's transports: a lone frame leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.limits import MAX_PIPE_UNSENT_BYTES

logger = logging.getLogger("holdfast.bus")

_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 256 * 1024
#: Smaller pieces of a message are gathered: kept one by one, each would take 40 bytes more.
_SMALL_PIECE_BYTES: Final = 4 * 1024
#: A larger message is not copied to get its length before it.
_JOINED_BYTES: Final = 64 * 1024


class Splitter:
    """Finds the messages in what arrives. Pure."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        #: The beginning of a length.
        self._start = b""
        #: The pieces of a message whose end has not arrived, and how many bytes are missing. They
        #: are joined once: a large frame arrives in several pieces.
        self._pieces: list[bytes | bytearray] = []
        self._missing_bytes = 0

    def split(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes. Raises ValueError for one that is too long,
        which never ends."""
        messages: list[bytes] = []
        at = self._missing_bytes
        if at:
            if len(data) < at:
                self._keep(data)
                self._missing_bytes -= len(data)
                return messages
            self._pieces.append(data[:at])
            messages.append(b"".join(self._pieces))
            self._pieces.clear()
            self._missing_bytes = 0
        elif self._start:
            data = self._start + data
            self._start = b""
        size_bytes = len(data)
        while size_bytes - at >= _LENGTH_BYTES:
            length = int.from_bytes(data[at : at + _LENGTH_BYTES])
            if length > self._max_message_bytes:
                raise ValueError(f"a message of {length} bytes")
            at += _LENGTH_BYTES
            if at + length > size_bytes:
                self._pieces.append(data[at:])
                self._missing_bytes = at + length - size_bytes
                return messages
            messages.append(data[at : at + length])
            at += length
        self._start = data[at:]
        return messages

    def _keep(self, data: bytes) -> None:
        """Keep a piece of a message whose end has not arrived."""
        if len(data) >= _SMALL_PIECE_BYTES:
            self._pieces.append(data)
        elif self._pieces and type(self._pieces[-1]) is bytearray:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))


class SocketPipe(DirectPipe):
    """One end, which owns its non-blocking socket."""

    def __init__(
        self,
        connection: socket.socket,
        max_message_bytes: int,
        max_unsent_bytes: int = MAX_PIPE_UNSENT_BYTES,
    ) -> None:
        self._socket: socket.socket | None = connection
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter(max_message_bytes)
        self._max_unsent_bytes = max_unsent_bytes
        self._take: Callable[[bytes], None] = _nothing
        self._on_end: Callable[[], None] = _nothing
        #: What the socket has not taken.
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0

    @property
    def ended(self) -> bool:
        return self._socket is None

    def start(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take, self._on_end = take, ended
        if self._socket is None:
            self._loop.call_soon(ended)
            return
        self._loop.add_reader(self._socket.fileno(), self._read)

    def change(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take, self._on_end = take, ended

    def send(self, *parts: bytes) -> bool:
        connection = self._socket
        if connection is None:
            return False
        size_bytes = _LENGTH_BYTES + sum(map(len, parts))
        pieces = ((size_bytes - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES), *parts)
        if size_bytes <= _JOINED_BYTES:
            pieces = (b"".join(pieces),)
        sent = 0
        if not self._unsent:
            try:
                sent = connection.send(*pieces) if len(pieces) == 1 else connection.sendmsg(pieces)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._end(error)
                return False
            if sent == size_bytes:
                return True
            self._loop.add_writer(connection.fileno(), self._write)
        elif self._unsent_bytes + size_bytes > self._max_unsent_bytes:
            self._end(TimeoutError("the other end takes too little"))
            return False
        self._unsent_bytes += size_bytes - sent
        for piece in pieces:
            if sent < len(piece):
                self._unsent.append(memoryview(piece)[sent:])
            sent = max(0, sent - len(piece))
        return True

    def close(self) -> None:
        self._on_end = _nothing
        self._end(None)

    def _read(self) -> None:
        connection = self._socket
        if connection is None:
            return
        try:
            data = connection.recv(_READ_BYTES)
            messages = self._splitter.split(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError) as error:
            self._end(error)
            return
        if not data:
            self._end(None)
            return
        for message in messages:
            if self._socket is None:
                return
            try:
                self._take(message)
            except Exception:
                logger.exception("direct.message_failed")

    def _write(self) -> None:
        connection, unsent = self._socket, self._unsent
        if connection is None:
            return
        try:
            while unsent:
                sent = connection.send(unsent[0])
                self._unsent_bytes -= sent
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                    return
                unsent.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        self._loop.remove_writer(connection.fileno())

    def _end(self, reason: Exception | None) -> None:
        connection, self._socket = self._socket, None
        if connection is None:
            return
        if reason is not None:
            logger.debug("direct.pipe_ended reason=%s", reason)
        self._loop.remove_reader(connection.fileno())
        self._loop.remove_writer(connection.fileno())
        connection.close()
        self._unsent.clear()
        self._on_end()


def _nothing(*_: object) -> None:
    return None
