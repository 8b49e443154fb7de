"""What the auth service knows of the registry: issuers, revoked tokens, tokens that are registered.

Nothing here is older than STALE_SECONDS: a registry that cannot be read lets nobody in. Connections
that are there go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.protocol.access.audit_event import AuditAction, AuditOutcome
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import HoldfastError, InvalidTokenError, UnavailableError
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.access.registry import AccessRegistry, Issuer, Revocations, verified

logger = logging.getLogger("holdfast.gateway")

#: How old the list of revoked tokens may be before a login looks again.
FRESH_SECONDS: Final = 1.0
#: How old it may be if it cannot be read: servers refuse after the same time.
STALE_SECONDS: Final = 5.0
#: Ids of tokens that are known to be registered. Beyond it, the oldest are looked up again.
_MAX_KNOWN: Final = 100_000


class KnownTokens:
    """Checks tokens against the registry. For one event loop; the registry is read in threads."""

    def __init__(
        self,
        registry: AccessRegistry,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        audit: Audit = NO_AUDIT,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._wall_clock = wall_clock
        self._audit = audit
        self._issuers: Mapping[str, Issuer] = {}
        self._revocations: Revocations | None = None
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._trouble = Trouble(logger, "auth.registry_unreadable")
        #: By id, the text.
        self._registered: dict[str, str] = {}

    async def check(self, text: str) -> Token:
        """Return what the token `text` says if it is valid now, and register it if it is new.

        Raises InvalidTokenError, whose reason does not quote it, and UnavailableError if the
        registry cannot be read.
        """
        if not text:
            raise InvalidTokenError(reason="the client gave no token")
        await self._look()
        token = verified(text, self._issuers)
        if token.is_expired(self._wall_clock()):
            raise InvalidTokenError(reason=f"token {token.id} has expired")
        assert self._revocations is not None
        if token.id in self._revocations.ids:
            raise InvalidTokenError(reason=f"token {token.id} is revoked")
        await self._register(text, token)
        return token

    async def revoked(self) -> Mapping[str, int | None]:
        """Return the ids of revoked tokens, read now. Raises UnavailableError if they cannot be."""
        async with self._looking:
            try:
                found = await asyncio.to_thread(self._registry.revocations, self._revocations)
            except HoldfastError as error:
                self._trouble.note("reason=%s", error)
                raise UnavailableError(reason="the registry of tokens cannot be read") from error
            self._trouble.over()
            self._revocations = found
            return found.ids

    async def _look(self) -> None:
        """Read issuers and revocations, unless that was done just now."""
        async with self._looking:
            if self._clock() < self._looked_at + FRESH_SECONDS:
                return
            # What is read was true when the reading began, or later.
            began_at = self._clock()
            try:
                issuers = await asyncio.to_thread(self._registry.issuers)
                found = await asyncio.to_thread(self._registry.revocations, self._revocations)
            except HoldfastError as error:
                self._trouble.note("reason=%s", error)
                if self._clock() < self._looked_at + STALE_SECONDS:
                    return
                raise UnavailableError(reason="the registry of tokens cannot be read") from error
            self._trouble.over()
            self._issuers, self._revocations, self._looked_at = issuers, found, began_at

    async def _register(self, text: str, token: Token) -> None:
        """Servers know a token by its id, so its text must be in the registry before it is used."""
        known = self._registered.get(token.id)
        if known == text:
            return
        if known is not None:
            raise InvalidTokenError(reason=f"its id {token.id} is that of another token")
        try:
            is_new = await asyncio.to_thread(self._registry.put_token, text, token)
        except InvalidTokenError:
            raise
        except HoldfastError as error:
            self._trouble.note("reason=%s", error)
            raise UnavailableError(reason="the registry of tokens cannot be written") from error
        if is_new:
            self._audit.note(
                AuditAction.TOKEN_REGISTERED,
                AuditOutcome.DONE,
                token=token.id,
                tenant=token.tenant,
                details={"allow": " ".join(token.rights.words)},
            )
        if len(self._registered) >= _MAX_KNOWN:
            self._registered.pop(next(iter(self._registered)))
        self._registered[token.id] = text
