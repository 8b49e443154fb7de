"""A program under faults: publishers with ids, workers that acknowledge, counters in a bucket.

Each publisher numbers its messages, and publishes the next one when the last is acknowledged; each
worker takes messages of one durable consumer and waits until its acks are confirmed; each counter
adds to one key by `update` with the revision that it has read. All try again after errors, as
applications have to. At the end everything is read and compared:

- an acknowledged message is at its seq, and no message is stored twice or out of order;
- every message was worked off, and none came again after its ack was confirmed;
- the counter is what was added, each once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import nats
from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from tests.jetstream_conformance.suite import Say

STREAM: Final = "ORDERS"
_BUCKET: Final = "COUNTERS"
_DURABLE: Final = "workers"
_PUBLISHERS: Final = 4
_WORKERS: Final = 3
_COUNTERS: Final = 3
_TRY_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.05
#: After the last fault everything must be worked off so soon.
_END_SECONDS: Final = 60.0
_ACK_WAIT_SECONDS: Final = 5.0
_BATCH: Final = 20
_READ: Final = 200

T = TypeVar("T")


@dataclass
class Stress:
    """What was done, and what was wrong with it."""

    #: The seqs of acknowledged messages, by publisher and number.
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    #: How often each seq was delivered, and the seqs whose acks were confirmed.
    delivered: dict[int, int] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    added: int = 0
    retries: int = 0
    violations: list[str] = field(default_factory=list)

    def report(self) -> str:
        return (
            f"{len(self.acknowledged)} messages acknowledged, {len(self.confirmed)} worked off, "
            f"{self.added} added to the counter, {self.retries} retries"
        )


async def run_stress(url: str, seconds: float, say: Say) -> Stress:
    """Run for so long, wait until all is worked off, and check."""
    client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    stress = Stress()
    try:
        context = client.jetstream(timeout=_TRY_SECONDS)
        await _patiently(stress, lambda: context.add_stream(name=STREAM, subjects=["orders.>"]))
        config = ConsumerConfig(
            durable_name=_DURABLE, ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACK_WAIT_SECONDS
        )
        await _patiently(stress, lambda: context.add_consumer(STREAM, config))
        bucket = await _patiently(stress, lambda: context.create_key_value(bucket=_BUCKET))
        stop = asyncio.Event()
        writing = [
            *(asyncio.create_task(_publish(stress, context, n, stop)) for n in range(_PUBLISHERS)),
            *(asyncio.create_task(_add(stress, bucket, n, stop)) for n in range(_COUNTERS)),
        ]
        working = [asyncio.create_task(_work(stress, context)) for _ in range(_WORKERS)]
        async with _all(writing, working):
            await asyncio.sleep(seconds)
            stop.set()
            await asyncio.gather(*writing)
            say(f"no more is written: {stress.report()}")
            await _until_worked_off(stress, context)
        await _check(stress, client, context, bucket)
    finally:
        await client.close()
    return stress


class _all:
    """Tasks that are cancelled at the end of the body."""

    def __init__(self, *groups: list[asyncio.Task[None]]) -> None:
        self._tasks = [task for group in groups for task in group]

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _patiently(stress: Stress, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer. What NATS refuses for good is raised."""
    while True:
        try:
            return await ask()
        except (KeyWrongLastSequenceError, NotFoundError):
            raise
        except (Error, TimeoutError):
            stress.retries += 1
            await asyncio.sleep(_PAUSE_SECONDS)


async def _publish(
    stress: Stress, context: JetStreamContext, publisher: int, stop: asyncio.Event
) -> None:
    number = 0
    while not stop.is_set():
        payload = f"{publisher} {number}".encode()
        headers = {"Nats-Msg-Id": f"{publisher}-{number}"}
        subject = f"orders.{publisher}"
        ack = await _patiently(
            stress,
            lambda subject=subject, payload=payload, headers=headers: context.publish(
                subject, payload, headers=dict(headers)
            ),
        )
        stress.acknowledged[publisher, number] = ack.seq
        number += 1


