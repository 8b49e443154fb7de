"""A coordinator and persist servers in memory, on the real wire over a real NATS.

For tests of the client against faults that real servers show rarely: each server can be told to
drop requests or replies, to refuse, to move a store, or to fall silent. Keeps retries exactly-once
as real ones do (`Writer`'s rules), which is what the client's counters are tested against.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.bus.bus_nats import NatsBus, connect_nats
from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidSeqError,
    NoServerError,
    NotOwnerError,
    StaleWriteError,
    StoreDamagedError,
    UnknownOperationError,
    WriterGapError,
    WrongLastSeqError,
    WrongRevisionError,
    error_to_wire,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects

PAGE_ROWS = 50


@dataclass
class FakeStore:
    kind: int
    revision: int = 0
    epoch: int = 1
    last_seq: int = 0
    messages: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    entries: dict[str, tuple[int, int, bytes, Any]] = field(default_factory=dict)
    #: Every change ever made: `(revision, time, change)`.
    log: list[tuple[int, int, Any]] = field(default_factory=list)
    #: Followers that ask for changes after a lower revision get a reset.
    changes_from: int = 0
    outcomes: dict[bytes, dict[int, bytes]] = field(default_factory=dict)


class FakeCluster:
    """All stores, which every server reaches, and who owns which."""

    def __init__(self, bus: Bus, tenant: str = "default") -> None:
        self.bus = bus
        self.tenant = tenant
        self.subjects = Subjects()
        self.stores: dict[tuple[int, str], FakeStore] = {}
        self.owner: dict[tuple[int, str], FakeServer] = {}
        self.servers: list[FakeServer] = []
        self.resolve_requests: list[list[Any]] = []
        self.suspected: list[str] = []
        self.answers = True
        self.lose_questions = 0
        self.lose_broadcasts = 0
        self.broadcast_twice = False
        self.damaged: set[tuple[int, str]] = set()
        self._subscription: BusSubscription | None = None

    async def start(self, *names: str) -> None:
        await self.start_coordinator()
        for name in names:
            await self.add_server(name)
        await self.bus.flush()

    async def start_coordinator(self) -> None:
        pattern = self.subjects.coordinator_pattern()
        self._subscription = await self.bus.subscribe(pattern, self._on_coordinator)

    async def stop_coordinator(self) -> None:
        assert self._subscription is not None
        await self._subscription.unsubscribe()
        await self.bus.flush()

    async def add_server(self, name: str) -> FakeServer:
        server = FakeServer(self, name)
        await server.start()
        self.servers.append(server)
        return server

    def store(self, kind: int, name: str) -> FakeStore:
        return self.stores.setdefault((kind, name), FakeStore(kind))

    def move(self, key: tuple[int, str], server: FakeServer) -> None:
        self.store(*key).epoch += 1
        self.owner[key] = server

    def delete(self, key: tuple[int, str]) -> None:
        """As an operator does: nothing of it is left, and nobody owns it."""
        del self.stores[key]
        del self.owner[key]

    def later(self, subject: str, payload: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self.bus.publish(subject, payload))
        task.add_done_callback(lambda done: done.result())

    def broadcast(self, key: tuple[int, str], payload: bytes) -> None:
        if self.lose_broadcasts > 0:
            self.lose_broadcasts -= 1
            return
        subject = self.subjects.changes(StoreId(self.tenant, StoreKind(key[0]), key[1]))
        self.later(subject, payload)
        if self.broadcast_twice:
            self.later(subject, payload)

    def _on_coordinator(self, message: BusMessage) -> None:
        if not self.answers:
            return
        if self.lose_questions > 0:
            self.lose_questions -= 1
            return
        verb = message.subject.rsplit(".", 1)[1]
        fields = frames.decode_control(message.payload)
        if verb == "resolve":
            self.resolve_requests.append(fields["stores"])
            owners = [self._owner(tuple(key)) for key in fields["stores"]]
            reply = frames.encode_control(term=1, owners=owners)
        elif verb == "suspect":
            self.suspected.append(fields["server"])
            alive = any(s.name == fields["server"] and s.running for s in self.servers)
            reply = frames.encode_control(alive=alive)
        elif verb == "servers":
            rows = [[s.name, s.incarnation, "live", 0.1, 0, 0, 0.0, 0] for s in self.servers]
            reply = frames.encode_control(term=1, servers=rows)
        else:
            names = sorted((name, kind) for kind, name in self.stores)
            after = tuple(fields["after"]) if fields["after"] else ("", 0)
            found = [
                [kind, name, "a", "i", 1, 2 if self.stores[kind, name].revision else 0]
                for name, kind in names
                if name.startswith(fields["prefix"])
                and fields["kind"] in (None, kind)
                and (name, kind) > after
            ]
            page = found[:2]
            next_after = [page[-1][1], page[-1][0]] if len(found) > 2 else None
            reply = frames.encode_control(stores=page, next=next_after)
        self.later(message.reply, reply)

    def _owner(self, key: tuple[int, str]) -> list[Any]:
        live = [server for server in self.servers if server.running]
        if not live:
            error = NoServerError()
            return [None, error.code, error.fields]
        owner = self.owner.get(key)
        if owner is None or not owner.running:
            self.move(key, live[len(self.owner) % len(live)])
        owner = self.owner[key]
        return [owner.name, owner.incarnation, self.store(*key).epoch]


class FakeServer:
    """One server. The attributes are the faults it can be told to show."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.incarnation = f"{name}-{len(cluster.servers) + 1}"
        self.running = False
        self.silent = False
        self.drop_requests = 0
        self.drop_replies = 0
        #: What is sent in place of the next replies.
        self.rubbish: list[bytes] = []
        self.refuse: list[HoldfastError] = []
        self.reads_at_once = 1_000_000
        self.frames: list[list[frames.Group]] = []
        self.hold: list[BusMessage] | None = None
        self._subscription: BusSubscription | None = None

    async def start(self) -> None:
        subject = self.cluster.subjects.server_pattern(self.name)
        self._subscription = await self.cluster.bus.subscribe(subject, self._on_frame)
        await self.cluster.bus.flush()
        self.running = True

    async def stop(self) -> None:
        """Gone, as after a kill: nobody listens any more."""
        assert self._subscription is not None
        self.running = False
        await self._subscription.unsubscribe()
        await self.cluster.bus.flush()

    def release(self) -> None:
        """Handle the frames that were held."""
        held, self.hold = self.hold or [], None
        for message in held:
            self._on_frame(message)

    def _on_frame(self, message: BusMessage) -> None:
        if self.silent:
            return
        if self.hold is not None:
            self.hold.append(message)
            return
        if self.drop_requests > 0:
            self.drop_requests -= 1
            return
        writer, groups = frames.decode_request(message.payload)
        self.frames.append(groups)
        elements = []
        for index, group in enumerate(groups):
            try:
                elements.append([index, 0, self._execute(writer, group)])
            except HoldfastError as error:
                elements.append(frames.error_result(index, error))
        if self.drop_replies > 0:
            self.drop_replies -= 1
            return
        if self.rubbish:
            self.cluster.later(message.reply, self.rubbish.pop(0))
            return
        # In several replies, as a real server may.
        for start in range(0, len(elements), 3):
            self.cluster.later(message.reply, frames.encode(elements[start : start + 3]))

    def _execute(self, writer: bytes, group: frames.Group) -> bytes:
        key = (group.kind, group.name)
        if self.refuse:
            raise self.refuse.pop(0)
        if self.cluster.owner.get(key) is not self:
            raise NotOwnerError(server=self.name)
        if key in self.cluster.damaged:
            raise StoreDamagedError(store=key[1], reason="planted")
        store = self.cluster.store(*key)
        now = int(time.time() * 1000)
        if not group.counter:
            results = [
                _result(_read, store, self.name, operation)
                for operation in group.operations[: self.reads_at_once]
            ]
            return frames.encode_outcome(store.epoch, now, Durability.SYNCED, results)
        kept = store.outcomes.setdefault(writer, {})
        last = max(kept, default=0)
        if group.counter in kept:
            return kept[group.counter]
        if group.counter <= last:
            raise StaleWriteError(counter=group.counter)
        if group.counter > max(last + 1, group.first_unacked):
            raise WriterGapError(counter=group.counter, expected=last + 1)
        before = store.revision
        changes: list[Any] = []
        results = [_result(_write, store, changes, operation) for operation in group.operations]
        for offset, change in enumerate(changes, 1):
            store.log.append((before + offset, now, change))
        durability = group.durability or Durability.SYNCED
        outcome = frames.encode_outcome(store.epoch, now, durability, results)
        kept[group.counter] = outcome
        for old in [
            counter for counter in kept if counter < min(group.first_unacked, group.counter)
        ]:
            del kept[old]
        if changes:
            self.cluster.broadcast(key, frames.encode_changes(store.epoch, before, now, changes))
        return outcome


