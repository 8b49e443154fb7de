"""The ports that an embedded cluster listens on: asked before anything starts."""

from __future__ import annotations

import random
import socket
from collections import deque
from typing import Final

from holdfast.protocol.errors import HoldfastError

LOOPBACK: Final = "127.0.0.1"
#: Free ports are taken from below the range that systems give to outgoing connections (Linux: from
#: 32768): there a client that connects while nats-server restarts could occupy its port.
_FREE_PORTS: Final = range(10_000, 32_768)
#: What `free_port` returned last: a part that has not started yet does not listen on its port, so
#: another part must not get that one too.
_RETURNED: Final[deque[int]] = deque(maxlen=1_000)


class PortInUseError(HoldfastError):
    """The port for nats-server is taken."""

    code = "port_in_use"
    template = "port {port} of {address} cannot be used: {reason}"


def check_port(port: int, address: str = LOOPBACK) -> None:
    """Return if a server may listen there. Raises PortInUseError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        # Servers do the same: a port whose old connections only time out counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortInUseError(port=port, address=address, reason=reason) from error


def free_port(address: str = LOOPBACK) -> int:
    """Return a port that nobody uses, and another one at each call. Raises PortInUseError if there
    is none."""
    # The address cannot be used at all: say why.
    check_port(0, address)
    for port in random.sample(_FREE_PORTS, 200):
        if port in _RETURNED:
            continue
        try:
            check_port(port, address)
        except PortInUseError:
            continue
        _RETURNED.append(port)
        return port
    raise PortInUseError(port=0, address=address, reason="no free port was found")
