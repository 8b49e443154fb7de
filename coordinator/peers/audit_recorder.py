"""The recorder of the audit log: appends what servers and operators tell to its stream.

It runs in the active coordinator, so there is one, and a standby takes over. Decisions and requests
never wait for it, nor does it know whether the stream's owner can be reached: whoever tells
something keeps it until it is answered, and tells it again. The id of an event is the `msg_id` of
its message, so what is told twice is stored once. The stream is made with the first event.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.coordinator.life import Life
from holdfast.protocol import frames
from holdfast.protocol.access.audit_event import AUDIT_STORE, AuditEvent
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    MalformedFrameError,
    NotFoundError,
    UnavailableError,
    error_from_wire,
    internal_error,
)
from holdfast.protocol.limits import (
    AUDIT_KEEP_SECONDS,
    CONTROL_TIMEOUT_SECONDS,
    MAX_ARRAY_LENGTH,
    MAX_AUDIT_BYTES,
    MAX_DEDUPE_WINDOW_SECONDS,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.subjects import CLUSTER_TENANT

logger = logging.getLogger("holdfast.coordinator")

#: Events that one request may have, and requests that may wait. Their senders keep the rest.
_MAX_EVENTS: Final = 256
_MAX_WAITING: Final = 64
_TRIES: Final = 4
_RETRY_SECONDS: Final = 0.25
_MAX_KNOWN_TOKENS: Final = 1024
#: Of an append that made its stream.
_FIRST_REVISION: Final = 1
_CONFIG: Final = {
    "max_age_seconds": AUDIT_KEEP_SECONDS,
    "max_bytes": MAX_AUDIT_BYTES,
    # An event may be told again hours later, after whoever recorded it died before it could say so.
    "dedupe_window_seconds": MAX_DEDUPE_WINDOW_SECONDS,
    "description": "what operators and tokens did",
}


class AuditRecorder:
    """Appends events, one request at a time."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._writer = b"audit" + secrets.token_bytes(11)
        self._counter = 0
        self._made = False
        self._tokens: dict[str, Token] = {}
        self._on_recorded: Callable[[], None] = _nobody

    def on_recorded(self, callback: Callable[[], None]) -> None:
        """Call `callback` from now on whenever events were recorded."""
        self._on_recorded = callback

    def on_message(self, message: BusMessage, grant: TokenGrant | None = None) -> None:
        """Take the events of a server, or those of an operator with the `grant`."""
        if not self._life.subjects.may_answer(message.subject, message.reply):
            return
        if self._waiting >= _MAX_WAITING:
            error = BusyError(what="the recorder of the audit log")
            self._life.background_tasks.start("audit", self._answer(message.reply, error))
        else:
            self._waiting += 1
            self._life.background_tasks.start("audit", self._serve(message, grant))

    async def record(self, events: Sequence[AuditEvent]) -> None:
        """Return once the audit log has the events. Raises HoldfastError."""
        async with self._turn:
            known = [await self._completed(event) for event in events]
            appends = [[frames.APPEND, each.to_json(), None, each.id] for each in known]
            for tries_left in reversed(range(_TRIES)):
                try:
                    await self._append(appends)
                    break
                except (KeyError, IndexError, TypeError, ValueError) as error:
                    # In an open cluster anybody can answer in the owner's place.
                    reason = f"an answer about the audit log: {error!r}"
                    raise MalformedFrameError(reason=reason) from error
                except UnavailableError as error:
                    # Its owner drains, or has just changed.
                    if not tries_left:
                        raise UnavailableError(reason=f"the audit log: {error}") from error
                    await asyncio.sleep(_RETRY_SECONDS)
        self._on_recorded()

    async def _serve(self, message: BusMessage, grant: TokenGrant | None) -> None:
        error: HoldfastError | None = None
        try:
            events = _events(message.payload)
            if grant is not None:
                # Who it was is what NATS knows, not what the message says.
                events = [replace(each, token=grant.id) for each in events]
            await self.record(events)
        except HoldfastError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 (answered to this request)
            self._life.mishaps.note("coordinator.request_failed", message.subject, failure)
            error = internal_error("audit", failure)
        finally:
            self._waiting -= 1
        await self._answer(message.reply, error)

    async def _answer(self, reply: str, error: HoldfastError | None) -> None:
        answer = frames.encode_control() if error is None else frames.encode_control_error(error)
        await self._life.bus.publish(reply, answer)

    async def _completed(self, event: AuditEvent) -> AuditEvent:
        """Return the event with what is known of its token."""
        if self._life.storage.tokens is None:
            return replace(event, mode="open", token="", subject="", issuer="")
        token = await self._token(event.token) if event.token else None
        if token is None:
            return replace(event, mode="tokens", subject="", issuer="")
        return replace(event, mode="tokens", subject=token.subject, issuer=token.issuer)

    async def _token(self, token_id: str) -> Token | None:
        known = self._tokens.get(token_id)
        source = self._life.storage.tokens
        if known is None and source is not None:
            try:
                known = await self._life.background_tasks.blocking(source.token, token_id)
            except HoldfastError as error:
                # The event has its id; who holds it, the registry tells later.
                logger.debug("audit.token_unread token=%s reason=%s", token_id, error)
            if known is not None:
                if len(self._tokens) >= _MAX_KNOWN_TOKENS:
                    self._tokens.clear()
                self._tokens[token_id] = known
        return known

    # The stream
    async def _append(self, appends: list[list[Any]]) -> None:
        owner = await self._owner()
        if not self._made:
            await self._make(owner)
            self._made = True
        results = await self._do(owner, appends)
        if results and results[0][1] == _FIRST_REVISION:
            # An operator has deleted it meanwhile.
            await self._do(owner, [[frames.CONFIGURE, _CONFIG]])

    async def _owner(self) -> str:
        stores = [list(AUDIT_STORE)]
        answer = frames.decode_control(
            await self._ask(self._life.subjects.cluster("owners"), stores=stores)
        )
        [owner] = answer["owners"]
        if owner[0] is None:
            raise error_from_wire(owner[1], owner[2])
        return str(owner[0])

    async def _make(self, owner: str) -> None:
        """Give a new stream its configuration; that of an old one is its operators' own."""
        try:
            [[revision, *_]] = await self._do(owner, [[frames.HEAD]])
        except NotFoundError:
            revision = 0
        if not revision:
            await self._do(owner, [[frames.CONFIGURE, _CONFIG]])

    async def _do(self, owner: str, operations: list[list[Any]]) -> list[Any]:
        """Have the owner do operations, durably, and return their results."""
        is_read = operations[0][0] >= frames.FIRST_READ
        # A try is a group of its own: that nothing is stored twice is the ids' doing.
        self._counter += not is_read
        counter = 0 if is_read else self._counter
        durability = 0 if is_read else int(Durability.SYNCED)
        group = [*AUDIT_STORE[1:], counter, counter, durability, operations]
        subject = self._life.subjects.own(owner, AUDIT_STORE.tenant)
        reply = await self._life.bus.request(
            subject, frames.encode_request(self._writer, [group]), CONTROL_TIMEOUT_SECONDS
        )
        [element] = frames.decode(reply)
        if element[1] != 0:
            raise error_from_wire(element[2], element[3])
        results = frames.decode_outcome(element[2]).results
        if isinstance(results, frames.Run):
            return []
        for result in results:
            if type(result) is list and result and type(result[0]) is str:
                raise error_from_wire(result[0], result[1])
        return results

    async def _ask(self, subject: str, **fields: object) -> bytes:
        payload = frames.encode_control(**fields)
        return await self._life.bus.request(
            subject, payload, CONTROL_TIMEOUT_SECONDS, CLUSTER_TENANT
        )


def _events(payload: bytes) -> list[AuditEvent]:
    """Return the events of a request. Raises MalformedFrameError."""
    told = frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH).get("events")
    if type(told) is not list or len(told) > _MAX_EVENTS:
        raise MalformedFrameError(reason=f"events must be a list of at most {_MAX_EVENTS}")
    return [AuditEvent.from_wire(each) for each in told]


def _nobody() -> None:
    return None
