"""The `holdfast` command with holes in what checks tokens, to show that the attack finds them:
`python -m tests.hostile.tokens.planted ARGUMENTS`.

Each is what one forgotten check would be.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

from holdfast.cli.main import run
from holdfast.coordinator.answering import restricting
from holdfast.gateway.auth import login
from holdfast.protocol import frames
from holdfast.protocol.access import rights
from holdfast.protocol.access.nats_permissions import NatsPermissions, permissions_of
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import Token

PLANTED_PROGRAM: Final = (sys.executable, "-m", "tests.hostile.tokens.planted")


def _everybody_may(number: int) -> None:
    """One operation that needs no right, on any store."""
    rights._MASKS[number] = 0


def _wide_permissions(token: Token, prefix: str, *inboxes: str) -> NatsPermissions:
    """A wildcard in place of the pattern, for who may read something."""
    found = permissions_of(token, prefix, *inboxes)
    if Right.READ not in token.rights:
        return found
    return replace(found, subscribe=(*found.subscribe, f"{prefix}.{token.tenant}.chg.s.>"))


def _every_name(request: Any, *_: Any) -> Any:
    """A listing that shows whatever there is."""
    return request


if __name__ == "__main__":
    _everybody_may(frames.GET_MESSAGES)
    _everybody_may(frames.APPEND)
    restricting._listing = _every_name
    login.permissions_of = _wide_permissions  # type: ignore[attr-defined]
    run()
