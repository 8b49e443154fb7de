"""Backpressure: how much a client lets in, and that nobody starves behind a backlog."""

from __future__ import annotations

from holdfast.client.wire.credit import LATE_RATIO, Credit
from holdfast.client.wire.effects import SendFrame
from holdfast.protocol import frames
from holdfast.protocol.errors import ConnectionFailedError
from holdfast.protocol.limits import (
    FIRST_WAITING_OPERATIONS,
    FRAMES_IN_FLIGHT,
    MAX_FRAME_OPERATIONS,
    MAX_WAITING_BYTES,
    MAX_WAITING_OPERATIONS,
    MIN_WAITING_OPERATIONS,
    PING_SECONDS,
)
from tests.support.coalescer_client import OTHER, STORE, Caller, Client, answered, groups_of

TIMEOUT_SECONDS = 10.0
LATE_SECONDS = 2 * LATE_RATIO * TIMEOUT_SECONDS


def test_answers_in_time_let_it_grow_to_its_limit_stored_ones_too() -> None:
    for stored in (False, True):
        credit = Credit()
        credit.answered(1000, 0.3, TIMEOUT_SECONDS, 1.0, stored=stored)
        assert credit.window == FIRST_WAITING_OPERATIONS + 1000
        credit.answered(MAX_WAITING_OPERATIONS, 0.3, TIMEOUT_SECONDS, 1.0, stored=stored)
        assert credit.window == MAX_WAITING_OPERATIONS


def test_late_answers_make_it_smaller_but_not_those_that_waited_for_the_bucket() -> None:
    credit = Credit()
    credit.answered(1, LATE_SECONDS, TIMEOUT_SECONDS, 1.0, stored=True)
    assert credit.window == FIRST_WAITING_OPERATIONS
    credit.answered(1, LATE_SECONDS, TIMEOUT_SECONDS, 1.0)
    assert credit.window == FIRST_WAITING_OPERATIONS * 3 // 4


def test_a_frame_of_which_only_stored_writes_are_left_keeps_no_place(client: Client) -> None:
    for _ in range(FRAMES_IN_FLIGHT):
        client.append(key=OTHER)
        stored = client.append(durability=3)
        client.turn()
    client.append()
    assert client.turn() == [], "every place is taken"
    for frame in list(client.frames):
        plain = next(i for i, group in enumerate(groups_of(frame)) if group.name == OTHER[1])
        client.reply(frame, answered(plain, [0, 1]))
    assert len(client.tick(PING_SECONDS)) == 1
    assert stored.answer is None


def test_a_producer_ten_times_as_fast_as_the_server_slows_down_and_fails_nothing() -> None:
    server_rate, producer_rate, step_seconds = 400, 4000, 0.25
    client = Client()
    callers: list[Caller] = []
    line: list[SendFrame] = []
    outcomes: dict[int, bytes] = {}
    peak = 0
    budget = 0.0
    for _ in range(int(90 / step_seconds)):
        wanted = min(int(producer_rate * step_seconds), client.core.room)
        callers += [client.append() for _ in range(wanted)]
        peak = max(peak, client.core.pending_count)
        line += client.turn()
        budget = min(budget, 0) + server_rate * step_seconds
        while line and budget > 0:
            frame = line.pop(0)
            elements = []
            for index, group in enumerate(groups_of(frame)):
                if group.counter not in outcomes:
                    # As a server under load does: it is late, but nothing is done twice.
                    run = frames.Run(1, 1, len(group.operations))
                    outcomes[group.counter] = frames.encode_outcome(1, 1, 2, run)
                    budget -= len(group.operations)
                elements.append([index, 0, outcomes[group.counter]])
            client.core.reply(frame.number, frames.encode(elements), client.now)
        line += client.tick(step_seconds)
    answered = [caller for caller in callers if caller.done()]
    assert len(answered) > 80 * server_rate
    assert all(caller.answer[2] is not None for caller in answered)
    assert peak < 20 * server_rate


def test_a_busy_server_and_late_answers_let_fewer_in_and_timely_ones_more() -> None:
    credit = Credit()
    first = credit.window
    credit.answered(100, 0.1, 30.0, now=1.0)
    assert credit.window == first + 100
    credit.answered(100, 10.0, 30.0, now=2.0)
    late = credit.window
    assert late < first
    credit.late(now=2.1)
    assert credit.window == late, "one sign, not two"
    for number in range(100):
        credit.late(now=3.0 + number)
    assert credit.window == MIN_WAITING_OPERATIONS
    for _ in range(100):
        credit.answered(4096, 0.1, 30.0, now=200.0)
    assert credit.window == MAX_WAITING_OPERATIONS


def test_large_operations_are_bounded_by_their_bytes(client: Client) -> None:
    value = b"v" * 900_000
    let_in = 0
    while not client.core.full:
        client.append(value)
        let_in += 1
    assert MAX_WAITING_BYTES <= let_in * len(value) < MAX_WAITING_BYTES + 2 * len(value)
    [frame, *_] = client.turn()
    client.reply(frame, [0, 0, frames.encode_outcome(1, 1, 2, frames.Run(1, 1, 1))])
    assert 1 <= client.core.room <= 2
    client.core.fail_all(ConnectionFailedError(url="NATS", reason="closed"))
    assert client.core.room > 1
    assert not client.core.full


def test_a_store_with_a_backlog_starves_neither_others_nor_its_own_readers(client: Client) -> None:
    client.append_many(5 * MAX_FRAME_OPERATIONS)
    for frame in client.turn():
        assert len(frame.payload)
    client.append(key=OTHER)
    client.get()
    waiting = client.frames[:FRAMES_IN_FLIGHT]
    kinds: list[tuple[int, bool]] = []
    for frame in waiting[:3]:
        elements = [
            [index, 0, frames.encode_outcome(1, 1, 2, frames.Run(1, 1, len(group.operations)))]
            for index, group in enumerate(groups_of(frame))
        ]
        client.core.reply(frame.number, frames.encode(elements), client.now)
        for sent in client.turn():
            kinds += [(group.kind, group.counter > 0) for group in groups_of(sent)]
    assert (OTHER[0], True) in kinds
    assert (STORE[0], False) in kinds
