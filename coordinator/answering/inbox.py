"""Requests that wait for the next batch: bounded, tenants in turns, parsed when they are taken.

None can fill the queue alone: a tenant may have as much in it as is still free, and beyond that the
answer is `busy`. Whatever is malformed is refused by itself, and so is what raises an exception
that nobody expected.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.requests import Request, parse, store_count
from holdfast.coordinator.answering.waiting_replies import WaitingReplies
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import BusyError, HoldfastError, internal_error
from holdfast.protocol.limits import MAX_INBOX_BYTES
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects

#: Requests that wait, by their bytes or for the membership's judgement; a client has one in flight,
#: so this is a burst of as many clients.
MAX_WAITING_REQUESTS: Final = 16384
#: What a request takes besides its payload, at least: so many of them fill the inbox.
_REQUEST_BYTES: Final = MAX_INBOX_BYTES // MAX_WAITING_REQUESTS
#: Stores that a tenant may ask for before another tenant's turn: what a client asks for at once.
TENANT_TURN_STORES: Final = 1024
#: Stores of one transaction: at most some 0.3 s of work, far below a client's patience.
MAX_BATCH_STORES: Final = 8192


class Asked(NamedTuple):
    """A request, and where its answer goes."""

    request: Request
    reply_to: str


class RequestInbox:
    """What was asked and is not looked at yet."""

    def __init__(
        self,
        subjects: Subjects,
        cluster: str,
        waiting: WaitingReplies,
        replies: Replies,
        mishaps: Mishaps,
        wakeup: Wakeup,
    ) -> None:
        self._subjects = subjects
        self._cluster = cluster
        self._waiting = waiting
        self._replies = replies
        self._mishaps = mishaps
        self._wakeup = wakeup
        self._queue: FairQueue[BusMessage] = FairQueue(TENANT_TURN_STORES)
        self._room = SharedRoom(MAX_INBOX_BYTES)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def on_message(self, message: BusMessage) -> None:
        """A request arrived."""
        if self._wakeup.stopping or not self._subjects.may_answer(message.subject, message.reply):
            return
        tenant = self._subjects.tenant_of(message.subject)
        size_bytes = _room_of(message)
        if len(self._waiting) < MAX_WAITING_REQUESTS and self._room.has(tenant, size_bytes):
            self._queue.push(tenant, message)
            self._room.take(tenant, size_bytes)
            self._wakeup.set()
        else:
            self._replies.refuse(message.reply, BusyError(what="the coordinator's queue"))

    def take(self) -> list[Asked]:
        """Return what goes into the next transaction. What makes no sense is answered here."""
        asked: list[Asked] = []
        stores = 0
        while self._queue and stores < MAX_BATCH_STORES:
            tenant, messages, allowance = self._queue.begin_turn()
            spent = 0
            while messages and spent < allowance:
                message = messages.popleft()
                self._room.give_back(tenant, _room_of(message))
                request = self._parse(tenant, message)
                if request is None:
                    spent += 1
                else:
                    spent += store_count(request)
                    asked.append(Asked(request, message.reply))
            self._queue.end_turn(spent)
            stores += spent
        return asked

    def _parse(self, tenant: str, message: BusMessage) -> Request | None:
        """Return what is asked; None if it was refused."""
        verb = message.subject.rpartition(".")[2]
        try:
            return parse(tenant, verb, message.payload, self._cluster)
        except HoldfastError as error:
            self._replies.add(message.reply, error)
        except Exception as error:  # noqa: BLE001 (it is this request's answer)
            self._mishaps.note("coordinator.request_failed", message.subject, error)
            self._replies.add(message.reply, internal_error(f"{verb:.40}", error))
        return None


def _room_of(message: BusMessage) -> int:
    return _REQUEST_BYTES + len(message.payload)
