"""Why nats-py's client fails, beside its own errors: what servers refuse, and logins that end."""

from __future__ import annotations

import re
from typing import Final

import nats.errors

from holdfast.protocol.bus.bus import NOT_PERMITTED
from holdfast.protocol.errors import NotAllowedError

_REFUSAL: Final = re.compile(
    r'permissions violation for (publish|subscription)(?: to| with reply of) "([^"]*)"',
    re.IGNORECASE,
)


def refusal(text: str) -> NotAllowedError | None:
    """Return the refusal that an error text of the server contains; None if it is another error."""
    found = _REFUSAL.search(text)
    if found is None:
        return None
    action = "publish to" if found[1].lower() == "publish" else "subscribe to"
    return NotAllowedError(action=action, subject=found[2], reason=NOT_PERMITTED)


class NoTlsError(nats.errors.Error):
    """The server offers no TLS, which is required."""

    def __str__(self) -> str:
        return "the server offers no TLS"


class LoginCutOffError(nats.errors.Error):
    """The server ended an encrypted connection before it answered the login. After TLS 1.3's
    handshake, its reason may get lost on the way."""

    def __str__(self) -> str:
        return "the server ended the connection during the login"
