"""nats-py's socket, plain or with TLS, as the bus needs it: watched, read without a turn of the
loop, and aborted when it is given up. Only this module knows the internals of nats-py's transport.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast
from urllib.parse import ParseResult

import nats.errors
from nats.aio.transport import TcpTransport

from holdfast.protocol.bus.nats_receiver import Receiver, Take
from holdfast.protocol.bus.nats_watch import Step, Watch, sent_bytes

#: Attributes of nats-py's transport that this module uses.
USED_OF_TRANSPORT: Final = ("_bare_io_writer", "_io_writer", "_io_reader")


class WatchedTransport(TcpTransport):
    """A socket, plain or with TLS, that is aborted when it is given up."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard = True
        self.watch = Watch()

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        # An attempt that failed after connecting has left its socket open.
        self.close()
        await super().connect(uri, buffer_size, connect_timeout)
        self.heard, self.watch = True, Watch()

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        # nats-py does not introduce them. Then the reader could never pause the transport, and its
        # buffer would have no bound.
        assert self._io_writer is not None, "it was connected"
        transport = self._io_writer.transport
        protocol = transport.get_protocol()
        # Once the connection is lost again there is none, and reading tells of it.
        if isinstance(protocol, asyncio.Protocol):
            protocol.connection_made(transport)

    def receive(self, take: Take) -> Receiver | None:
        """Give all that arrives to `take` from now on. Return None if the connection is lost."""
        reader, writer = self._io_reader, self._io_writer
        if reader is None or writer is None or self.is_closing:
            return None
        transport, before = writer.transport, writer.transport.get_protocol()
        if not isinstance(before, asyncio.StreamReaderProtocol):
            return None
        receiver = Receiver(cast("asyncio.Transport", transport), before, take)
        transport.set_protocol(receiver)
        received: bytearray = reader._buffer  # type: ignore[attr-defined]
        if received:
            data = bytes(received)
            received.clear()
            receiver.data_received(data)
            reader._maybe_resume_transport()  # type: ignore[attr-defined]
        if reader.at_eof():
            receiver.end(None)
        return receiver

    async def readline(self) -> bytes:
        line: bytes = await super().readline()  # type: ignore[no-untyped-call]
        if not line:
            # nats-py would take the end of the connection during the login for a success.
            raise nats.errors.UnexpectedEOF
        self.heard = True
        return line

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        # An aborted socket is closed in the next turn. Several tasks may wait for that, and asyncio
        # has one future for all of them: cancelling one would cancel the others.
        await asyncio.sleep(0)

    @property
    def encrypted(self) -> bool:
        return self._io_writer is not self._bare_io_writer

    @property
    def is_closing(self) -> bool:
        """Whether the socket takes nothing any more. Writing would raise with uvloop."""
        return self._io_writer is None or bool(self._io_writer.transport.is_closing())

    @property
    def waiting_bytes(self) -> int:
        """What the socket has not taken yet."""
        if self._io_writer is None:
            return 0
        waiting_bytes = int(self._io_writer.transport.get_write_buffer_size())
        if self.encrypted:
            assert self._bare_io_writer is not None, "it was connected"
            # TLS has a buffer of its own, before that of the socket.
            waiting_bytes += int(self._bare_io_writer.transport.get_write_buffer_size())
        return waiting_bytes

    def look(self) -> Step:
        """Look whether the connection is alive."""
        writer = self._io_writer
        if writer is None or self.is_closing:
            return Step.NONE
        heard, self.heard = self.heard, False
        return self.watch.look(heard, *sent_bytes(writer.transport, self.waiting_bytes))
