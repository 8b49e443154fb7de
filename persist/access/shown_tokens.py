"""The tokens that clients of this host show when they connect directly.

Over NATS only the holder of a token can publish on a subject that names it. Past NATS, whoever
names one has to show it. What it allows, and whether it is expired or revoked, is looked at with
each frame, as over NATS.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.protocol.access.tokens import Token
from holdfast.protocol.direct.door_bus import Knows
from holdfast.protocol.direct.messages import Hello
from holdfast.protocol.serving.grant_desk import ReadElsewhere
from holdfast.protocol.subjects import Subjects


class ShownTokens(Protocol):
    """What verifies tokens. It blocks."""

    def shown(self, text: str) -> Token:
        """Return what a token says that an issuer signed. Raises InvalidTokenError, and another
        HoldfastError if the issuers cannot be read."""


def knows_holders(tokens: ShownTokens, subjects: Subjects, run_in_thread: ReadElsewhere) -> Knows:
    """Return what tells whether the client of a hello holds the token that its subject names."""

    async def knows(hello: Hello) -> bool:
        token = await run_in_thread(tokens.shown, hello.token)
        of_tenant = token.is_operator or token.tenant == subjects.tenant_of(hello.subject)
        return of_tenant and token.id == subjects.grant_of(hello.subject)

    return knows
