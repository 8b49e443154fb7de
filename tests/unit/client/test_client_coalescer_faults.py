"""The coalescer against servers that keep outcomes as real ones do, and a net that loses a lot."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.wire.effects import Resolve, SendFrame, Suspect
from holdfast.client.wire.store_queue import StoreKey
from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol import frames
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    NoServerError,
    NotOwnerError,
    OperationTimeoutError,
    RequestError,
)
from holdfast.protocol.limits import FRAMES_IN_FLIGHT, MAX_WRITER_OUTCOMES
from tests.support.coalescer_client import OTHER, STORE, Caller, Client, answered
from tests.support.effort import examples


class Server:
    """Applies groups as the persist server does: `WriterState` decides what is new."""

    def __init__(self) -> None:
        self.writers: dict[StoreKey, WriterState] = {}
        self.values: dict[StoreKey, list[bytes]] = {}

    def handle(self, payload: bytes, owner: dict[StoreKey, str], me: str) -> list[list[Any]]:
        elements: list[list[Any]] = []
        for index, group in enumerate(frames.decode_request(payload)[1]):
            key = (group.kind, group.name)
            values = self.values.setdefault(key, [])
            if owner.get(key) != me:
                elements.append(frames.error_result(index, NotOwnerError(server=me)))
            elif not group.counter:
                some = max(1, len(group.operations) // 2)
                elements.append(answered(index, *[len(values)] * some))
            else:
                writer = self.writers.setdefault(key, WriterState())
                verdict, known = writer.judge(group.counter, group.first_unacked)
                assert verdict is not Admission.FULL
                if verdict is Admission.NEW:
                    results = []
                    for operation in group.operations:
                        values.append(operation[1])
                        results.append([len(values), len(values)])
                    known = frames.encode_outcome(1, 0, 2, results)
                    writer.record(group.counter, group.first_unacked, known)
                if known is not None:
                    elements.append([index, 0, known])
                elif verdict is Admission.GAP:
                    elements.append([index, 1, "writer_gap", {}])
                else:
                    elements.append([index, 1, "stale_write", {}])
        return elements


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fault_ratio=st.sampled_from([0.0, 0.1, 0.4]),
    window=st.sampled_from([1, 2, 5, MAX_WRITER_OUTCOMES]),
)
def test_whatever_is_lost_or_moved_every_write_is_stored_once_and_in_order(
    seed: int, fault_ratio: float, window: int
) -> None:
    with (
        mock.patch("holdfast.client.wire.store_queue.MAX_WRITER_OUTCOMES", window),
        mock.patch("holdfast.persist.store.writers.MAX_WRITER_OUTCOMES", window),
    ):
        run_against_faults(seed, fault_ratio)


def run_against_faults(seed: int, fault_ratio: float) -> None:
    """Write through a coalescer whose frames and answers are lost, late and reordered."""
    chance = random.Random(seed)
    client = Client(resolve=False)
    server = Server()
    keys: list[StoreKey] = [(1, "s"), (1, "t"), (2, "k")]
    owner = {key: chance.choice("ab") for key in keys}
    submitted: dict[StoreKey, list[tuple[bytes, Caller]]] = {key: [] for key in keys}
    reads: list[Caller] = []
    replies: list[tuple[int, list[list[Any]]]] = []

    def carry_out(faults: float) -> None:
        for effect in client.core.turn(client.now):
            if isinstance(effect, Resolve):
                for key in effect.stores:
                    if chance.random() < faults:
                        client.core.resolve_failed(key, NoServerError(), client.now)
                    else:
                        client.core.resolved(key, Owner(owner[key], owner[key], 1))
            elif isinstance(effect, SendFrame):
                fate = chance.random()
                if faults / 2 <= fate < faults:
                    client.core.no_responders(effect.number, client.now)
                elif fate >= faults:
                    for element in server.handle(effect.payload, owner, effect.server):
                        if chance.random() >= faults:
                            replies.append((effect.number, [element]))
            else:
                client.core.suspect_answered(effect.server)
            client.core.validate()

    def deliver() -> None:
        chance.shuffle(replies)
        while replies:
            number, elements = replies.pop()
            client.core.reply(number, frames.encode(elements), client.now)
            client.core.validate()

    for step in range(60):
        key = chance.choice(keys)
        for _ in range(chance.randrange(4)):
            value = f"{step}-{len(submitted[key])}".encode()
            submitted[key].append((value, client.append(value, key, timeout=1e6)))
        if chance.random() < 0.3:
            reads.append(client.get(key=key))
        if chance.random() < fault_ratio:
            owner[key] = chance.choice("ab")
        if chance.random() < fault_ratio / 4:
            client.core.reconnected()
        carry_out(fault_ratio)
        if chance.random() < 0.5:
            deliver()
        client.now += chance.choice([0.0, 0.01, 0.5])
        client.core.tick(client.now)
        client.core.validate()
    for _ in range(300):
        carry_out(0.0)
        deliver()
        client.now += 0.1
        client.core.tick(client.now)
    for key, sent in submitted.items():
        stored = server.values.get(key, [])
        assert stored == [value for value, _ in sent]
        for position, (_, caller) in enumerate(sent, 1):
            assert caller.answer[0] == [position, position]
    assert all(read.done() for read in reads)
    assert client.core.pending_count == 0


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_callers_that_give_up_leave_no_trace_and_block_nobody(seed: int) -> None:
    chance = random.Random(seed)
    client = Client(resolve=False)
    server = Server()
    owner: dict[StoreKey, str] = {STORE: "a", OTHER: "a"}
    callers: list[tuple[bytes, Caller]] = []

    def step(faults: float, seconds: float) -> None:
        for effect in client.core.turn(client.now):
            if isinstance(effect, Resolve):
                for key in effect.stores:
                    client.core.resolved(key, Owner(owner[key], owner[key], 1))
            elif isinstance(effect, Suspect):
                client.core.suspect_answered(effect.server)
            elif chance.random() >= faults:
                elements = server.handle(effect.payload, owner, effect.server)
                if chance.random() >= faults:
                    client.core.reply(effect.number, frames.encode(elements), client.now)
            elif chance.random() < 0.3:
                client.core.no_responders(effect.number, client.now)
        if chance.random() < faults / 4:
            owner[chance.choice([STORE, OTHER])] = chance.choice("ab")
        client.now += seconds
        client.core.tick(client.now)
        client.core.validate()

    for number in range(50):
        value = str(number).encode()
        callers.append((value, client.append(value, timeout=chance.choice([0.3, 3.0, 1e6]))))
        # The other store keeps the server busy, so callers also give up in line.
        for _ in range(chance.randrange(FRAMES_IN_FLIGHT)):
            client.get(key=OTHER)
            step(0.3, 0.0)
        if chance.random() < 0.3:
            victim = chance.choice(callers)[1]
            if not victim.done():
                victim.cancel()
        step(0.3, chance.choice([0.0, 0.2, 1.0]))
    for _ in range(200):
        step(0.0, 0.5)
    stored = server.values[STORE]
    assert len(stored) == len(set(stored))
    order = {value: place for place, (value, _) in enumerate(callers)}
    assert [order[value] for value in stored] == sorted(order[value] for value in stored)
    for value, caller in callers:
        assert caller.done()
        if isinstance(caller.answer[0], list):
            assert stored[caller.answer[0][0] - 1] == value
        elif isinstance(caller.answer, tuple):
            assert isinstance(caller.error, OperationTimeoutError | RequestError)
    assert client.core.pending_count == 0
