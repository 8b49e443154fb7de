"""Random operations of several clients, with lost broadcasts and a killed owner, end in one
history.

The answers to the writers are the history (`model.py`); everybody who reads, follows or holds a
replica has to agree with it. A failing run is repeated by its seed. These tests kill a server of
the cluster that all tests share: the one that has the store, half way through.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from holdfast.client import (
    KV,
    Change,
    ChangeKind,
    Client,
    Deleted,
    Entry,
    LiveKV,
    LiveStream,
    Stream,
    Subscription,
    WrongLastSeqError,
    WrongRevisionError,
    connect,
)
from holdfast.protocol.bus.bus_nats import connect_nats
from tests.conformance.conforming import State, apply, stored
from tests.conformance.lossy_bus import LossyBus
from tests.conformance.model import LastRead, Model, Read, Step
from tests.support.holdfast_up import RunningUp
from tests.support.present import present

WRITERS, OPERATIONS = 4, 60
KEYS = ("a", "b", "c", "ab", "ä")
SUBJECTS = ("a.x", "a.y", "b.x", "b")
FILTERS = (*SUBJECTS, "a.*", "*.x", ">")
#: What the stream with subjects keeps of each.
MAX_PER_SUBJECT = 4
END = b"the end"

Operation = Callable[[], Awaitable[None]]


class Writer:
    """One writer of a store: no two of its values are alike, and no other's are like them."""

    def __init__(self, model: Model, rng: random.Random, name: int) -> None:
        self._model = model
        self._rng = rng
        self._values = (b"%d.%d" % (name, number) for number in itertools.count(1))

    def _value(self) -> bytes:
        return next(self._values)

    def _deleted(self, deleted: Deleted, step: Step) -> None:
        if deleted.count:
            self._model.add(deleted.revision, step._replace(gone_count=deleted.count))


class KVWriter(Writer):
    """One writer of a kv."""

    def __init__(self, kv: KV, model: Model, rng: random.Random, name: int) -> None:
        super().__init__(model, rng, name)
        self._kv = kv
        #: The revisions of keys that this writer believes in.
        self._believed: dict[str, int] = {}

    def operations(self) -> list[Operation]:
        """Return what there is to do, as often as it shall be done."""
        often = [self.set, self.set, self.get, self.set_if, self.update, self.delete]
        return [*often, *often, self.set_many, self.transaction, self.delete_if, self.delete_all]

    def _key(self) -> str:
        return self._rng.choice(KEYS)

    async def set(self) -> None:
        key, value = self._key(), self._value()
        ack = await self._kv.set(key, value)
        self._model.add(ack.revision, Step((key, value)))
        self._believed[key] = ack.revision

    async def get(self) -> None:
        key, floor = self._key(), self._model.last
        entry = await self._kv.get(key)
        found = None if entry is None else (entry.revision, entry.value)
        self._model.reads.append(Read(key, floor, found))
        self._believed[key] = 0 if entry is None else entry.revision

    async def set_if(self) -> None:
        key, value = self._key(), self._value()
        expected = self._believed.get(key, 0)
        try:
            ack = await self._kv.set(key, value, expected_revision=expected)
        except WrongRevisionError as error:
            assert error.actual != expected
            self._believed[key] = error.actual
        else:
            self._model.add(ack.revision, Step((key, value), expected={key: expected}))
            self._believed[key] = ack.revision

    async def update(self) -> None:
        key, value = self._key(), self._value()
        based_on = 0

        def replace(entry: Entry | None) -> bytes:
            nonlocal based_on
            based_on = 0 if entry is None else entry.revision
            return value

        ack = await self._kv.update(key, replace)
        self._model.add(ack.revision, Step((key, value), expected={key: based_on}))

    async def set_many(self) -> None:
        items = {key: self._value() for key in self._rng.sample(KEYS, 2)}
        acks = await self._kv.set_many(items)
        for ack, item in zip(acks, items.items(), strict=True):
            self._model.add(ack.revision, Step(item))

    async def delete(self) -> None:
        keys = tuple(self._rng.sample(KEYS, 2))
        self._deleted(await self._kv.delete(keys), Step(gone=keys))

    async def delete_if(self) -> None:
        key = self._key()
        expected = self._believed.get(key, 0)
        try:
            deleted = await self._kv.delete(key, expected_revision=expected)
        except WrongRevisionError as error:
            self._believed[key] = error.actual
        else:
            self._deleted(deleted, Step(gone=(key,), expected={key: expected}))

    async def delete_all(self) -> None:
        self._deleted(await self._kv.delete_all(), Step(trim_to=-1))

    async def transaction(self) -> None:
        read, written = self._rng.sample(KEYS, 2)
        value, other = self._value(), self._value()
        transaction = self._kv.transaction()
        entry = await transaction.get(read)
        transaction.set(read, value)
        transaction.set(written, other)
        try:
            first, second = await transaction.commit()
        except WrongRevisionError as error:
            assert error.key == read
            return
        expected = {read: 0 if entry is None else entry.revision}
        self._model.add(first.revision, Step((read, value), expected=expected))
        self._model.add(second.revision, Step((written, other)))


