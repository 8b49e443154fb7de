"""What an embedded cluster has for browsers and `curl`: an HTTP gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Self

from holdfast.cli.cluster.ports import LOOPBACK, PortInUseError, check_port, free_port
from holdfast.protocol.bus.login import TLS_OPTIONS

PART: Final = "http"
DEFAULT_PORT: Final = 4280
_POLL_SECONDS: Final = 0.05
_ANY_ADDRESS: Final = {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}
_PACKAGES: Final = ("httptools", "starlette", "uvicorn", "websockets")


class HttpPortInUseError(PortInUseError):
    """The port for the HTTP gateway is taken."""

    code = "http_port_in_use"


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a gateway listens: port 0 picks a free one. `is_default`: nobody asked for this port,
    so another one does as well."""

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    is_default: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read HOST:PORT. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT, such as {LOOPBACK}:{DEFAULT_PORT}")
        return cls(host.strip("[]") or LOOPBACK, int(port))

    @property
    def text(self) -> str:
        """HOST:PORT."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """The URL under which this machine reaches it."""
        host = _ANY_ADDRESS.get(self.host, self.host)
        return f"http://{_bracketed(host)}:{self.port}"

    def found_free(self) -> HttpAddress:
        """Return this address with a port that can be used. Raises HttpPortInUseError."""
        try:
            if self.port:
                try:
                    check_port(self.port, self.host)
                except PortInUseError:
                    if not self.is_default:
                        raise
                else:
                    return self
            return HttpAddress(self.host, free_port(self.host))
        except PortInUseError as error:
            raise HttpPortInUseError(**error.fields) from error

    async def wait_until_it_listens(self) -> None:
        """Return once somebody listens there."""
        host = _ANY_ADDRESS.get(self.host, self.host)
        while True:
            try:
                _, writer = await asyncio.open_connection(host, self.port)
            except OSError:
                await asyncio.sleep(_POLL_SECONDS)
            else:
                writer.close()
                return


def missing_packages() -> list[str]:
    """Return those that the gateway needs and that are not installed."""
    return [name for name in _PACKAGES if find_spec(name) is None]


def login_of_gateway(login: dict[str, str], *, with_tokens: bool) -> dict[str, str]:
    """Return how a gateway logs in to NATS: where clients need tokens, it has no rights of its
    own, only theirs."""
    if not with_tokens:
        return login
    return {name: text for name, text in login.items() if name in TLS_OPTIONS}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
