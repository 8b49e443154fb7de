"""The consumers of one served stream: tells them what happens, and does what they want.

Everything that goes to clients goes out over the leaf, in the order of the effects. The board hears
of the stream's changes as its tail listener, and finds the consumers that they concern.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.advisories import Advisories, Advisory
from holdfast.gateway.jetstream.consumer_set.alarms import Alarms
from holdfast.gateway.jetstream.consumer_set.consumer_index import ConsumerIndex
from holdfast.gateway.jetstream.consumer_set.interest_keeper import InterestKeeper
from holdfast.gateway.jetstream.consumer_set.page_loader import PageLoader
from holdfast.gateway.jetstream.consumer_set.recorder import Recorder
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.consumer_set.tail_cache import TailCache
from holdfast.gateway.jetstream.consumers.consumer import ConsumerSurroundings
from holdfast.gateway.jetstream.consumers.deliveries import StreamView
from holdfast.gateway.jetstream.consumers.effects import (
    Advice,
    Advise,
    Answer,
    Deliver,
    Done,
    Effect,
    Ended,
    LoadDue,
    LoadPage,
    Recount,
    Status,
)
from holdfast.gateway.jetstream.consumers.stream_access import StreamAccess, TailListener
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

#: A consumer that failed is looked at again after so long.
_LOOK_AGAIN_MS: Final = 1000


def new_id() -> str:
    """Return a new unique id, of an event or a pinned client."""
    return secrets.token_hex(11)


class ConsumerBoard(TailListener):
    """The consumers of one stream. `consumers` are those that exist for clients; one that is being
    made hears already."""

    def __init__(self, access: StreamAccess) -> None:
        state = access.state()
        self.access = access
        self.consumers: dict[str, ServedConsumer] = {}
        self._hearing: dict[str, ServedConsumer] = {}
        self._waits = False
        self.view = StreamView(state.first_seq, state.last_seq)
        self.surroundings = ConsumerSurroundings(
            access.name, self.view, access.leaf.has_interest, new_id
        )
        self.recorder = Recorder(access, self.send)
        self._leaf = access.leaf
        self._advisories = Advisories(access.domain)
        self._index = ConsumerIndex()
        self._cache = TailCache(state.last_seq)
        self.loader = PageLoader(access, self._cache, self.apply)
        self._keeper = InterestKeeper(access, self._cache, self._hearing, self.recorder.remove)
        self._alarms = Alarms(access.now_ms, self._ring)
        self._advice = {each: getattr(self._advisories, each.value) for each in Advice}
        self.configured()

    # Who is there

    def hear(self, consumer: ServedConsumer) -> None:
        """Let a consumer hear of the stream, or of other subjects. It exists for clients with
        `begin`."""
        consumer.look_at(self.access.config.subjects)
        self._hearing[consumer.name] = consumer
        self._index.add(consumer)

    def remove(self, consumer: ServedConsumer) -> None:
        """Take a consumer away. What only it needed goes, too."""
        if not consumer.gone:
            self.consumers.pop(consumer.name, None)
            del self._hearing[consumer.name]
            self._index.remove(consumer.name)
            consumer.close()
            self._keeper.look_through(consumer.consumer.ledger.floor_seq + 1)

    def wants_less(self, consumer: ServedConsumer) -> None:
        """A consumer has other filters."""
        self.hear(consumer)
        self._keeper.look_through(consumer.consumer.ledger.floor_seq + 1)

    def begin(self, consumer: ServedConsumer) -> None:
        """Let a consumer exist, deliver, and watch its deliver subject."""
        if consumer.gone:
            return
        self.consumers[consumer.name] = consumer
        self.watch(consumer)
        self.apply(consumer, consumer.consumer.begin(self.access.now_ms()))
        self.look_at_interest(consumer)

    def watch(self, consumer: ServedConsumer) -> None:
        """Watch the deliver subject that a consumer has now."""
        if consumer.watch is not None:
            consumer.watch.close()
            consumer.watch = None
        subject = consumer.config.deliver_subject
        if subject:
            consumer.watch = self._leaf.watch(subject, lambda _: self.look_at_interest(consumer))

    def look_at_interest(self, consumer: ServedConsumer) -> None:
        """Tell a push consumer whether somebody listens: a plain subscriber, or its group."""
        subject, group = consumer.config.deliver_subject, consumer.config.deliver_group
        if not subject or consumer.gone:
            return
        if group:
            active = group in self._leaf.queue_groups(subject)
        else:
            active = self._leaf.has_plain_interest(subject)
        self.apply(consumer, consumer.consumer.listened(active, self.access.now_ms()))

    def close(self) -> None:
        """Do no more for anybody."""
        self._alarms.close()
        for consumer in self._hearing.values():
            consumer.close()

    # What the stream tells

    def appended(self, messages: Sequence[ServedMessage]) -> None:
        self._look()
        self._cache.append(messages)
        now = self.access.now_ms()
        of = self._index.of
        may_send = self._leaf.writable
        if not may_send:
            self._wait_until_writable()
        for message in messages:
            found = of(message.subject)
            if not found:
                self._keeper.unwanted((message,))
            for consumer in found:
                try:
                    if consumer.idle:
                        self.look_at_interest(consumer)
                    core = consumer.consumer
                    self.apply(consumer, core.appended(message, now, may_send=may_send))
                except Exception:
                    logger.exception("jetstream.consumer_failed consumer=%s", consumer.label)
                    self._look_again(consumer)

    def _wait_until_writable(self) -> None:
        """NATS takes less than it is sent. What is appended meanwhile is delivered later, from the
        cache or the stream."""
        if not self._waits:
            self._waits = True
            self.access.spawn(self._resume_when_writable())

    async def _resume_when_writable(self) -> None:
        await self.access.until_writable()
        self._waits = False
        for consumer in tuple(self._hearing.values()):
            if not consumer.consumer.backlog.at_tail:
                self._ring(consumer)

    def removed(self, seqs: Sequence[int]) -> None:
        if not seqs:
            return
        told_seq = self.view.last_seq
        self._look()
        self._cache.removed(seqs)
        now = self.access.now_ms()
        for consumer in tuple(self._hearing.values()):
            if consumer.consumer.concerned:
                removed = partial(
                    consumer.consumer.removed, seqs, told_seq, now, matches_all=consumer.matches_all
                )
                self.run(consumer, removed)

    def trimmed(self, first_seq: int) -> None:
        self._look()
        self._cache.trimmed(first_seq)
        now = self.access.now_ms()
        for consumer in tuple(self._hearing.values()):
            self.run(consumer, partial(consumer.consumer.trimmed, now))

    def replaced(self, message: ServedMessage) -> None:
        self._cache.replaced(message)
        for consumer in self._hearing.values():
            consumer.consumer.replaced(message)

    def restarted(self) -> None:
        self._look()
        self._cache.restart(self.view.last_seq)
        now = self.access.now_ms()
        for consumer in tuple(self._hearing.values()):
            self.run(consumer, partial(consumer.consumer.restarted, now))

    def configured(self) -> None:
        self.view.tells_done = not self._keeper.keeps_all
        for consumer in self._hearing.values():
            consumer.look_at(self.access.config.subjects)

    def _look(self) -> None:
        self.view.first_seq, self.view.last_seq, _ = self.access.state()

    # What consumers want

    def apply(self, consumer: ServedConsumer, effects: list[Effect]) -> None:
        """Do what a consumer wants, in order."""
        while effects:
            later: list[Effect] = []
            for effect in effects:
                if type(effect) is Deliver:
                    inbox, ack, subject, block, payload = effect
                    try:
                        self._leaf.deliver(
                            inbox, payload, reply=ack, subject=subject, headers=block
                        )
                    except HoldfastError as error:
                        self._not_delivered(consumer.label, inbox, error)
                elif isinstance(effect, LoadPage | LoadDue | Recount):
                    later += self.loader.ask(consumer, effect)
                else:
                    self._do(consumer, effect)
            effects = later
        core = consumer.consumer
        if consumer.record is not None and consumer.record.is_due(core):
            self.recorder.touch(consumer)
        self._alarms.set(consumer, core.wake_at)

    def _do(self, consumer: ServedConsumer, effect: Effect) -> None:
        if isinstance(effect, Status):
            self.send(effect.inbox, block=effect.block, reply=effect.reply)
        elif isinstance(effect, Answer):
            if effect.recorded:
                self.recorder.answer(consumer, effect.inbox)
            else:
                self.send(effect.inbox)
        elif isinstance(effect, Done):
            self._keeper.done(effect.seqs)
        elif isinstance(effect, Advise):
            make = self._advice[effect.kind]
            names = (self.access.name, consumer.name)
            self.advise(make(new_id(), self.access.now_ms(), *names, *effect.arguments))
        elif isinstance(effect, Ended):
            self.access.spawn(self._end(consumer))

    def send(
        self, inbox: str, payload: bytes = b"", *, block: bytes = b"", reply: str = ""
    ) -> None:
        """Send a status or an answer over the leaf, behind everything that was sent before."""
        try:
            self._leaf.deliver(inbox, payload, reply=reply, headers=block)
        except HoldfastError as error:
            self._not_delivered(self.access.name, inbox, error)

    def advise(self, advisory: Advisory) -> None:
        """Publish an advisory."""
        try:
            self.access.client.publish(advisory.subject, advisory.body)
        except HoldfastError as error:
            logger.warning("jetstream.advisory_failed subject=%s reason=%s", advisory[0], error)

    def advise_created(self, consumer: ServedConsumer) -> None:
        """Tell that a consumer is new."""
        names = (self.access.name, consumer.name)
        now = self.access.now_ms()
        self.advise(self._advisories.consumer_created(new_id(), now, *names))

    async def delete(self, consumer: ServedConsumer) -> None:
        """Delete a consumer: its record, and then itself. Raises HoldfastError."""
        await self.recorder.forget(consumer)
        if not consumer.gone:
            self.apply(consumer, consumer.consumer.closed())
            self.remove(consumer)
            names = (self.access.name, consumer.name)
            now = self.access.now_ms()
            self.advise(self._advisories.consumer_deleted(new_id(), now, *names))

    async def _end(self, consumer: ServedConsumer) -> None:
        """Delete a consumer that nobody uses any more."""
        try:
            await self.delete(consumer)
        except HoldfastError as error:
            # Its core ends it again when its time is over once more.
            consumer.consumer.stir(self.access.now_ms())
            logger.warning("jetstream.delete_failed consumer=%s reason=%s", consumer.label, error)
            self.apply(consumer, [])

    def _ring(self, consumer: ServedConsumer) -> None:
        self.run(consumer, partial(consumer.consumer.tick, self.access.now_ms()))

    def run(self, consumer: ServedConsumer, event: Callable[[], list[Effect]]) -> None:
        """Do what a consumer wants after an event. A bug that one of them meets is not the end of
        the others."""
        try:
            self.apply(consumer, event())
        except Exception:
            logger.exception("jetstream.consumer_failed consumer=%s", consumer.label)
            self._look_again(consumer)

    def _look_again(self, consumer: ServedConsumer) -> None:
        self._alarms.set(consumer, self.access.now_ms() + _LOOK_AGAIN_MS)

    @staticmethod
    def _not_delivered(name: str, inbox: str, error: HoldfastError) -> None:
        logger.warning(
            "jetstream.not_delivered consumer=%s inbox=%.80s reason=%s", name, inbox, error
        )