class StreamWriter(Writer):
    """One writer of a stream."""

    def __init__(self, stream: Stream, model: Model, rng: random.Random, name: int) -> None:
        super().__init__(model, rng, name)
        self._stream = stream
        self._last_seq = 0

    def operations(self) -> list[Operation]:
        """Return what there is to do, as often as it shall be done."""
        often = [self.append, self.append, self.append_once, self.get, self.set, self.append_if]
        return [*often, *often, self.append_many, self.transaction, self.delete, self.trim]

    def _seq(self) -> int:
        return self._rng.randint(max(1, self._last_seq - 20), max(1, self._last_seq))

    def _stored(self, seq: int | None, revision: int, value: bytes, **step: object) -> None:
        assert seq is not None
        self._model.add(revision, Step((seq, value), **step))  # type: ignore[arg-type]
        self._last_seq = max(self._last_seq, seq)

    async def append(self) -> None:
        value = self._value()
        ack = await self._stream.append(value)
        self._stored(ack.seq, ack.revision, value)

    async def append_once(self) -> None:
        msg_id = f"m{self._rng.randrange(40)}"
        ack = await self._stream.append(msg_id.encode(), msg_id=msg_id)
        if not ack.duplicate:
            self._stored(ack.seq, ack.revision, msg_id.encode())
        stored = (ack.seq, ack.revision)
        assert self._model.msg_ids.setdefault(msg_id, stored) == stored

    async def append_if(self) -> None:
        value, expected = self._value(), self._last_seq
        try:
            ack = await self._stream.append(value, expected_last_seq=expected)
        except WrongLastSeqError as error:
            assert error.actual > expected
            self._last_seq = error.actual
        else:
            self._stored(ack.seq, ack.revision, value, expected={None: expected})

    async def append_many(self) -> None:
        values = [self._value() for _ in range(3)]
        acks = await self._stream.append_many(values)
        for ack, value in zip(acks, values, strict=True):
            self._stored(ack.seq, ack.revision, value)

    async def set(self) -> None:
        seq, value = self._seq(), self._value()
        ack = await self._stream.set(seq, value)
        self._stored(ack.seq, ack.revision, value)

    async def get(self) -> None:
        seq, floor = self._seq(), self._model.last
        message = await self._stream.get(seq)
        found = None if message is None else (message.revision, message.value)
        self._model.reads.append(Read(seq, floor, found))

    async def delete(self) -> None:
        if self._last_seq:
            seqs = (self._seq(), self._seq())
            self._deleted(await self._stream.delete(seqs), Step(gone=seqs))

    async def trim(self) -> None:
        if self._last_seq > 20:
            end_seq = self._last_seq - 20
            self._deleted(await self._stream.delete_all(end_seq=end_seq), Step(trim_to=end_seq))

    async def transaction(self) -> None:
        seq, value, other = self._seq(), self._value(), self._value()
        transaction = self._stream.transaction()
        message = await transaction.get(seq)
        transaction.append(value)
        transaction.set(seq, other)
        try:
            first, second = await transaction.commit()
        except WrongRevisionError as error:
            assert error.key == seq
            return
        expected = {seq: 0 if message is None else message.revision}
        self._stored(first.seq, first.revision, value, expected=expected)
        self._stored(second.seq, second.revision, other)


