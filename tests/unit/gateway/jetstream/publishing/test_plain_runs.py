"""Runs of plain messages: which leave together, in what order, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.client.wire.waiting import fail
from holdfast.gateway.jetstream.publishing.plain_runs import (
    RUN_BYTES,
    RUN_MESSAGES,
    PlainRuns,
    waiting_bytes,
)
from holdfast.gateway.jetstream.wire.lockstep import MIN_PART
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import HoldfastError, OperationTimeoutError, UnavailableError
from holdfast.protocol.frames import Run
from holdfast.protocol.messages import Durability
from tests.support.frame_maker import FrameMaker

_STORED = Run(1, 1, 1), 5, Durability.SYNCED


class _World(FrameMaker):
    """A client's queue, whose owner answers when it is told to, and what publishers were told."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Any] = []
        self.refuses: HoldfastError | None = None
        #: How many messages each run had that was answered, and the results.
        self.answers: list[tuple[int, Any]] = []
        #: The subjects of all that was submitted, in order.
        self.order: list[str] = []
        store: Any = self
        self.runs = PlainRuns(store, self._answered)
        self._count = 0

    def append_soon(self, waiter: Any, subject: str, *rest: object) -> None:
        self.append_run_soon(waiter, [(subject, b"", b"")])

    def append_run_soon(self, waiter: Any, run: Sequence[tuple[str, bytes, bytes]]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.waiters.append(waiter)
        self.order += [subject for subject, *_ in run]
        self.submit(len(run))

    def _answered(self, run: list[PortMessage], size_bytes: int, answer: Any) -> None:
        assert size_bytes == sum(map(waiting_bytes, run))
        self.answers.append((len(run), answer[0]))

    def publish(self, count: int, value: bytes = b"v") -> None:
        for _ in range(count):
            message = PortMessage(str(self._count), "", b"", value)
            self.runs.add(message, waiting_bytes(message))
            self._count += 1

    def answer(self, answer: Any = _STORED) -> None:
        """Answer the first run that is unanswered."""
        before = len(self.waiters)
        waiter = self.waiters.pop(0)
        waiter.set_result(answer)
        assert len(self.waiters) == before - 1, "nothing is sent among answers"

    def in_order(self) -> bool:
        return self.order == [str(number) for number in range(len(self.order))]


async def test_a_lone_message_leaves_in_its_turn() -> None:
    world = _World()
    world.publish(1)
    world.send()
    assert world.take_frames() == [[1]]


async def test_few_messages_are_one_run_and_the_next_gathers_until_it_is_answered() -> None:
    world = _World()
    world.publish(MIN_PART)
    world.send()
    assert world.take_frames() == [[MIN_PART]]
    for _ in range(3):
        world.publish(1)
        world.send()
    assert not world.take_frames()
    world.answer()
    world.send()
    assert world.take_frames() == [[3]]
    assert world.in_order()


async def test_many_messages_are_two_runs_in_a_frame_each() -> None:
    for count, parts in [
        (2 * MIN_PART - 1, [[MIN_PART]]),
        (2 * MIN_PART, [[MIN_PART], [MIN_PART]]),
        (201, [[101], [100]]),
        (2 * RUN_MESSAGES, [[RUN_MESSAGES], [RUN_MESSAGES]]),
    ]:
        world = _World()
        world.publish(count)
        world.send()
        assert world.take_frames() == parts, count
        assert world.in_order()


async def test_callers_in_lockstep_are_answered_in_turn() -> None:
    world = _World()
    world.publish(64)
    world.send()
    world.take_frames()
    for _ in range(5):
        world.answer()
        world.send()
        # Those who were answered publish again, in two pieces.
        world.publish(12)
        world.send()
        assert not world.take_frames()
        world.publish(20)
        world.send()
        assert world.take_frames() == [[32]]
    assert len(world.waiters) == 2
    assert world.in_order()


async def test_an_owner_in_the_same_process_has_one_part_at_a_time() -> None:
    world = _World()
    world.is_beside_owner = True
    world.publish(64)
    world.send()
    assert world.take_frames() == [[32]]
    for _ in range(5):
        world.answer()
        world.send()
        assert world.take_frames() == [[32]]
        world.publish(32)
        world.send()
        assert not world.take_frames()
    # A full run never waits.
    world.publish(RUN_MESSAGES)
    world.send()
    assert sum(map(sum, world.take_frames())) >= RUN_MESSAGES // 2
    assert world.in_order()


async def test_two_runs_are_unanswered_unless_there_are_enough_for_another() -> None:
    world = _World()
    world.publish(100)
    world.send()
    world.publish(RUN_MESSAGES - 1)
    world.send()
    assert world.take_frames() == [[50], [50]]
    world.publish(1)
    world.send()
    [[third]] = world.take_frames()
    # Half of what is unanswered.
    assert third == (100 + RUN_MESSAGES) // 2
    assert world.in_order()


async def test_a_run_holds_no_more_bytes_than_a_frame_does() -> None:
    world = _World()
    world.publish(7, b"v" * (RUN_BYTES // 3))
    world.send()
    # Those beyond the bytes of a run do not wait for the answers to the first ones.
    assert world.take_frames() == [[2], [2], [2]]
    for _ in range(3):
        world.answer()
    world.send()
    assert world.take_frames() == [[1]]
    assert world.in_order()


async def test_what_waits_is_sent_before_what_must_come_after_it() -> None:
    world = _World()
    world.publish(RUN_MESSAGES + 100)
    world.runs.submit()
    assert world.order == [str(number) for number in range(RUN_MESSAGES + 100)]
    # The client asks in vain, and both travel in one frame.
    world.send()
    assert world.take_frames() == [[RUN_MESSAGES, 100]]
    world.publish(1)
    world.runs.submit()
    world.send()
    assert world.take_frames() == [[1]]
    assert world.in_order()


async def test_what_waits_between_two_frames_can_be_dropped() -> None:
    world = _World()
    world.publish(64)
    # The second run waits for room.
    [gather] = world._gathering
    assert gather()
    assert world.runs.drop()[0] == 32
    world.send()
    assert world.take_frames() == [[32]]
    world.answer()
    world.publish(1)
    world.send()
    assert world.take_frames() == [[1]]


async def test_a_closed_client_refuses_each_run_once() -> None:
    world = _World()
    world.refuses = UnavailableError(reason="closed")
    world.publish(100)
    world.send()
    assert [(count, result.code) for count, result in world.answers] == [
        (50, "unavailable"),
        (MIN_PART, "unavailable"),
        (18, "unavailable"),
    ]
    world.refuses = None
    world.publish(64)
    world.send()
    assert world.take_frames() == [[32], [32]]


async def test_after_a_refused_run_the_next_ones_keep_their_order() -> None:
    world = _World()
    world.publish(64)
    world.send()
    world.publish(10)
    world.answer((UnavailableError(reason="refused"), 0, None))
    world.send()
    world.answer()
    world.send()
    assert [count for count, _ in world.answers] == [32, 32]
    assert world.take_frames() == [[32], [32], [10]]
    assert world.in_order()


async def test_what_an_owner_does_not_answer_in_time_leaves_behind_it() -> None:
    world = _World()
    world.publish(64)
    world.send()
    world.publish(10)
    world.send()
    assert world.take_frames() == [[32], [32]]
    async with asyncio.timeout(10):
        while len(world.waiters) < 3:
            await asyncio.sleep(0.001)
    world.send()
    assert world.take_frames() == [[10]]
    assert world.in_order()


async def test_a_run_that_expires_is_answered_once_and_leaves_the_queue() -> None:
    world = _World()
    world.publish(2)
    world.runs.submit()
    [waiter] = world.waiters
    assert not waiter.done()
    late = OperationTimeoutError(timeout_seconds=1, reason="no reply")
    # The client looks at its queue again and again.
    for _ in range(2):
        fail((b"", waiter, 0.0, 0, 1.0), late)
    assert [(count, type(result)) for count, result in world.answers] == [
        (2, OperationTimeoutError)
    ]
    # Only what is done is dropped from the queue.
    assert waiter.done()
