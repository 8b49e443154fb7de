"""Which pages of a browser may use the gateway: its own, and those that operators name.

A browser sends some requests of any page, and WebSockets always, without asking the server first,
so a request with a foreign `Origin` is refused. A page can also give its own name the address of
the gateway once it is loaded (DNS rebinding): to the browser it then is the gateway. So a request
without a token, which uses the login that the gateway has, must name a host that nobody can take:
an IP address, a name without a public domain, or one that operators list. Requests with a token
are as safe as the token, and TLS shows the name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.gateway.http.problems import ProblemError

#: No public registry sells names below these.
_PRIVATE_DOMAINS: Final = (".localhost", ".local", ".internal", ".home.arpa", ".test")
_ALL: Final = "*"
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_LAST_PORT: Final = 65_535
#: Scheme, host and port. Browsers write names with other characters as `xn--...`.
_ORIGIN: Final = re.compile(
    r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?"
)


def host_name(authority: str) -> str:
    """Return the name of a `Host` header in lower case, without its port and brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].rstrip(".").lower()


def parse_origin(text: str) -> str:
    """Return an origin as browsers write it: in lower case, without the usual port. `*` and `null`,
    which pages without an origin send, stay. Raises ValueError for what no browser ever sends."""
    if text in (_ALL, "null"):
        return text
    origin = text.lower()
    found = _ORIGIN.fullmatch(origin)
    if found is None or int(found[3] or 0) > _LAST_PORT:
        reason = "no path follows, no * is in it, and other characters are written as xn--..."
        raise ValueError(f"{text!r} is not an origin, such as https://example.org: {reason}")
    scheme, host, port = found.groups()
    is_usual = port is not None and int(port) == _USUAL_PORTS.get(scheme)
    return f"{scheme}://{host}" if is_usual else origin


def is_private(name: str) -> bool:
    """Return whether no stranger can make this name lead to the gateway: it is an IP address, has
    no domain, or one that is not public."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_PRIVATE_DOMAINS)
    return True


class KnownSites:
    """Refuses what pages of other origins ask for."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], hosts: Collection[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(each.encode() for each in origins)
        named = {urlsplit(each).hostname or "" for each in origins if each != _ALL}
        self._hosts = named | {host_name(each) for each in hosts}
        self._any_host = _ALL in hosts or _ALL in origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. Raises ProblemError."""
        if scope["type"] in ("http", "websocket"):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        origin = host = b""
        has_token = False
        for name, text in scope["headers"]:
            if name == b"origin":
                origin = text
            elif name == b"host":
                host = text
            elif name == b"authorization":
                has_token = True
        if origin and b"*" not in self._origins and origin not in self._origins:
            _, _, own = origin.partition(b"://")
            if own != host:
                raise ProblemError(403, "origin_refused", "pages of this origin may not use it")
        if not has_token and scope.get("scheme") not in ("https", "wss"):
            self._check_host(host)

    def _check_host(self, host: bytes) -> None:
        name = host_name(host.decode("latin-1"))
        if not self._any_host and name not in self._hosts and not is_private(name):
            detail = f"it does not know itself as {name[:200]}: start it with --host {name[:200]}"
            raise ProblemError(421, "host_refused", detail)