class SubjectWriter(StreamWriter):
    """One writer of a stream whose messages have subjects, of which it keeps only some."""

    def operations(self) -> list[Operation]:
        often = [self.append, self.append, self.append_if_last, self.get_last, self.set, self.get]
        return [*often, *often, self.roll_up, self.purge, self.append_many, self.transaction]

    def _subject(self) -> str:
        return self._rng.choice(SUBJECTS)

    async def append(self) -> None:
        value, subject = self._value(), self._subject()
        ack = await self._stream.append(value, subject=subject)
        self._stored(ack.seq, ack.revision, value, subject=subject)

    async def append_many(self) -> None:
        items = [(self._value(), None, self._subject()) for _ in range(3)]
        acks = await self._stream.append_many(items)
        for ack, (value, _, subject) in zip(acks, items, strict=True):
            self._stored(ack.seq, ack.revision, value, subject=subject)

    async def append_if_last(self) -> None:
        wanted, subject, value = self._rng.choice(FILTERS), self._subject(), self._value()
        last = await self._stream.get_last(wanted)
        expected = 0 if last is None else last.seq
        try:
            ack = await self._stream.append(
                value, subject=subject, expected_last_subject_seq=expected, expected_subject=wanted
            )
        except WrongLastSeqError as error:
            assert error.actual != expected
        else:
            of_it = (wanted, expected)
            self._stored(ack.seq, ack.revision, value, subject=subject, expected_last=of_it)

    async def get_last(self) -> None:
        wanted, floor = self._rng.choice(FILTERS), self._model.last
        message = await self._stream.get_last(wanted)
        found = None if message is None else (message.seq, message.value)
        self._model.last_reads.append(LastRead(wanted, floor, found))

    async def roll_up(self) -> None:
        value, subject = self._value(), self._subject()
        ack = await self._stream.append(value, subject=subject, rollup="sub")
        self._stored(ack.seq, ack.revision, value, subject=subject, rolls_up=True)

    async def purge(self) -> None:
        wanted, end_seq, keep = self._rng.choice(FILTERS), None, self._rng.randrange(3)
        if keep == 0 and self._last_seq:
            end_seq = self._seq()
        deleted = await self._stream.purge(wanted, end_seq=end_seq, keep=keep or None)
        self._deleted(deleted, Step(purged=(wanted, end_seq, keep)))

    async def transaction(self) -> None:
        seq, value, other, subject = self._seq(), self._value(), self._value(), self._subject()
        transaction = self._stream.transaction()
        transaction.append(value, subject=subject)
        transaction.set(seq, other)
        first, second = await transaction.commit()
        self._stored(first.seq, first.revision, value, subject=subject)
        self._stored(second.seq, second.revision, other)


