"""One stream that this gateway serves.

To begin it raises the stream's serving epoch, which every write names from then on, and only then
subscribes. So whatever it receives, no gateway that served before can store any more: a message
that both received is stored once. Nobody has served a new stream before, and `new_stream.py` has
done both already. To end it unsubscribes, and what it has appended is answered as
long as its epoch is the stream's.

An idle stream costs its subscriptions and this object: no task and no timer. Its consumers, and the
following of its changes, begin when somebody asks for a consumer, or if any are recorded; without
consumers they `rest` again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from holdfast.client import Client
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage, ServingHead
from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.advisories import BatchAbandonReason
from holdfast.gateway.jetstream.api.publishing.republishing import Republisher
from holdfast.gateway.jetstream.api.replies import ApiStreamState
from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb
from holdfast.gateway.jetstream.api.stream_config import (
    ApiStreamConfig,
    RetentionPolicy,
    store_settings,
)
from holdfast.gateway.jetstream.catalogue.catalogue import StreamEntry
from holdfast.gateway.jetstream.consumer_set.consumer_api import no_consumers_reply
from holdfast.gateway.jetstream.consumer_set.consumer_set import ConsumerSet
from holdfast.gateway.jetstream.origins.copier import CopyingStream
from holdfast.gateway.jetstream.origins.origin_set import OriginSet
from holdfast.gateway.jetstream.origins.position import is_of_source
from holdfast.gateway.jetstream.publishing.publish_listener import PublishListener
from holdfast.gateway.jetstream.publishing.publisher import StreamPublisher
from holdfast.gateway.jetstream.publishing.republishing_queue import RepublishingQueue
from holdfast.gateway.jetstream.publishing.scheduler import Scheduler
from holdfast.gateway.jetstream.streams.awaited_lasts import AwaitedLasts
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.streams.direct_get import DirectGet
from holdfast.gateway.jetstream.streams.stream_for_consumers import StreamForConsumers
from holdfast.gateway.jetstream.streams.stream_info import state_of
from holdfast.gateway.jetstream.wire.ports import PortMessage, PortSubscription, Together
from holdfast.protocol.errors import (
    ConnectionFailedError,
    DeposedWriterError,
    OperationTimeoutError,
)

logger = logging.getLogger("holdfast.gateway")

#: How long the end of a stream waits for the answers to its appends.
_DRAIN_SECONDS: Final = 1.5
_NEVER_WRITTEN: Final = ServingHead(
    revision=1, first_seq=1, last_seq=0, count=0, bytes=0, epoch=0, server=""
)
_MAKES_CONSUMERS: Final = frozenset((ApiVerb.CONSUMER_CREATE, ApiVerb.CONSUMER_DURABLE_CREATE))


class ServedStream(PublishListener, CopyingStream):
    """One stream and all that listens for it. `begin` it, and `end` it."""

    def __init__(
        self,
        context: GatewayContext,
        entry: StreamEntry,
        on_deposed: Callable[[ServedStream], None],
    ) -> None:
        self.entry = entry
        self.config = ApiStreamConfig.from_json(entry.config)
        self.store: ServingStream = context.holdfast.serving_stream(
            entry.store, beside=context.beside
        )
        self._context = context
        self._on_deposed = on_deposed
        self._publisher = StreamPublisher(
            self.store,
            context.client,
            context.load,
            context.domain,
            self.config,
            self,
        )
        self._consumers: StreamForConsumers | None = None
        self._consumer_set: ConsumerSet | None = None
        self._republishing: RepublishingQueue | None = None
        self._scheduler: Scheduler | None = None
        self._origins = OriginSet(self, context.origins)
        self._configure_publishing()
        self._direct = DirectGet(entry.name, self.store, context)
        self.lasts = AwaitedLasts(self.store)
        self._subscriptions: dict[str, PortSubscription] = {}
        #: Requests about consumers that are being answered.
        self._asking_count = 0
        #: One change of what is subscribed to, and of the consumers, at a time.
        self._turn = asyncio.Lock()
        self.ended = False
        #: When the owner was asked to raise the serving epoch: a time of the loop.
        self._epoch_asked_at = float("-inf")
        #: The bytes of the stream when they were last read, as JetStream counts them.
        self.size_bytes: int | None = None
        #: Nobody had written its store when it began.
        self._is_new = False
        #: It ends because it is being deleted.
        self.deleting = False

    @property
    def name(self) -> str:
        return self.entry.name

    # Life

    async def begin(self) -> None:
        """Take the stream over and listen. Raises HoldfastError; `end` it then."""
        new = self._context.new_streams.get(self.name)
        claim = None if new is None else new.take_claim(self.entry)
        if claim is not None:
            _, self.store.serving_epoch, self._epoch_asked_at = claim
            self._is_new = True
        else:
            self._is_new = await self._raise_epoch() == 1
        recorded = [] if self._is_new else await self.store.cursors()
        recorded = [each for each in recorded if not is_of_source(each.name)]
        async with self._turn:
            if recorded or self._needs_consumers:
                await self._begin_consumers()
            await self._begin_schedules()
            await self._subscribe()
            self._origins.begin()

    async def update(self, entry: StreamEntry) -> None:
        """Go by another configuration: when this returns, it is in force. Raises HoldfastError."""
        async with self._turn:
            await self._end_copying()
            self.entry = entry
            self.config = ApiStreamConfig.from_json(entry.config)
            self._configure_publishing()
            await self.store.configure(**self._settings())
            await self._begin_schedules()
            await self._subscribe()
            if self._consumers is not None:
                self._consumers.configure(self.config)
            self._origins.begin()

    async def _end_copying(self) -> None:
        """Copy nothing more until what was written is answered. Raises OperationTimeoutError."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._origins.end(drain=True)
        except TimeoutError:
            reason = "a copy of another stream's messages is not answered"
            raise OperationTimeoutError(timeout_seconds=_DRAIN_SECONDS, reason=reason) from None

    async def end(self, *, drain: bool) -> None:
        """Listen no more. With `drain`, first wait for the answers to what was appended."""
        self.ended = True
        if self._scheduler is not None:
            self._scheduler.close()
        async with self._turn:
            subscriptions, self._subscriptions = self._subscriptions, {}
            if drain:
                with contextlib.suppress(OperationTimeoutError):
                    await self._end_copying()
            await self._origins.end(drain=False)
            if drain:
                with contextlib.suppress(TimeoutError, ConnectionFailedError):
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        for subscription in subscriptions.values():
                            await subscription.stop()
                        await self._context.client.flush()
                        await self._publisher.drained()
            for subscription in subscriptions.values():
                await subscription.unsubscribe()
            self._publisher.close()
            if self._republishing is not None:
                if drain:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_DRAIN_SECONDS):
                            await self._republishing.drained()
                self._republishing.close()
            await self._end_consumers(drain=drain)

    async def _begin_schedules(self) -> None:
        if self.config.allow_msg_schedules and self._scheduler is None:
            self._scheduler = Scheduler(self.store, self)
            self._publisher.tells = True
            await self._scheduler.begin()

    async def _raise_epoch(self) -> int:
        """Make this gateway the one whose writes count. Return the revision of that change.

        The time makes a number that is nearly always greater than the one before; where it is not,
        the owner says so, and which one it is.
        """
        epoch = self._context.now_ms()
        settings = self._settings()
        while True:
            self._epoch_asked_at = asyncio.get_running_loop().time()
            try:
                revision = await self.store.begin_serving(epoch, **settings)
            except DeposedWriterError:
                config = await self.store.config()
                epoch = max(epoch, config.serving_epoch or 0) + 1
                continue
            break
        if self.config.first_seq > 1:
            head = await self.store.head()
            if head.last_seq < self.config.first_seq - 1:
                await self.store.configure(first_seq=self.config.first_seq)
        return revision

    def _settings(self) -> dict[str, Any]:
        return store_settings(self.config)

    async def _subscribe(self) -> None:
        """Bring the subscriptions in line with the configuration, and into force."""
        publisher = self._publisher
        wanted: dict[str, tuple[Callable[[PortMessage], None], Together | None]] = dict.fromkeys(
            self.config.subjects, (publisher.receive, publisher.receive_together)
        )
        if self.config.allow_direct:
            for start in self._context.api_starts:
                subject = f"{start}DIRECT.GET.{self.name}"
                wanted[subject] = wanted[f"{subject}.>"] = self._direct.receive, None
        new = self._context.new_streams.get(self.name)
        if new is not None and new.interest.subjects == tuple(self.config.subjects):
            self._subscriptions |= new.interest.hand_over(
                publisher.receive, publisher.receive_together
            )
        changed = False
        for subject in [each for each in self._subscriptions if each not in wanted]:
            changed = True
            await self._subscriptions.pop(subject).unsubscribe()
        for subject, (callback, together) in wanted.items():
            if subject not in self._subscriptions:
                changed = True
                self._subscriptions[subject] = await self._context.client.subscribe(
                    subject, callback, together=together
                )
        if changed:
            await self._context.client.flush()

    # What is told of it

    @property
    def size_is_stale(self) -> bool:
        """Whether something may have changed since `size_bytes` was read."""
        return self.size_bytes is None or self._publisher.stored_since

    async def state(
        self, deleted: Sequence[int] = (), subjects: Mapping[str, int] | None = None
    ) -> ApiStreamState:
        """Return the state of the stream. Raises HoldfastError."""
        self._publisher.stored_since = False
        head = await self.store.head()
        state = state_of(
            head,
            self.consumer_count,
            deleted=deleted,
            subjects=subjects or {},
            origins=await self._origins.infos(),
        )
        self.size_bytes = state.bytes
        return state

    async def first_state(self) -> ApiStreamState:
        """Return the state of a stream that was just created. Raises HoldfastError."""
        is_empty = self._is_new and not self._publisher.stored_since
        if not is_empty or self.config.first_seq > 1 or self.config.origins:
            return await self.state()
        # Nothing was ever stored, so nobody needs to be asked.
        return state_of(_NEVER_WRITTEN, self.consumer_count)

    # Consumers

    @property
    def consumer_count(self) -> int:
        """How many consumers there are."""
        return 0 if self._consumer_set is None else self._consumer_set.count

    def consumer_lags(self) -> list[int]:
        """Return how many messages each consumer has not acknowledged."""
        return [] if self._consumer_set is None else self._consumer_set.lags()

    async def answer(self, call: ApiCall, message: PortMessage) -> bytes | None:
        """Answer a request about consumers: return the body of the reply, or None if it has been
        sent. Raises ApiError and HoldfastError."""
        if self._consumer_set is None:
            if call.verb not in _MAKES_CONSUMERS:
                return no_consumers_reply(call, message)
            async with self._turn:
                if self.ended:
                    raise errors.temporarily_unavailable()
                await self._begin_consumers()
        if self._consumer_set is None:
            raise errors.temporarily_unavailable()
        self._asking_count += 1
        try:
            await self._consumer_set.answer(call, message)
        finally:
            self._asking_count -= 1
        return None

    async def rest(self) -> None:
        """Stop following the stream if it has no consumers any more."""
        async with self._turn:
            idle = self._consumer_set is not None and not self._consumer_set.count
            if idle and not self._asking_count and not self._needs_consumers:
                await self._end_consumers(drain=True)
                self._configure_publishing()

    @property
    def _needs_consumers(self) -> bool:
        """Whether what is stored depends on consumers, also on there being none."""
        return self.config.retention is not RetentionPolicy.LIMITS

    async def _begin_consumers(self) -> None:
        if self._consumer_set is not None:
            return
        access = StreamForConsumers(self.store, self.config, self._context, self.deposed)
        access.fence.confirmed(self._epoch_asked_at)
        await access.begin()
        self._consumers = access
        consumer_set = ConsumerSet(access)
        try:
            await consumer_set.begin()
        except BaseException:
            self._consumers = None
            await consumer_set.close(deposed=True)
            await access.close()
            raise
        self._consumer_set = consumer_set
        self._context.followed.add(self)
        self._publisher.tells = True

    def _configure_publishing(self) -> None:
        config = self.config
        self._publisher.configure(config)
        context = self._context
        republisher = Republisher(config, context.reserved)
        if self._republishing is not None:
            # What it still has leaves before what is stored from now on.
            self._republishing.configure(republisher)
        if not republisher.is_used:
            self._republishing = None
        elif self._republishing is None:
            self._republishing = RepublishingQueue(
                republisher, self.store, context.client, context.load, self.spawn
            )
        told = (self._consumers, self._republishing, self._scheduler)
        self._publisher.tells = any(each is not None for each in told)

    async def _end_consumers(self, *, drain: bool) -> None:
        self._context.followed.discard(self)
        consumer_set, self._consumer_set = self._consumer_set, None
        if consumer_set is not None:
            await consumer_set.close(deposed=not drain, deleted=self.deleting)
        consumers, self._consumers = self._consumers, None
        if consumers is not None:
            await consumers.close()

    # What the publisher tells

    def stored(self, message: ServedMessage) -> None:
        if self._scheduler is not None:
            self._scheduler.heard(message)
        if self._republishing is not None:
            self._republishing.stored(message)
        if self._consumers is not None:
            self._consumers.acknowledged(message)

    def copied(self, message: ServedMessage) -> None:
        self._publisher.stored_since = True
        self.stored(message)

    @property
    def holdfast(self) -> Client:
        return self._context.holdfast

    def batch_abandoned(self, batch_id: str, reason: BatchAbandonReason) -> None:
        self._context.advise(
            self._context.advisories.batch_abandoned(
                *self._context.new_event(), self.name, batch_id, reason
            )
        )

    def in_doubt(self) -> None:
        if self._republishing is not None:
            self._republishing.in_doubt()

    def deposed(self) -> None:
        if not self.ended:
            self.ended = True
            self._publisher.close()
            if self._republishing is not None:
                self._republishing.close()
            if self._scheduler is not None:
                self._scheduler.close()
            if self._consumers is not None:
                self._consumers.fence.depose()
            self._on_deposed(self)

    def now_ms(self) -> int:
        return self._context.now_ms()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._context.spawn(work)
