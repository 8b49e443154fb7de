"""What nats-server asks about a connection, and what it is answered. Pure.

nats-server makes a user nkey for each connection that wants to log in, and takes only an answer
that is for this nkey and this server. So an answer cannot be used for another connection, and an
old question brings nobody in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.gateway.auth.claims import CLAIMS_VERSION, read_claims, sign_claims
from holdfast.protocol.access.nats_permissions import permissions_of
from holdfast.protocol.access.nkeys_text import KeyKind, public_key
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError
from holdfast.protocol.subjects import DEFAULT_INBOXES

if TYPE_CHECKING:
    from nacl.signing import SigningKey

_AUDIENCE: Final = "nats-authorization-request"
#: How far the clocks of nat-server's host and of this one may be apart. A question is fresh for the
#: seconds that a client waits for its login.
CLOCK_LEEWAY_SECONDS: Final = 60
#: Clients only; no leaf nodes, which may not come with a client's token.
_CONNECTION_TYPES: Final = ["STANDARD", "WEBSOCKET", "IN_PROCESS"]
_UNLIMITED: Final = -1
_MAX_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A connection that wants to log in."""

    #: The public nkeys of the nats-server, and of the user that it made for this connection.
    server: str
    user: str
    #: The number of the connection: nats-server never uses it again.
    connection: int
    #: What the client gave as its token, or nothing.
    token: str = field(repr=False)
    #: Where it comes from and what it calls itself: unchecked, printable, for logs.
    host: str
    name: str


def read_request(text: str, account: str, now_seconds: float) -> LoginRequest:
    """Return the request in the claims `text` of a nat-server that asks `account`.

    Raises MalformedFrameError for claims that no nats-server signed, for another account, or too
    old.
    """
    claims = read_claims(text, KeyKind.SERVER)
    asked = _object(claims, "nats")
    server, options = _object(asked, "server_id"), _object(asked, "connect_opts")
    client = _object(asked, "client_info")
    if asked.get("type") != "authorization_request" or claims.get("aud") != _AUDIENCE:
        raise MalformedFrameError(reason="the claims are no request to log in")
    if claims.get("sub") != account:
        raise MalformedFrameError(reason="the request is for another account")
    if server.get("id") != claims["iss"]:
        raise MalformedFrameError(reason="another server signed the request")
    expires_at = claims.get("exp")
    if type(expires_at) is not int or expires_at + CLOCK_LEEWAY_SECONDS < now_seconds:
        raise MalformedFrameError(reason="the request is too old, or the clocks differ")
    user = str(asked.get("user_nkey"))
    try:
        public_key(KeyKind.USER, user)
    except InvalidArgumentError as error:
        raise MalformedFrameError(reason="the request names no user nkey") from error
    connection = client.get("id")
    if type(connection) is not int:
        raise MalformedFrameError(reason="the request names no connection")
    # A client without an nkey gives it as the password of a user.
    token = options.get("auth_token") or options.get("pass")
    return LoginRequest(
        str(server["id"]),
        user,
        connection,
        token if type(token) is str else "",
        _shown(client.get("host")),
        _shown(options.get("name")),
    )


@dataclass(frozen=True, slots=True)
class Answering:
    """Writes answers, signed by the account's key."""

    key: SigningKey
    #: The NATS account of the cluster, where clients are put.
    account: str
    #: The subjects' prefix.
    prefix: str
    #: The first token of all inboxes.
    inboxes: str = DEFAULT_INBOXES

    def let_in(self, request: LoginRequest, token: Token, now_seconds: float) -> str:
        """Return the answer that gives the connection what `token` allows, until it expires."""
        now = int(now_seconds)
        allowed = permissions_of(token, self.prefix, self.inboxes)
        # NATS permits everything to a user whose list is empty.
        assert allowed.publish and allowed.subscribe
        user: dict[str, object] = {
            "sub": request.user,
            "aud": self.account,
            # nats-server shows it as the user's name.
            "name": token.id,
            "nats": {
                "pub": {"allow": list(allowed.publish)},
                "sub": {"allow": list(allowed.subscribe)},
                # nats-server does not look at these in the answer of a callout, but a user without
                # them is not valid: its configuration limits subscriptions and messages.
                "subs": _UNLIMITED,
                "data": _UNLIMITED,
                "payload": _UNLIMITED,
                "allowed_connection_types": _CONNECTION_TYPES,
                "type": "user",
                "version": CLAIMS_VERSION,
            },
        }
        if token.expires_at is not None:
            user["exp"] = token.expires_at
        jwt = sign_claims(user, KeyKind.ACCOUNT, self.key, now)
        return self._answer(request, {"jwt": jwt}, now)

    def refuse(self, request: LoginRequest, reason: str, now_seconds: float) -> str:
        """Return the answer that lets the connection not in. nats-server logs `reason`; the client
        learns nothing."""
        return self._answer(request, {"error": reason}, int(now_seconds))

    def _answer(self, request: LoginRequest, answer: Mapping[str, str], now: int) -> str:
        claims = {
            "sub": request.user,
            "aud": request.server,
            "nats": {**answer, "type": "authorization_response", "version": CLAIMS_VERSION},
        }
        return sign_claims(claims, KeyKind.ACCOUNT, self.key, now)


def _object(claims: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = claims.get(name)
    if type(found) is not dict:
        raise MalformedFrameError(reason=f"the claims have no object {name!r}")
    return found


def _shown(value: object) -> str:
    return ascii(value)[1:-1][:_MAX_SHOWN] if type(value) is str else ""