async def work(writer: KVWriter | StreamWriter, rng: random.Random, done: list[int]) -> None:
    """Do OPERATIONS, a few at a time, in any order."""
    for _ in range(OPERATIONS // 3):
        await asyncio.gather(*[operation() for operation in rng.sample(writer.operations(), 3)])
        done.append(3)


async def follow(changes: AsyncIterator[Change]) -> list[Change]:
    """Return what comes up to the end."""
    seen: list[Change] = []
    async for change in changes:
        seen.append(change)
        row = change.message or change.entry
        if row is not None and row.value == END:
            break
    return seen


async def changes_of(pattern: AsyncIterator[tuple[str, Change]]) -> AsyncIterator[Change]:
    async for _, change in pattern:
        yield change


def check_followed(seen: list[Change], model: Model, *, from_the_beginning: bool) -> State:
    """Check what a follower saw, one by one; return what it ends with."""
    state: State = {}
    for change in seen:
        apply(change, state)
        if change.kind not in (ChangeKind.READY, ChangeKind.RESET):
            model.check(change)
    if from_the_beginning:
        assert ChangeKind.RESET not in {change.kind for change in seen}
        revisions = [change.revision for change in seen if change.kind is not ChangeKind.READY]
        assert revisions == sorted(set(revisions)), "each once, in order"
    return state


@asynccontextmanager
async def lossy_client(nats: str, tenant: str, seed: int) -> AsyncIterator[Client]:
    bus = LossyBus(await connect_nats(nats, name="lossy"), random.Random(seed), loss=0.2)
    try:
        async with connect(bus=bus, tenant=tenant, timeout_seconds=60) as client:
            yield client
    finally:
        await bus.close()
    assert bus.lost_count, "the bus has lost nothing"


async def kill_owner(store: Stream | KV, cluster: RunningUp) -> None:
    pid = present(cluster.pids()[(await store.head()).server])
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("kind", "seed", "subjects"),
    [("stream", 1, False), ("kv", 2, False), ("stream", 3, True)],
    ids=("stream", "kv", "subjects"),
)
async def test_everybody_ends_with_what_was_acknowledged(
    cluster: RunningUp, kind: str, seed: int, subjects: bool
) -> None:
    rng, tenant = random.Random(seed), f"{kind}-{seed}"
    model = Model(MAX_PER_SUBJECT if subjects else None)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        sure = await enter(connect(cluster.nats, tenant=tenant, timeout_seconds=60))
        lossy = await enter(lossy_client(cluster.nats, tenant, seed))
        clients, store = (sure, lossy, sure, lossy), getattr(sure, kind)("x.1")

        def changes(client: Client) -> Subscription:
            handle: Stream | KV = getattr(client, kind)("x.1")
            if isinstance(handle, KV):
                return handle.watch()
            return handle.subscribe(start_seq=1)

        if kind == "kv":
            pattern = await enter(lossy.watch("x.*"))
            replica = await enter(lossy.live_kv("x.1"))
            writers = [KVWriter(c.kv("x.1"), model, rng, n) for n, c in enumerate(clients)]
        else:
            pattern = await enter(lossy.subscribe("x.*", start_seq=1))
            replica = await enter(lossy.live_stream("x.1"))
            made = SubjectWriter if subjects else StreamWriter
            writers = [made(c.stream("x.1"), model, rng, n) for n, c in enumerate(clients)]
            if subjects:
                await sure.stream("x.1").configure(max_messages_per_subject=MAX_PER_SUBJECT)
                model.add((await store.head()).revision, Step())
        early = [await enter(changes(client)) for client in (sure, lossy)]
        done: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            followers = [tasks.create_task(follow(each)) for each in early]
            followers.append(tasks.create_task(follow(changes_of(pattern))))
            working = [tasks.create_task(work(writer, rng, done)) for writer in writers]
            while sum(done) < WRITERS * OPERATIONS // 2:
                await asyncio.sleep(0.005)
            followers.append(tasks.create_task(follow(changes(lossy))))
            await kill_owner(store, cluster)
            await asyncio.wait(working)
            if isinstance(store, KV):
                last = (await store.set("end", END)).revision
                model.add(last, Step(("end", END)))
            else:
                ack = await store.append(END)
                last = ack.revision
                model.add(last, Step((ack.seq or 0, END)))
        model.learn(followers[0].result())
        state = model.state(last)
        assert (await store.head()).revision == last
        assert await stored(store) == state
        for follower in followers:
            is_early = follower is not followers[-1]
            seen = check_followed(follower.result(), model, from_the_beginning=is_early)
            assert seen == state
        while not _holds(replica, state):
            await asyncio.sleep(0.01)


def _holds(replica: LiveKV[bytes] | LiveStream[bytes], state: State) -> bool:
    if isinstance(replica, LiveKV):
        return dict(replica) == state
    return {message.seq: message.value for message in replica} == state
