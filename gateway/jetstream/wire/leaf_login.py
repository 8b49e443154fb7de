"""How a gateway logs in to a leafnode listener of nats-server, and why that may fail. Pure, but for
the files of the identity."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.bus.login_failure import login_failure
from holdfast.protocol.bus.nats_parser import NatsProtocolError
from holdfast.protocol.bus.nats_url import NatsUrl, parse_url, without_passwords
from holdfast.protocol.errors import ConnectionFailedError, InvalidArgumentError, LoginFailedError

#: The port of leafnodes by custom.
_PORT: Final = 7422
#: nats-server compares it with `min_version` of its leafnodes, if that is set. This is the first
#: one that rewrites subjects as the gateway needs it.
_VERSION: Final = "2.11.0"
_LISTEN: Final = (
    "`leafnodes { listen: 127.0.0.1:7422 }` in the configuration of nats-server, which it reads "
    "only when it starts, or another --leafnodes"
)
_SCHEMES: Final = ("nats-leaf", "nats", "tls")


class RefusedByServerError(Exception):
    """The server said why it ends the connection."""


class NotALeafnodePortError(Exception):
    """What answers takes clients, not leafnodes."""


@dataclass(frozen=True, slots=True)
class LeafServer:
    """One of the servers of a URL."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LeafLogin:
    """Where the leafnode listeners are, and who this is. The user of the URL counts before the
    files of `login`."""

    url: str
    address: NatsUrl
    login: NatsLogin
    #: How the connection is called in nats-server's monitoring.
    name: str
    #: Nobody else's, for as long as this process lives.
    server_id: str

    @classmethod
    def of(cls, url: str, login: NatsLogin, name: str, server_id: str) -> LeafLogin:
        """Take a URL apart. Raises InvalidArgumentError."""
        login.nats_options()
        leaf = cls(url, parse_url(url), login, name, server_id)
        for server in leaf.address.servers:
            if server.partition("://")[0] not in _SCHEMES:
                reason = f"{without_passwords(url)!r}: write nats-leaf://HOST:PORT"
                raise InvalidArgumentError(argument="leafnodes", reason=reason)
        return leaf

    @property
    def servers(self) -> list[LeafServer]:
        """The servers, in the order in which they are tried."""
        parts = [urlsplit(server) for server in self.address.servers]
        return [LeafServer(part.hostname or "", part.port or _PORT) for part in parts]

    @property
    def requires_tls(self) -> bool:
        """Whether a server without TLS is refused."""
        return self.address.is_secure or self.login.tls is not None

    def tls_context(self) -> ssl.SSLContext:
        """Read the files of TLS. Raises InvalidArgumentError."""
        return self.login.tls_context() or ssl.create_default_context()

    def connect_line(self, info: Mapping[str, Any]) -> bytes:
        """Return the line that logs in to the server that sent `info`.

        Never `lang`, or nats-server takes this for a client; never `remote_account`, or a second
        gateway of the same name replaces this one. Raises InvalidArgumentError.
        """
        fields: dict[str, object] = {
            "name": self.name,
            "server_id": self.server_id,
            "version": _VERSION,
            "headers": True,
            "protocol": 1,
        }
        if self.address.user is not None:
            fields |= {"user": self.address.user, "pass": self.address.password or ""}
        elif self.address.token is not None:
            fields["auth_token"] = self.address.token
        else:
            fields |= self.login.proof(str(info.get("nonce", "")))
        return b"CONNECT " + json.dumps(fields).encode() + b"\r\n"

    def failure(self, error: Exception) -> ConnectionFailedError:
        """Return an error that says why connecting failed and what to do."""
        reason, advice = _explained(error)
        return LoginFailedError(
            url=without_passwords(self.url), reason=f"{reason} (leafnodes)", advice=advice
        )


def read_info(body: bytes) -> dict[str, Any]:
    """Return what a server says of itself. Raises NatsProtocolError."""
    try:
        info = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NatsProtocolError(f"INFO: {error}") from error
    if not isinstance(info, dict):
        raise NatsProtocolError("INFO is no object")
    return info


def check_info(info: Mapping[str, Any]) -> None:
    """Raise NotALeafnodePortError if `info` comes from a port for clients, and NatsProtocolError if
    the server knows no headers."""
    if "client_ip" in info:
        raise NotALeafnodePortError
    if not info.get("headers"):
        raise NatsProtocolError("nats-server has headers turned off")


def _explained(error: Exception) -> tuple[str, str]:
    """Return the reason and what to try."""
    if isinstance(error, NotALeafnodePortError):
        return "that port is for clients, not for leafnodes", _LISTEN
    found = login_failure(error)
    if found is not None and isinstance(error, RefusedByServerError):
        return "it does not accept this user as a leafnode", (
            "user and password in HOLDFAST_LEAFNODES, of a user that `leafnodes { authorization }` "
            "of nats-server has, or one whose JWT allows connections of type LEAFNODE"
        )
    if found is not None:
        return found
    if isinstance(error, InvalidArgumentError):
        return str(error), "mend the file"
    if isinstance(error, NatsProtocolError):
        return f"what answers there is no leafnode listener ({error})", _LISTEN
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there", _LISTEN
    if isinstance(error, RefusedByServerError):
        return str(error), "see the log of nats-server"
    return str(error) or "no answer", _LISTEN
