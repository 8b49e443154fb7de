"""The URL of a NATS system: its servers, and the user that it contains. Pure.

User and password are percent-encoded in the URL and decoded here, because nats-py takes them as
they are. They are also taken out of the URL, so that nothing of nats-py's can show them, and so
that servers of the NATS system that it discovers later get them too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from holdfast.protocol.errors import InvalidArgumentError

#: A comma between two URLs; not one in a password, which should be percent-encoded.
_BETWEEN_URLS: Final = re.compile(r",(?=[a-z]+://)")
#: Schemes of connections that are always encrypted.
_SECURE: Final = ("tls", "wss")
_SCHEMES: Final = ("nats", "nats-leaf", "ws", *_SECURE)


@dataclass(frozen=True, slots=True)
class NatsUrl:
    """What a URL says. Without a password, `token` is what stands in place of the user."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def is_secure(self) -> bool:
        """Whether the URL itself asks for TLS."""
        return any(server.partition("://")[0] in _SECURE for server in self.servers)


def parse_url(text: str) -> NatsUrl:
    """Parse a URL, or several joined by commas. Raises InvalidArgumentError."""
    servers, users = [], set()
    for part in text.split(","):
        scheme, separator, rest = part.strip().rpartition("://")
        user, at, address = rest.rpartition("@")
        server = f"{scheme if separator else 'nats'}://{address}"
        if server.partition("://")[0] not in _SCHEMES:
            raise _invalid(text, f"its scheme must be one of {', '.join(_SCHEMES)}")
        if not _is_server(server):
            advice = "percent-encode the special characters of user and password"
            raise _invalid(text, advice if at else "write nats://HOST:PORT")
        servers.append(server)
        if at:
            users.add(user)
    if not users:
        return NatsUrl(tuple(servers))
    if len(users) > 1:
        raise _invalid(text, "all servers need the same user and password")
    user, has_password, password = users.pop().partition(":")
    if not has_password:
        return NatsUrl(tuple(servers), token=unquote(user))
    return NatsUrl(tuple(servers), unquote(user), unquote(password))


def url_of_arguments(text: str, argument: str = "--nats", variable: str = "HOLDFAST_NATS") -> str:
    """Return a URL that was given on a command line, which every user of the machine can read.
    Raises InvalidArgumentError if it has a password or token, which `variable` may have."""
    if without_passwords(text) != text:
        reason = (
            "other users of this machine can read the password in a command line. "
            f"Try: {variable}=nats://USER:PASSWORD@HOST:4222 in the environment, or --nats-creds"
        )
        raise InvalidArgumentError(argument=argument, reason=reason)
    return text


def without_passwords(text: str) -> str:
    """Return a URL without user, password and token, for display. If it is malformed, so that these
    cannot be told from the rest, more is left out."""
    if "@" not in text:
        return text
    return ",".join(_without_password(part) for part in _BETWEEN_URLS.split(text))


def _without_password(text: str) -> str:
    before, at, address = text.rpartition("@")
    scheme = before.partition("://")[0]
    if not at:
        # Else it is the start of a password with a comma.
        return text if _is_server(text) else "***"
    return f"{scheme}://***@{address}" if scheme in _SCHEMES else f"***@{address}"


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _invalid(text: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        argument="nats",
        reason=f"{without_passwords(text)!r} is not a URL of NATS servers: {advice}",
    )
