"""The auth service: answers nats-server's questions about who wants to log in.

Several may run; NATS gives each question to one of them. Nothing is kept here that another one
would need: each asks nats-server which connections there are. A question that cannot be answered is
not: then nats-server refuses the client once its time is over, and the client tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.gateway.auth.connection_keeper import ConnectionKeeper
from holdfast.gateway.auth.known_tokens import KnownTokens
from holdfast.gateway.auth.login import Answering, LoginRequest, read_request
from holdfast.gateway.auth.nats_configuration import CALLOUT_SUBJECT
from holdfast.gateway.auth.sealing import open_sealed, seal
from holdfast.gateway.auth.system_account import ConnectionPlace
from holdfast.protocol.access.audit_event import AuditAction, AuditOutcome
from holdfast.protocol.access.nkeys_text import KeyKind, public_text
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import HoldfastError, InvalidTokenError
from holdfast.protocol.monitoring.counting import LabelledCounters
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit

if TYPE_CHECKING:
    from nacl.public import PrivateKey

logger = logging.getLogger("holdfast.gateway")

#: Instances share their work by this name of a queue group.
QUEUE: Final = "holdfast-auth"
#: Where a nats-server says with which key it encrypted its question.
_XKEY_HEADER: Final = "Nats-Server-Xkey"
#: Questions that are worked on at a time, and that wait. More are dropped: their clients would have
#: been refused before their turn.
_AT_A_TIME: Final = 64
_WAITING: Final = 4096


@dataclass(frozen=True, slots=True)
class AuthService:
    """One instance. `serve` runs until it is cancelled, or NATS ends the connection for good."""

    client: Client
    #: Gets the reason when nats-py gives the connection up.
    closed: asyncio.Future[HoldfastError]
    tokens: KnownTokens
    answering: Answering
    #: Decrypts questions and encrypts answers.
    callout_key: PrivateKey
    wall_clock: Callable[[], float]
    connections: ConnectionKeeper
    #: Connects to the system account; None without a key for it.
    connect_system: Callable[[], Awaitable[Bus]] | None
    audit: Audit = NO_AUDIT
    logins: LabelledCounters | None = None

    async def serve(self, ready: asyncio.Event) -> None:
        """Answer until cancelled; `ready` is set once questions come here.

        Raises ConnectionFailedError if the connection is `closed` for good.
        """
        account = public_text(KeyKind.ACCOUNT, bytes(self.answering.key.verify_key))
        limit = asyncio.Semaphore(_AT_A_TIME)

        async def answer(message: Msg) -> None:
            try:
                await self._answer(message, account)
            except Exception:
                # A bug costs one login, never the service.
                logger.exception("auth.request_failed")
            finally:
                limit.release()

        async with asyncio.TaskGroup() as tasks:

            async def heard(message: Msg) -> None:
                # Further questions wait in nats-py's queue.
                await limit.acquire()
                tasks.create_task(answer(message))

            await self.client.subscribe(
                CALLOUT_SUBJECT, queue=QUEUE, cb=heard, pending_msgs_limit=_WAITING
            )
            await self.client.flush()
            logger.info("auth.serving prefix=%s account=%s", self.answering.prefix, account)
            ready.set()
            keeping = None
            if self.connect_system is not None:
                keeping = tasks.create_task(self.connections.keep(self.connect_system))
            failure = await self.closed
            if keeping is not None:
                keeping.cancel()
        raise failure

    async def _answer(self, message: Msg, account: str) -> None:
        server_xkey = (message.headers or {}).get(_XKEY_HEADER, "")
        try:
            question = open_sealed(self.callout_key, server_xkey, message.data)
            request = read_request(question.decode(errors="replace"), account, self.wall_clock())
        except HoldfastError as error:
            logger.warning("auth.request_unreadable reason=%s", error)
            return
        text = await self._decide(request)
        await message.respond(seal(self.callout_key, server_xkey, text.encode()))

    async def _decide(self, request: LoginRequest) -> str:
        try:
            token = await self.tokens.check(request.token)
            place = ConnectionPlace(request.server, request.connection)
            if not await self.connections.may_come(place, token):
                count = token.limits.connections
                reason = f"token {token.id} has as many connections as it may have: {count}"
                raise InvalidTokenError(reason=reason)
        except HoldfastError as error:
            reason = error.reason if isinstance(error, InvalidTokenError) else str(error)
            logger.warning(
                "auth.refused reason=%s host=%s name=%s", reason, request.host, request.name
            )
            self._note(request, AuditOutcome.REFUSED, reason=reason)
            return self.answering.refuse(request, reason, self.wall_clock())
        logger.info(
            "auth.let_in token=%s tenant=%s host=%s name=%s",
            *(token.id, token.tenant, request.host, request.name),
        )
        self._note(request, AuditOutcome.DONE, token=token.id, tenant=token.tenant)
        return self.answering.let_in(request, token, self.wall_clock())

    def _note(self, request: LoginRequest, outcome: AuditOutcome, **fields: str) -> None:
        if self.logins is not None:
            self.logins.add("accepted" if outcome is AuditOutcome.DONE else "refused")
        details = {"name": request.name} if request.name else {}
        self.audit.note(AuditAction.LOGIN, outcome, address=request.host, details=details, **fields)
