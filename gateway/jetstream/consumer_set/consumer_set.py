"""All consumers of one served stream: what the stream begins, asks and ends.

`begin` loads the recorded consumers, which then go on where the gateway before stopped, and listens
for pull requests, acks and flow control. `answer` answers requests of the API about consumers.
`close` hands them over.

A pull request decides by the interest in its inbox, and comes over another connection than the
interest: so unless that is known already, it waits for a barrier on the leaf, one for all requests
of a turn. Most acks want no answer; those of a turn are taken together.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import Final

from holdfast.gateway.jetstream.api.acks import AckKind, parse_ack, parse_ack_subject
from holdfast.gateway.jetstream.api.headers import get
from holdfast.gateway.jetstream.api.limits import API_LEVEL
from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb
from holdfast.gateway.jetstream.consumer_set import starting
from holdfast.gateway.jetstream.consumer_set.board import ConsumerBoard
from holdfast.gateway.jetstream.consumer_set.consumer_api import ConsumerApi
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumers import statuses
from holdfast.gateway.jetstream.consumers.backlog import Backlog
from holdfast.gateway.jetstream.consumers.consumer import ApiConsumer
from holdfast.gateway.jetstream.consumers.cursor import CursorRecord, Recorded, decoded
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings
from holdfast.gateway.jetstream.consumers.stream_access import StreamAccess
from holdfast.gateway.jetstream.wire.ports import PortMessage, PortSubscription
from holdfast.protocol.errors import MalformedFrameError

logger = logging.getLogger("holdfast.gateway")

#: Counts of recorded consumers that are asked for at a time.
_COUNTS: Final = 16
#: No seq has so many.
_SEQ_DIGITS: Final = 20
#: The ack subject of a consumer of one stream, and the seq in it. Names with other characters, and
#: longer numbers, are looked at one by one.
_PLAIN_ACK: Final = rb"\$JS\.ACK\.%b\.([!-\-/-~]+)\.[0-9]{1,19}\.([0-9]{1,19})(?:\.[0-9]{1,19}){3}"


class ConsumerSet:
    """The consumers of one stream."""

    def __init__(self, access: StreamAccess) -> None:
        self._access = access
        self._board: ConsumerBoard
        self._api: ConsumerApi
        self._subscriptions: list[PortSubscription] = []
        # Consumers that were asked for messages in this turn.
        self._pulled: dict[str, ServedConsumer] = {}
        # Pull requests that wait for a barrier.
        self._behind_barrier = 0
        # Plain acks of this turn, by consumer.
        self._acks: dict[bytes, list[int]] = {}
        stream = re.escape(access.name.encode())
        self._plain_ack = re.compile(_PLAIN_ACK % stream).fullmatch

    @property
    def count(self) -> int:
        """How many consumers there are."""
        return len(self._board.consumers)

    def lags(self) -> list[int]:
        """Return how many messages each consumer has not acknowledged."""
        return [each.consumer.lag for each in self._board.consumers.values()]

    async def begin(self) -> None:
        """Load the recorded consumers, and listen. Raises HoldfastError."""
        access = self._access
        self._board = board = ConsumerBoard(access)
        self._api = ConsumerApi(access, board)
        access.listen(board)
        loaded = [
            self._load(cursor.name, recorded, {seq for seq, _ in cursor.rows})
            for cursor in await access.cursors()
            if (recorded := self._decoded(cursor.name, cursor.config, cursor.state, cursor.rows))
        ]
        gate = asyncio.Semaphore(_COUNTS)

        async def count(consumer: ServedConsumer) -> None:
            async with gate:
                backlog = consumer.consumer.backlog
                await starting.count(access, consumer.config.filters, backlog)

        await asyncio.gather(*(count(each) for each in loaded if not each.consumer.backlog.at_tail))
        await self._subscribe()
        for consumer in loaded:
            board.begin(consumer)

    async def answer(self, call: ApiCall, message: PortMessage) -> None:
        """Answer a request about the stream's consumers, over the leaf. Raises ApiError, which the
        caller answers with, and HoldfastError."""
        await self._api.answer(call, message)

    async def close(self, *, deposed: bool = False, deleted: bool = False) -> None:
        """Stop. Unless the stream was deleted or another gateway serves it already (`deposed`),
        everything is recorded first, so that the next gateway goes on from here."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()
        self._take_acks()
        board = self._board
        status = statuses.CONSUMER_DELETED if deleted else statuses.LEADERSHIP_CHANGE
        for consumer in board.consumers.values():
            board.apply(consumer, consumer.consumer.closed(status))
        await board.recorder.close(write=not (deposed or deleted))
        board.close()

    # Inside

    def _decoded(
        self, name: str, config: bytes, state: bytes, rows: list[tuple[int, bytes]]
    ) -> Recorded | None:
        try:
            return decoded(config, state, rows)
        except MalformedFrameError as error:
            # Of a later version, maybe: it is left alone, and does not exist for clients.
            consumer = f"{self._access.name}.{name}"
            logger.error("jetstream.consumer_unreadable consumer=%s reason=%s", consumer, error)
            return None

    def _load(self, name: str, recorded: Recorded, rows: set[int]) -> ServedConsumer:
        board = self._board
        last_seq = board.view.last_seq
        start_seq = recorded.ledger.delivered_seq + 1
        at_tail = start_seq > last_seq
        lasts_up_to = 0 if at_tail else recorded.lasts_up_to
        backlog = Backlog(start_seq, at_tail=at_tail, lasts_up_to=lasts_up_to)
        if not at_tail:
            backlog.asked_for_count(last_seq)
        settings = DeliverySettings.of(recorded.config)
        core = ApiConsumer(name, settings, recorded.ledger, backlog, board.surroundings)
        core.remember(recorded.delivered_at_ms, recorded.acked_at_ms)
        record = CursorRecord(name, None, rows)
        created_ms = recorded.created_ns // 1_000_000
        consumer = ServedConsumer(recorded.config, created_ms, core, record)
        board.hear(consumer)
        return consumer

    async def _subscribe(self) -> None:
        client, name = self._access.client, self._access.name
        starts = ["$JS.API."]
        if self._access.domain:
            starts.append(f"$JS.{self._access.domain}.API.")
        subjects = [
            (f"{start}{ApiVerb.CONSUMER_MSG_NEXT}.{name}.*", self._next) for start in starts
        ]
        subjects.append((f"$JS.ACK.*.*.{name}.>", self._acked))
        subjects.append((f"$JS.FC.{name}.>", self._flow_answered))
        acks = await client.subscribe(f"$JS.ACK.{name}.>", self._acked, quick=self._acked_plainly)
        self._subscriptions.append(acks)
        for subject, callback in subjects:
            self._subscriptions.append(await client.subscribe(subject, callback))
        await client.flush()

    def _next(self, message: PortMessage) -> None:
        """Take a pull request."""
        if not message.reply:
            return
        level = get(message.headers, "Nats-Required-Api-Level") if message.headers else None
        if level is not None and not (level.isdecimal() and int(level[:9]) <= API_LEVEL):
            self._board.send(message.reply, block=statuses.REQUIRED_API_LEVEL)
            return
        self._request(message.subject.rpartition(".")[2], message.reply, message.payload)

    def _request(self, name: str, inbox: str, body: bytes) -> None:
        """Take a pull request once the interest in its inbox is known. They stay in order."""
        leaf = self._access.leaf
        if not self._behind_barrier and leaf.has_interest(inbox):
            self._pull(name, inbox, body)
            return
        self._behind_barrier += 1

        def passed() -> None:
            self._behind_barrier -= 1
            self._pull(name, inbox, body)

        leaf.barrier(passed)

    def _pull(self, name: str, inbox: str, body: bytes) -> None:
        self._take_acks()
        board = self._board
        consumer = board.consumers.get(name)
        if consumer is None:
            board.send(inbox, block=statuses.NO_RESPONDERS)
            return
        if consumer.gone:
            # The next gateway knows nothing of this request: the client notices, as when a
            # consumer's leader changes.
            return
        now = self._access.now_ms()
        board.apply(consumer, consumer.consumer.pulled(inbox, body, now))
        if not self._pulled:
            asyncio.get_running_loop().call_soon(self._serve)
        self._pulled[name] = consumer

    def _serve(self) -> None:
        """Serve the consumers of the requests that came together."""
        pulled, self._pulled = self._pulled, {}
        now = self._access.now_ms()
        for consumer in pulled.values():
            self._board.run(consumer, partial(consumer.consumer.serve, now))

    def _acked_plainly(self, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """Take an ack that wants no answer, at the end of the turn."""
        if reply or (payload and payload != b"+ACK"):
            return False
        match = self._plain_ack(subject)
        if match is None:
            return False
        name, seq = match.groups()
        seqs = self._acks.get(name)
        if seqs is not None:
            seqs.append(int(seq))
            return True
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._take_acks)
        self._acks[name] = [int(seq)]
        return True

    def _take_acks(self) -> None:
        """Take the plain acks that came in this turn."""
        if not self._acks:
            return
        acks, self._acks = self._acks, {}
        board, now = self._board, self._access.now_ms()
        for name, seqs in acks.items():
            consumer = board.consumers.get(name.decode())
            if consumer is not None and consumer.consumer.settings.takes_acks:
                board.run(consumer, partial(consumer.consumer.acked_plainly, seqs, now))

    def _acked(self, message: PortMessage) -> None:
        """Take an ack. Where nobody wants one, NATS would say so."""
        self._take_acks()
        board, reply = self._board, message.reply
        subject = parse_ack_subject(message.subject)
        if subject is None or subject.stream != self._access.name:
            return
        consumer = board.consumers.get(subject.consumer)
        if consumer is None or not consumer.consumer.settings.takes_acks:
            if reply:
                board.send(reply, block=statuses.NO_RESPONDERS)
            return
        ack = parse_ack(message.payload)
        now = self._access.now_ms()
        board.apply(consumer, consumer.consumer.acked(subject, ack, reply, now))
        if ack.kind is AckKind.NEXT and reply:
            self._request(consumer.name, reply, ack.request)

    def _flow_answered(self, message: PortMessage) -> None:
        """Take an answer to flow control."""
        tokens = message.subject.split(".")
        consumer = self._board.consumers.get(tokens[3]) if len(tokens) > 3 else None
        if consumer is not None:
            now = self._access.now_ms()
            acked = get(message.headers, "Nats-Last-Stream") or ""
            is_seq = acked.isascii() and acked.isdigit() and len(acked) < _SEQ_DIGITS
            acked_seq = int(acked) if is_seq else 0
            effects = consumer.consumer.flow_answered(message.subject, acked_seq, now)
            self._board.apply(consumer, effects)