def _result(execute: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return execute(*arguments)
    except HoldfastError as error:
        return error_to_wire(error)


def _write(store: FakeStore, changes: list[Any], operation: list[Any]) -> Any:
    number, *rest = operation
    now = int(time.time() * 1000)
    if number == frames.BATCH:
        return [_write(store, changes, member) for member in rest[0]]
    rest += [None] * 4
    if number == frames.APPEND:
        if rest[3] is not None and rest[3] != store.last_seq:
            raise WrongLastSeqError(expected=rest[3], actual=store.last_seq)
        subject = rest[5] if len(rest) > 5 else None
        return _set(store, changes, store.last_seq + 1, rest[0], rest[1], now, subject)
    if number == frames.SET_MESSAGE:
        if rest[0] > store.last_seq + 1:
            raise InvalidSeqError(seq=rest[0], last_seq=store.last_seq)
        return _set(store, changes, rest[0], rest[1], rest[2], now)
    if number == frames.SET_ENTRY:
        actual = store.entries[rest[0]][0] if rest[0] in store.entries else 0
        if rest[3] is not None and rest[3] != actual:
            raise WrongRevisionError(key=rest[0], expected=rest[3], actual=actual)
        store.revision += 1
        store.entries[rest[0]] = (store.revision, now, rest[1], rest[2])
        changes.append([CHANGE_SET_ENTRY, *rest[:3]])
        return [0, store.revision]
    if number in (frames.DELETE_MESSAGES, frames.DELETE_ENTRIES):
        rows: dict[Any, Any] = store.messages if store.kind == StoreKind.STREAM else store.entries
        if number == frames.DELETE_ENTRIES and rest[1] is not None:
            for key in rest[0]:
                actual = store.entries[key][0] if key in store.entries else 0
                if rest[1] != actual:
                    raise WrongRevisionError(key=key, expected=rest[1], actual=actual)
        gone = [each for each in rest[0] if rows.pop(each, None) is not None]
        return _deleted(store, changes, len(gone), [number, gone])
    if number == frames.TRIM:
        end_seq = store.last_seq if rest[0] is None else rest[0]
        trimmed = [seq for seq in store.messages if seq <= end_seq]
        for seq in trimmed:
            del store.messages[seq]
        return _deleted(store, changes, len(trimmed), [CHANGE_TRIM, end_seq])
    assert number == frames.CLEAR
    count = len(store.entries)
    store.entries.clear()
    return _deleted(store, changes, count, [CHANGE_CLEAR])


def _set(
    store: FakeStore,
    changes: list[Any],
    seq: int,
    value: bytes,
    headers: Any,
    now: int,
    subject: str | None = None,
) -> list[int]:
    store.revision += 1
    store.last_seq = max(store.last_seq, seq)
    store.messages[seq] = (store.revision, now, value, headers)
    change = [CHANGE_SET_MESSAGE, seq, value, headers]
    if subject is not None:
        store.messages[seq] += (subject,)
        change += [None, None, subject]
    changes.append(change)
    return [seq, store.revision]


def _deleted(store: FakeStore, changes: list[Any], count: int, change: list[Any]) -> list[int]:
    if count:
        store.revision += 1
        changes.append(change)
    return [count, store.revision]


def _read(store: FakeStore, server: str, operation: list[Any]) -> Any:
    number, *rest = operation
    rest += [None] * 5
    if number == frames.HEAD:
        rows: dict[Any, Any] = store.messages if store.kind == StoreKind.STREAM else store.entries
        first = min(store.messages, default=store.last_seq + 1)
        size = sum(len(row[2]) for row in rows.values())
        return [store.revision, first, store.last_seq, len(rows), size, store.epoch, server]
    if number == frames.GET_MESSAGE:
        return [rest[0], *store.messages[rest[0]]] if rest[0] in store.messages else None
    if number == frames.GET_ENTRY:
        return [rest[0], *store.entries[rest[0]]] if rest[0] in store.entries else None
    if number == frames.GET_MESSAGES:
        start, end, since, limit, last = rest[:5]
        seqs = [
            seq
            for seq in sorted(store.messages)
            if seq >= start
            and (end is None or seq <= end)
            and (since is None or store.messages[seq][1] >= since)
        ]
        if last is not None:
            seqs = [seq for seq in seqs if seq in sorted(store.messages)[-last:]]
        count = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
        page = seqs[:count]
        more = page[-1] + 1 if len(seqs) > count else None
        return [[[seq, *store.messages[seq]] for seq in page], more]
    if number == frames.GET_ENTRIES:
        prefix, after, limit, with_values = rest[:4]
        keys = [
            key
            for key in sorted(store.entries)
            if key.startswith(prefix) and (after is None or key > after)
        ]
        page_rows = [
            [key, *store.entries[key][:2], store.entries[key][2] if with_values else None]
            for key in keys[:PAGE_ROWS]
        ]
        return [page_rows, page_rows[-1][0] if len(keys) > PAGE_ROWS else None]
    if number != frames.CHANGES:
        raise UnknownOperationError(operation=str(number))
    revision, seq = rest[0], rest[1] or 0
    if revision > store.revision or revision < store.changes_from:
        return [[], 0, 0, store.revision, True]
    found = [list(each) for each in store.log if each[0] > revision]
    page_changes = found[:PAGE_ROWS]
    next_seq = max([seq, *(c[1] for _, _, c in page_changes if c[0] == CHANGE_SET_MESSAGE)])
    if len(found) <= PAGE_ROWS:
        return [page_changes, store.revision, store.last_seq, store.revision, False]
    return [page_changes, page_changes[-1][0], next_seq, store.revision, False]


@contextlib.asynccontextmanager
async def fake_cluster(url: str, *servers: str) -> AsyncIterator[FakeCluster]:
    """A cluster of `servers` on the NATS at `url`."""
    bus: NatsBus = await connect_nats(url, name="fake")
    cluster = FakeCluster(bus)
    await cluster.start(*servers)
    try:
        yield cluster
    finally:
        await bus.close()
