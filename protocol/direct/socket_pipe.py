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


class Splitter:
    """Finds the messages in what arrives. Pure."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._received = bytearray()

    def split(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes. Raises ValueError for one that is too long,
        which never ends."""
        received: bytes | bytearray = data
        if self._received:
            self._received += data
            received = self._received
        messages = []
        at, size_bytes = 0, len(received)
        while size_bytes - at >= _LENGTH_BYTES:
            length = int.from_bytes(received[at : at + _LENGTH_BYTES])
            if length > self._max_message_bytes:
                raise ValueError(f"a message of {length} bytes")
            end = at + _LENGTH_BYTES + length
            if end > size_bytes:
                break
            messages.append(bytes(received[at + _LENGTH_BYTES : end]))
            at = end
        if received is data:
            self._received += data[at:]
        else:
            del self._received[:at]
        return messages


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

    def send(self, message: bytes) -> bool:
        connection = self._socket
        if connection is None:
            return False
        data = len(message).to_bytes(_LENGTH_BYTES) + message
        sent = 0
        if not self._unsent:
            try:
                sent = connection.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._end(error)
                return False
            if sent == len(data):
                return True
            self._loop.add_writer(connection.fileno(), self._write)
        elif self._unsent_bytes + len(data) > self._max_unsent_bytes:
            self._end(TimeoutError("the other end takes too little"))
            return False
        self._unsent.append(memoryview(data)[sent:])
        self._unsent_bytes += len(data) - sent
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
