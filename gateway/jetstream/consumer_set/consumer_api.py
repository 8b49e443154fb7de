"""Requests of the API about the consumers of one stream.

Changes are made one at a time. A consumer is recorded durably before its client hears of it, and
delivers nothing before; what a reply says of it is exact: how much is pending, and who listens. All
replies go out over the leaf, since clients compare them with the deliveries around them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from holdfast.gateway.jetstream.api import bodies, errors, replies
from holdfast.gateway.jetstream.api.checks import consumer_checks
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig, DeliverPolicy
from holdfast.gateway.jetstream.api.limits import INFOS_IN_A_PAGE, MAX_STREAM_CONSUMERS
from holdfast.gateway.jetstream.api.names import made_name
from holdfast.gateway.jetstream.api.replies import ApiConsumerInfo
from holdfast.gateway.jetstream.api.requests.consumer_requests import (
    ConsumerAction,
    CreateConsumer,
    ListConsumers,
    PauseConsumer,
    ResetConsumer,
    UnpinConsumer,
)
from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb
from holdfast.gateway.jetstream.api.times import MILLISECOND
from holdfast.gateway.jetstream.consumer_set import starting
from holdfast.gateway.jetstream.consumer_set.board import ConsumerBoard
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer, is_recorded
from holdfast.gateway.jetstream.consumers.backlog import READ_AHEAD, Backlog
from holdfast.gateway.jetstream.consumers.consumer import ApiConsumer
from holdfast.gateway.jetstream.consumers.cursor import CursorRecord, encoded_config
from holdfast.gateway.jetstream.consumers.ledger import DeliveryLedger
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings
from holdfast.gateway.jetstream.consumers.stream_access import StreamAccess
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import MAX_CURSORS

#: How long a reply waits for a barrier on the leaf, which answers in less than a millisecond.
_BARRIER_SECONDS: Final = 2.0
#: How often it is counted for a reply while messages are removed all the time.
_COUNTS: Final = 4
_RESETTABLE: Final = frozenset(
    (DeliverPolicy.ALL, DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME)
)


class ConsumerApi:
    """Answers the requests about the consumers of one stream."""

    def __init__(self, access: StreamAccess, board: ConsumerBoard) -> None:
        self._access = access
        self._board = board
        self._changing = asyncio.Lock()
        self._verbs: Mapping[ApiVerb, Callable[[ApiCall, PortMessage], Awaitable[None]]] = {
            ApiVerb.CONSUMER_CREATE: self._create,
            ApiVerb.CONSUMER_DURABLE_CREATE: self._create,
            ApiVerb.CONSUMER_INFO: self._info,
            ApiVerb.CONSUMER_NAMES: self._names,
            ApiVerb.CONSUMER_LIST: self._list,
            ApiVerb.CONSUMER_DELETE: self._delete,
            ApiVerb.CONSUMER_PAUSE: self._pause,
            ApiVerb.CONSUMER_UNPIN: self._unpin,
            ApiVerb.CONSUMER_RESET: self._reset,
            ApiVerb.CONSUMER_LEADER_STEPDOWN: self._step_down,
        }

    async def answer(self, call: ApiCall, message: PortMessage) -> None:
        """Answer a request. Raises ApiError and HoldfastError."""
        await self._verbs[call.verb](call, message)

    # Making and changing

    async def _create(self, call: ApiCall, message: PortMessage) -> None:
        request = CreateConsumer.parse(call, message.payload)
        stream = self._access.config
        config = consumer_checks.complete(
            request.config, stream, self._access.limits, pedantic=request.pedantic
        )
        async with self._changing:
            old = self._board.consumers.get(request.name) if request.name else None
            if old is not None:
                await self._update(old, config, request.action, message.reply)
                return
            if request.action is ConsumerAction.UPDATE:
                raise errors.consumer_does_not_exist()
            others = {name: each.config for name, each in self._board.consumers.items()}
            consumer_checks.check_create(config, stream, others, self._access.limits)
            self._check_room(config)
            name = request.name or self._free_name()
            consumer = await self._made(name, config)
            self._reply(message.reply, replies.consumer_created_reply, consumer)
            self._board.advise_created(consumer)
            self._board.begin(consumer)

    async def _made(self, name: str, config: ApiConsumerConfig) -> ServedConsumer:
        """Make a consumer, which is silent until it begins."""
        access, board = self._access, self._board
        by_lasts = starting.is_by_lasts(access, config)
        start_seq = 1 if by_lasts else await starting.start_seq(access, config)
        at_tail = start_seq > board.view.last_seq and not by_lasts
        backlog = Backlog(start_seq, at_tail=at_tail)
        ledger = DeliveryLedger(start_seq)
        settings = DeliverySettings.of(config)
        core = ApiConsumer(name, settings, ledger, backlog, board.surroundings)
        now = access.now_ms()
        record = None
        if is_recorded(config):
            record = CursorRecord(name, encoded_config(config, now * MILLISECOND), set())
        consumer = ServedConsumer(config, now, core, record)
        if not at_tail:
            backlog.asked_for_count(board.view.last_seq)
        # From here on it hears of appends.
        board.hear(consumer)
        try:
            if by_lasts:
                first = await starting.count_lasts(access, config.filters, backlog, READ_AHEAD)
                core.start_at(first)
            elif not at_tail:
                await starting.count(access, config.filters, backlog)
            if config.is_push:
                await self._barrier()
                board.look_at_interest(consumer)
            await board.recorder.record(consumer)
        except BaseException:
            board.remove(consumer)
            board.recorder.forget_soon(consumer)
            raise
        return consumer

    async def _update(
        self,
        old: ServedConsumer,
        config: ApiConsumerConfig,
        action: ConsumerAction,
        inbox: str,
    ) -> None:
        config = replace(config, pause_until=old.config.pause_until)
        if action is ConsumerAction.CREATE and config != old.config:
            raise errors.consumer_already_exists()
        others = {
            name: each.config for name, each in self._board.consumers.items() if name != old.name
        }
        if old.config.is_push:
            await self._barrier()
        config = consumer_checks.check_update(
            old.config,
            config,
            self._access.config,
            others,
            deliver_subject_in_use=self._access.leaf.has_interest(old.config.deliver_subject)
            if old.config.is_push
            else False,
        )
        if config != old.config:
            await self._changed(old, config)
        await self._settled(old)
        self._reply(inbox, replies.consumer_created_reply, old)

    async def _changed(self, consumer: ServedConsumer, config: ApiConsumerConfig) -> None:
        """Give a consumer another configuration, durably."""
        before, consumer.config = consumer.config, config
        if consumer.record is not None:
            created_ns = consumer.created_ms * MILLISECOND
            consumer.record.reconfigured(encoded_config(config, created_ns))
        if config.filters != before.filters:
            self._board.wants_less(consumer)
        settings = DeliverySettings.of(config)
        effects = consumer.consumer.reconfigured(settings, self._access.now_ms())
        self._board.apply(consumer, effects)
        if config.deliver_subject != before.deliver_subject:
            self._board.watch(consumer)
            self._board.look_at_interest(consumer)
        await self._board.recorder.record(consumer)

    async def _delete(self, call: ApiCall, message: PortMessage) -> None:
        _check_empty(message)
        async with self._changing:
            await self._board.delete(self._found(call))
        self._send(message.reply, replies.success_reply(call.verb))

    async def _pause(self, call: ApiCall, message: PortMessage) -> None:
        request = PauseConsumer.parse(message.payload)
        async with self._changing:
            consumer = self._found(call)
            config = replace(consumer.config, pause_until=request.pause_until)
            if config != consumer.config:
                await self._changed(consumer, config)
        reply = replies.consumer_paused_reply(request.pause_until, self._access.now_ms())
        self._send(message.reply, reply)

    async def _unpin(self, call: ApiCall, message: PortMessage) -> None:
        request = UnpinConsumer.parse(message.payload)
        consumer = self._found(call)
        request.check(consumer.config)
        now = self._access.now_ms()
        self._board.apply(consumer, consumer.consumer.unpinned(request.group, "admin", now))
        self._send(message.reply, replies.consumer_unpinned_reply())

    async def _reset(self, call: ApiCall, message: PortMessage) -> None:
        request = ResetConsumer.parse(message.payload)
        async with self._changing:
            consumer = self._found(call)
            config = consumer.config
            seq = request.seq or consumer.consumer.ledger.floor_seq + 1
            if request.seq:
                if config.deliver_policy not in _RESETTABLE:
                    raise errors.consumer_invalid_reset("not allowed")
                if request.seq < config.opt_start_seq:
                    raise errors.consumer_invalid_reset("below start seq")
                if config.deliver_policy is DeliverPolicy.BY_START_TIME:
                    start_seq = await starting.start_seq(self._access, config)
                    if request.seq < start_seq:
                        raise errors.consumer_invalid_reset("below start time")
            core = consumer.consumer
            core.reset(seq)
            try:
                if not core.backlog.at_tail:
                    core.backlog.asked_for_count(self._board.view.last_seq)
                    await starting.count(self._access, config.filters, core.backlog)
                await self._board.recorder.record(consumer)
                info, now = self._told_now(consumer), self._access.now_ms()
                self._send(message.reply, replies.consumer_reset_reply(info, now, seq))
            finally:
                # If the count failed, it is made again before anything is delivered.
                core.backlog.failed()
                self._board.begin(consumer)

    async def _step_down(self, call: ApiCall, message: PortMessage) -> None:
        raise errors.clustering_required()

    # Telling

    async def _info(self, call: ApiCall, message: PortMessage) -> None:
        _check_empty(message)
        consumer = self._found(call)
        await self._barrier()
        await self._settled(consumer)
        if consumer.gone:
            raise errors.consumer_not_found()
        self._reply(message.reply, replies.consumer_info_reply, consumer)

    async def _names(self, call: ApiCall, message: PortMessage) -> None:
        request = ListConsumers.parse(message.payload)
        names = sorted(self._board.consumers)
        self._send(message.reply, replies.consumer_names_reply(names, request.offset))

    async def _list(self, call: ApiCall, message: PortMessage) -> None:
        request = ListConsumers.parse(message.payload)
        names = sorted(self._board.consumers)
        page = names[request.offset : request.offset + INFOS_IN_A_PAGE]
        await self._barrier()
        found = [self._board.consumers[name] for name in page if name in self._board.consumers]
        infos = [await self._told(each) for each in found]
        now = self._access.now_ms()
        body = replies.consumer_list_reply(infos, now, total=len(names), offset=request.offset)
        self._send(message.reply, body)

    # Inside

    def _found(self, call: ApiCall) -> ServedConsumer:
        found = self._board.consumers.get(call.consumer)
        if found is None:
            raise errors.consumer_not_found()
        return found

    def _check_room(self, config: ApiConsumerConfig) -> None:
        consumers = self._board.consumers
        if len(consumers) >= MAX_STREAM_CONSUMERS:
            raise errors.maximum_consumers()
        if is_recorded(config):
            recorded = sum(each.record is not None for each in consumers.values())
            if recorded >= MAX_CURSORS:
                raise errors.maximum_consumers()

    def _free_name(self) -> str:
        while True:
            name = made_name()
            if name not in self._board.consumers:
                return name

    async def _told(self, consumer: ServedConsumer) -> ApiConsumerInfo:
        await self._settled(consumer)
        return self._told_now(consumer)

    def _told_now(self, consumer: ServedConsumer) -> ApiConsumerInfo:
        """What the reply says of a consumer, as of now: nothing may be sent in between."""
        self._board.look_at_interest(consumer)
        self._board.apply(consumer, consumer.consumer.swept(self._access.now_ms()))
        return consumer.info()

    def _reply(
        self,
        inbox: str,
        make: Callable[[ApiConsumerInfo, int], bytes],
        consumer: ServedConsumer,
    ) -> None:
        info = self._told_now(consumer)
        self._send(inbox, make(info, self._access.now_ms()))

    def _send(self, inbox: str, body: bytes) -> None:
        if inbox:
            self._board.send(inbox, body)

    async def _settled(self, consumer: ServedConsumer) -> None:
        """Return once it is known how much is pending."""
        for _ in range(_COUNTS):
            if consumer.consumer.is_exact or consumer.gone:
                return
            self._board.apply(consumer, consumer.consumer.recount())
            await self._board.loader.answered()

    async def _barrier(self) -> None:
        """Return once all interest of before is known. Without a leaf, go on: nobody listens."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._access.leaf.barrier(lambda: None if done.done() else done.set_result(None))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BARRIER_SECONDS):
                await done


def no_consumers_reply(call: ApiCall, message: PortMessage) -> bytes:
    """Return the reply to a request about the consumers of a stream that has none. Raises
    ApiError."""
    if call.verb is ApiVerb.CONSUMER_NAMES:
        return replies.consumer_names_reply([], ListConsumers.parse(message.payload).offset)
    if call.verb is ApiVerb.CONSUMER_LIST:
        offset = ListConsumers.parse(message.payload).offset
        return replies.consumer_list_reply([], 0, total=0, offset=offset)
    if call.verb is ApiVerb.CONSUMER_LEADER_STEPDOWN:
        raise errors.clustering_required()
    raise errors.consumer_not_found()


def _check_empty(message: PortMessage) -> None:
    if not bodies.is_empty(message.payload):
        raise errors.not_empty_request()