async def _work(stress: Stress, context: JetStreamContext) -> None:
    subscription = await _patiently(stress, lambda: context.pull_subscribe_bind(_DURABLE, STREAM))
    while True:
        try:
            messages = await subscription.fetch(_BATCH, timeout=_TRY_SECONDS)
        except (Error, TimeoutError):
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        for message in messages:
            seq = message.metadata.sequence.stream
            stress.delivered[seq] = stress.delivered.get(seq, 0) + 1
            if seq in stress.confirmed:
                stress.violations.append(f"seq {seq} came again after its ack was confirmed")
            try:
                await message.ack_sync(timeout=_TRY_SECONDS)
            except (Error, TimeoutError):
                # It may or may not count; if not, the message comes again.
                stress.retries += 1
                continue
            stress.confirmed.add(seq)


async def _add(stress: Stress, bucket: KeyValue, counter: int, stop: asyncio.Event) -> None:
    """Add to the counter. The value has the last turn of each who adds, so that an update whose
    answer was lost is recognised."""
    turn = 0
    while not stop.is_set():
        turn += 1
        while True:
            value, turns, revision = await _counter(stress, bucket)
            if turns[counter] == turn:
                break
            turns[counter] = turn
            line = " ".join(map(str, (value + 1, *turns)))
            try:
                await bucket.update("counter", line.encode(), last=revision)
            except KeyWrongLastSequenceError:
                await asyncio.sleep(random.random() * _PAUSE_SECONDS)
            except (Error, TimeoutError):
                stress.retries += 1
                await asyncio.sleep(_PAUSE_SECONDS)
        stress.added += 1


async def _counter(stress: Stress, bucket: KeyValue) -> tuple[int, list[int], int]:
    """Return the value, the last turn of each counter, and the revision."""
    try:
        entry = await _patiently(stress, lambda: bucket.get("counter"))
    except NotFoundError:
        return 0, [0] * _COUNTERS, 0
    value, *turns = map(int, (entry.value or b"").split())
    return value, turns, entry.revision or 0


async def _until_worked_off(stress: Stress, context: JetStreamContext) -> None:
    async with asyncio.timeout(_END_SECONDS):
        while True:
            info = await _patiently(stress, lambda: context.consumer_info(STREAM, _DURABLE))
            if not info.num_pending and not info.num_ack_pending:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


async def _check(
    stress: Stress, client: Client, context: JetStreamContext, bucket: KeyValue
) -> None:
    stored = await _read(stress, context)
    by_name: dict[tuple[int, int], int] = {}
    last_of: dict[int, int] = {}
    for seq, (publisher, number) in stored.items():
        if (publisher, number) in by_name:
            first = by_name[publisher, number]
            stress.violations.append(f"{publisher}-{number} is stored twice: {first} and {seq}")
        by_name[publisher, number] = seq
        if number < last_of.get(publisher, -1):
            stress.violations.append(f"{publisher}-{number} is out of order at {seq}")
        last_of[publisher] = number
    for name, seq in stress.acknowledged.items():
        if by_name.get(name) != seq:
            stress.violations.append(f"{name} was acknowledged at {seq}, is at {by_name.get(name)}")
    stress.violations += [
        f"seq {seq} was never delivered" for seq in stored if seq not in stress.delivered
    ]
    value, _, _ = await _counter(stress, bucket)
    if value != stress.added:
        stress.violations.append(f"the counter is {value}, and {stress.added} were added")


async def _read(stress: Stress, context: JetStreamContext) -> dict[int, tuple[int, int]]:
    """Return publisher and number of all that is stored, by seq."""
    info: Any = await _patiently(stress, lambda: context.stream_info(STREAM))
    found: dict[int, tuple[int, int]] = {}
    while len(found) < info.state.messages:
        # After a fault: from the first message on that is not read.
        start = next(seq for seq in itertools.count(1) if seq not in found)
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
        )
        subscription = await _patiently(
            stress,
            lambda config=config: context.pull_subscribe("orders.>", stream=STREAM, config=config),
        )
        try:
            while len(found) < info.state.messages:
                for message in await subscription.fetch(_READ, timeout=_TRY_SECONDS):
                    publisher, number = message.data.split()
                    found[message.metadata.sequence.stream] = (int(publisher), int(number))
        except (Error, TimeoutError):
            stress.retries += 1
    return found
