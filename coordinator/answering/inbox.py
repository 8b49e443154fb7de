"""Requests that wait for the next batch. Bounded; tenants take turns.

No tenant can fill the queue alone: each may use as much of it as is still free, and gets `busy`
beyond that. Requests are parsed when they are taken. A malformed request, or one that raises an
unexpected exception, fails alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.coordinator.answering.bookmarks import Bookmarks
from holdfast.coordinator.answering.parsing import parse
from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.requests import Request, ResolveRequest, store_count
from holdfast.coordinator.answering.restricting import restricted
from holdfast.coordinator.answering.waiting_replies import WaitingReplies
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import BusyError, HoldfastError, internal_error
from holdfast.protocol.limits import MAX_INBOX_BYTES
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit, note_refusal
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects

#: At most this many requests wait, in the queue or for a decision of the membership. A client has
#: one request in flight, so this is a burst of as many clients.
MAX_WAITING_REQUESTS: Final = 16384
#: A request takes at least this much of the inbox besides its payload, so that
#: MAX_WAITING_REQUESTS empty ones fill it.
_REQUEST_BYTES: Final = MAX_INBOX_BYTES // MAX_WAITING_REQUESTS
#: How many stores a tenant may ask for before the next tenant's turn: as
#: many as one client request may name.
TENANT_TURN_STORES: Final = 1024
#: Stores in one transaction: about 0.3 s of work at most, far less than a client waits.
MAX_BATCH_STORES: Final = 8192


class _Queued(NamedTuple):
    message: BusMessage
    grant: TokenGrant | None


class Asked(NamedTuple):
    """A request, and the subject that its answer goes to."""

    request: Request
    reply_to: str


class RequestInbox:
    """The requests that have arrived and have not been taken yet."""

    def __init__(
        self,
        subjects: Subjects,
        cluster: str,
        waiting: WaitingReplies,
        replies: Replies,
        mishaps: Mishaps,
        wakeup: Wakeup,
        audit: Audit = NO_AUDIT,
    ) -> None:
        self._subjects = subjects
        self._cluster = cluster
        self._waiting = waiting
        self._replies = replies
        self._mishaps = mishaps
        self._wakeup = wakeup
        self._audit = audit
        self._queue: FairQueue[_Queued] = FairQueue(TENANT_TURN_STORES)
        self._room = SharedRoom(MAX_INBOX_BYTES)
        self._bookmarks = Bookmarks()

    def __len__(self) -> int:
        return len(self._queue)

    def on_message(self, message: BusMessage, grant: TokenGrant | None = None) -> None:
        """Queue a request that has arrived, or refuse it with `busy`. Without a grant, everything
        is allowed."""
        if self._wakeup.stopping or not self._subjects.may_answer(message.subject, message.reply):
            return
        tenant = self._subjects.tenant_of(message.subject)
        size_bytes = _room_of(message)
        if len(self._waiting) < MAX_WAITING_REQUESTS and self._room.has(tenant, size_bytes):
            self._queue.push(tenant, _Queued(message, grant))
            self._room.take(tenant, size_bytes)
            self._wakeup.set()
        else:
            self._replies.refuse(message.reply, BusyError(what="the coordinator's queue"))

    def take(self) -> list[Asked]:
        """Return the requests of the next transaction. Malformed ones are answered here."""
        asked: list[Asked] = []
        stores = 0
        while self._queue and stores < MAX_BATCH_STORES:
            tenant, messages, allowance = self._queue.begin_turn()
            spent = 0
            while messages and spent < allowance:
                message, grant = messages.popleft()
                self._room.give_back(tenant, _room_of(message))
                request = self._parse(tenant, message, grant)
                if request is None:
                    spent += 1
                else:
                    spent += store_count(request)
                    asked.append(Asked(request, message.reply))
            self._queue.end_turn(spent)
            stores += spent
        return asked

    def _parse(self, tenant: str, message: BusMessage, grant: TokenGrant | None) -> Request | None:
        """Return the request, or None if it was refused."""
        verb = self._subjects.verb_of(message.subject)
        try:
            request = parse(tenant, verb, message.payload, self._cluster)
            if grant is None:
                return request
            allowed = restricted(request, grant, self._bookmarks)
            if isinstance(allowed, ResolveRequest):
                for slot in allowed.stores:
                    if isinstance(slot, HoldfastError):
                        note_refusal(self._audit, tenant, grant.id, slot)
            return allowed
        except HoldfastError as error:
            note_refusal(self._audit, tenant, "" if grant is None else grant.id, error)
            self._replies.add(message.reply, error)
        except Exception as error:  # noqa: BLE001 (it is this request's answer)
            self._mishaps.note("coordinator.request_failed", message.subject, error)
            self._replies.add(message.reply, internal_error(f"{verb:.40}", error))
        return None


def _room_of(message: BusMessage) -> int:
    return _REQUEST_BYTES + len(message.payload)
