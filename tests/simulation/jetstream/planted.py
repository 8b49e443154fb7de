"""Bugs planted in the gateway on purpose, to show that the simulation finds them. See
`simulation/planted.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from holdfast.client.handles.serving_wire import Appended, NewMessage
from holdfast.gateway.jetstream.consumer_set.recorder import Recorder
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer
from holdfast.gateway.jetstream.origins.copier import OriginCopier
from holdfast.gateway.jetstream.origins.copying import CopyBatch
from holdfast.gateway.jetstream.origins.position import OriginId
from holdfast.gateway.jetstream.publishing.publisher import StreamPublisher
from holdfast.gateway.jetstream.publishing.republishing_queue import RepublishingQueue
from holdfast.gateway.jetstream.streams.delivery_fence import DeliveryFence
from holdfast.gateway.jetstream.streams.served_stream import ServedStream
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.direct.door_bus import DoorBus
from holdfast.protocol.errors import FencedError, HoldfastError
from holdfast.protocol.frames import SET_CURSOR
from holdfast.protocol.messages import Ack
from holdfast.shared_fs.disk.fence import FenceGate
from tests.simulation.virtual_loop import Process, current_process

_LATER_SECONDS: Final = 0.01


@contextlib.contextmanager
def ack_before_the_store() -> Iterator[None]:
    """A gateway tells a publisher the seq that its message will have, and appends it some
    milliseconds later."""
    append, answered = StreamPublisher._append, StreamPublisher.answered
    last_seqs: dict[StreamPublisher, int] = {}

    def append_later(
        publisher: StreamPublisher, message: PortMessage, wanted: NewMessage
    ) -> None:
        last_seq = last_seqs.get(publisher)
        if last_seq is None or wanted.options is not None:
            append(publisher, message, wanted)
            return
        last_seqs[publisher] = last_seq + 1
        publisher._reply(message.reply, publisher._acks.stored(last_seq + 1))
        loop = asyncio.get_running_loop()
        loop.call_later(_LATER_SECONDS, append, publisher, message, wanted)

    def note(
        publisher: StreamPublisher, message: PortMessage, wanted: NewMessage, answer: Any
    ) -> None:
        answered(publisher, message, wanted, answer)
        with contextlib.suppress(HoldfastError):
            found = answer if isinstance(answer, Ack) else publisher._store.appended(answer)
            last_seqs[publisher] = max(last_seqs.get(publisher, 0), found.seq or 0)

    with (
        patch.object(StreamPublisher, "_append", append_later),
        patch.object(StreamPublisher, "answered", note),
    ):
        yield


@contextlib.contextmanager
def forget_message_ids() -> Iterator[None]:
    """A message is appended without its id, so what was stored without an answer is stored again
    when its publisher tries again."""
    append = StreamPublisher._append

    def append_without(
        publisher: StreamPublisher, message: PortMessage, wanted: NewMessage
    ) -> None:
        append(publisher, message, wanted._replace(msg_id=None))

    with patch.object(StreamPublisher, "_append", append_without):
        yield


@contextlib.contextmanager
def serve_by_the_epoch_before() -> Iterator[None]:
    """A gateway that takes a stream over does not raise its serving epoch, so whoever served it
    before goes on."""

    async def take_the_epoch(served: ServedStream) -> None:
        config = await served.store.config()
        if not config.serving_epoch:
            await raise_epoch(served)
            return
        await served.store.configure(**served._settings())
        served.store.serving_epoch = config.serving_epoch

    raise_epoch = ServedStream._raise_epoch
    with patch.object(ServedStream, "_raise_epoch", take_the_epoch):
        yield


@contextlib.contextmanager
def write_without_the_epoch() -> Iterator[None]:
    """A gateway's writes name no serving epoch, so they count after it was deposed."""
    begin = ServedStream.begin

    async def begin_and_forget(served: ServedStream) -> None:
        await begin(served)
        served.store.serving_epoch = None

    with patch.object(ServedStream, "begin", begin_and_forget):
        yield


@contextlib.contextmanager
def confirm_acks_before_they_are_recorded() -> Iterator[None]:
    """A double ack is answered at once, and recorded some milliseconds later."""

    def answer_at_once(recorder: Recorder, consumer: ServedConsumer, inbox: str) -> None:
        recorder._send(inbox)
        recorder.touch(consumer)

    with patch.object(Recorder, "answer", answer_at_once):
        yield


@contextlib.contextmanager
def deliver_without_asking() -> Iterator[None]:
    """A gateway that was stopped or cut off delivers as if it still served its streams."""
    with (
        patch.object(DeliveryFence, "_sure", lambda fence: True),
        patch.object(DeliveryFence, "depose", lambda fence: None),
    ):
        yield


@contextlib.contextmanager
def record_the_position_apart() -> Iterator[None]:
    """How far a source is copied is stored some milliseconds behind the copies."""
    write = OriginCopier._write_batch

    async def write_then_record(
        copier: OriginCopier, batch: CopyBatch, known: OriginId
    ) -> list[Appended]:
        store = copier._stream.store
        cursors: list[list[Any]] = []
        do = store.batch

        async def batch_without_cursor(operations: Any, **options: Any) -> list[Any]:
            cursors.extend(each for each in operations if each[0] == SET_CURSOR)
            kept = [each for each in operations if each[0] != SET_CURSOR]
            return await do(kept, **options)

        with patch.object(store, "batch", batch_without_cursor):
            found = await write(copier, batch, known)
        await asyncio.sleep(_LATER_SECONDS)
        if cursors:
            await do(cursors)
        return found

    with patch.object(OriginCopier, "_write_batch", write_then_record):
        yield


@contextlib.contextmanager
def answer_through_pipes_past_the_gate() -> Iterator[None]:
    """A fenced server says nothing on the bus, but goes on to answer through its pipes."""
    check, publish, publish_all = FenceGate.check, DoorBus.publish, DoorBus.publish_all
    fenced: set[Process | None] = set()

    def note(gate: FenceGate) -> None:
        try:
            check(gate)
        except FencedError:
            fenced.add(current_process())

    async def publish_in_pipes(bus: DoorBus, subject: str, payload: bytes, reply: str = "") -> None:
        if subject.rpartition(".")[0] in bus._lines or current_process() not in fenced:
            await publish(bus, subject, payload, reply)

    async def broadcast(bus: DoorBus, messages: Any, too_large: Any) -> None:
        if current_process() not in fenced:
            await publish_all(bus, messages, too_large)

    with (
        patch.object(FenceGate, "check", note),
        patch.object(DoorBus, "publish", publish_in_pipes),
        patch.object(DoorBus, "publish_all", broadcast),
    ):
        yield


@contextlib.contextmanager
def republish_with_the_answers() -> Iterator[None]:
    """A copy leaves when the answer to its append comes, in whichever order answers do."""

    with patch.object(RepublishingQueue, "stored", RepublishingQueue._take):
        yield


JETSTREAM_PLANTED: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    bug.__name__: bug
    for bug in (
        ack_before_the_store,
        forget_message_ids,
        serve_by_the_epoch_before,
        write_without_the_epoch,
        confirm_acks_before_they_are_recorded,
        deliver_without_asking,
        record_the_position_apart,
        answer_through_pipes_past_the_gate,
        republish_with_the_answers,
    )
}
