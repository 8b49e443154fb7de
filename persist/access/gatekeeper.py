"""The gatekeeper: finds the grant of each request of a client before anything else is done with it.

In an open cluster it lets everything pass. Otherwise a request names a token by its subject
(`protocol/subjects.py`), and the grant desk knows what that allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.access.token_meter import TokenMeters
from holdfast.persist.incarnation import Incarnation
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import MAX_KNOWN_GRANTS
from holdfast.protocol.serving.grant_book import Claim
from holdfast.protocol.serving.grant_desk import GrantDesk, TokenSource

#: Goes on with a request; None stands for an open cluster.
Take = Callable[[BusMessage, FrameAccess | None], None]
Refuse = Callable[[BusMessage, HoldfastError], None]


class _Request(NamedTuple):
    message: BusMessage
    take: Take
    refuse: Refuse


class Gatekeeper:
    """Admits the requests of clients to one incarnation. `run` it in a task."""

    def __init__(self, life: Incarnation, tokens: TokenSource | None) -> None:
        """Without `tokens` the cluster is open."""
        self._subjects = life.subjects
        self._audit = life.audit
        self._meters = TokenMeters()
        #: By subject, and by id of the token: made once for many frames.
        self._claims: dict[str, Claim] = {}
        self._accesses: dict[str, FrameAccess] = {}
        self._desk: GrantDesk[_Request] | None = None
        if tokens is not None:
            clock_ms = life.clock_ms
            self._desk = GrantDesk(
                tokens,
                life.run_in_thread,
                lambda: clock_ms() / 1000,
                self._look,
                lambda request, error: request.refuse(request.message, error),
            )

    @property
    def asks_for_tokens(self) -> bool:
        """False in an open cluster."""
        return self._desk is not None

    def admit(self, message: BusMessage, take: Take, refuse: Refuse) -> None:
        """Call `take` with what the sender may do, or `refuse`; both perhaps later."""
        if self._desk is None:
            take(message, None)
        else:
            self._look(_Request(message, take, refuse))

    async def run(self) -> None:
        """Read tokens and revocations until cancelled."""
        if self._desk is not None:
            await self._desk.run()

    def _look(self, request: _Request) -> None:
        desk = self._desk
        assert desk is not None
        message, take, refuse = request
        claim = self._claims.get(message.subject) or self._claim_of(message.subject)
        found = desk.look(claim)
        if type(found) is TokenGrant:
            access = self._accesses.get(found.id)
            if access is None or access.grant is not found:
                access = self._access_of(found)
            take(message, access)
        elif found is None:
            desk.wait(claim, request, len(message.payload))
        else:
            assert isinstance(found, HoldfastError)
            refuse(message, found)

    def _claim_of(self, subject: str) -> Claim:
        subjects = self._subjects
        claim = Claim(subjects.tenant_of(subject), subjects.grant_of(subject), subject)
        if len(self._claims) >= MAX_KNOWN_GRANTS:
            self._claims.clear()
        self._claims[subject] = claim
        return claim

    def _access_of(self, grant: TokenGrant) -> FrameAccess:
        access = FrameAccess(grant, self._meters.of(grant), _now_ms, self._audit)
        if len(self._accesses) >= MAX_KNOWN_GRANTS:
            self._accesses.clear()
        self._accesses[grant.id] = access
        return access


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
