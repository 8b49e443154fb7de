"""Gets of last messages: many become one read, and each is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.client.wire.waiting import Waiter
from holdfast.gateway.jetstream.streams.last_gets import LastGets
from holdfast.gateway.jetstream.wire.lockstep import MIN_PART
from holdfast.protocol.errors import HoldfastError, UnavailableError
from tests.support.frame_maker import FrameMaker


def _message(seq: int, subject: str) -> ServedMessage:
    return ServedMessage(seq, subject, 1, b"", b"v%d" % seq)


class _World(FrameMaker):
    """An owner that answers when it is told to, and what clients got."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[Waiter, list[str]]] = []
        self.got: list[tuple[str, object]] = []
        self.refuses: HoldfastError | None = None
        self.gets: LastGets[str] = LastGets(
            self,
            lambda answers: self.got.extend((each, found and found.seq) for each, found in answers),
            lambda subject, inbox: self.got.append((inbox, f"large {subject}")),
            lambda inboxes, error: self.got.extend((each, error.code) for each in inboxes),
        )

    def lasts_soon(self, waiter: Waiter, subjects: Sequence[str]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.reads.append((waiter, list(subjects)))
        self.submit(len(subjects))

    def found_lasts(self, answer: Any) -> tuple[list[ServedMessage], list[str], bool]:
        if isinstance(answer, HoldfastError):
            raise answer
        found: tuple[list[ServedMessage], list[str], bool] = answer
        return found

    async def asked(self, *gets: tuple[str, str]) -> None:
        for subject, inbox in gets:
            self.gets.ask(subject, inbox)
        self.send()
        await asyncio.sleep(0)

    async def answer(self, answer: object) -> None:
        waiter, _ = self.reads.pop(0)
        frame_count = len(self.frames)
        assert not waiter.done()
        waiter.set_result(answer)
        assert waiter.done()
        assert len(self.frames) == frame_count, "nothing is sent among answers"
        self.send()
        await asyncio.sleep(0)


def _run(work: Callable[[_World], Any]) -> None:
    asyncio.run(work(_World()))


def test_the_gets_of_one_turn_are_one_read() -> None:
    async def work(world: _World) -> None:
        await world.asked(("a", "1"), ("b", "2"), ("a", "3"))
        assert [subjects for _, subjects in world.reads] == [["a", "b"]]
        assert world.gets.count == 3
        await world.answer(([_message(7, "a")], [], True))
        assert world.got == [("1", 7), ("3", 7), ("2", None)]
        assert world.gets.count == 0

    _run(work)


def test_what_comes_while_reads_are_on_their_way_waits_for_one() -> None:
    async def work(world: _World) -> None:
        for subject in "abcd":
            await world.asked((subject, subject))
        assert [subjects for _, subjects in world.reads] == [["a"], ["b"]]
        await world.answer(([_message(1, "a")], [], True))
        assert [subjects for _, subjects in world.reads] == [["b"], ["c", "d"]]

    _run(work)


def test_a_get_is_never_answered_by_a_read_that_began_before_it() -> None:
    async def work(world: _World) -> None:
        await world.asked(("a", "1"))
        await world.asked(("a", "2"))
        await world.answer(([_message(1, "a")], [], True))
        assert world.got == [("1", 1)]
        await world.answer(([_message(2, "a")], [], True))
        assert world.got == [("1", 1), ("2", 2)]

    _run(work)


def test_after_a_full_page_the_others_are_asked_for() -> None:
    async def work(world: _World) -> None:
        await world.asked(("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"))
        await world.answer(([_message(1, "b")], ["d"], False))
        assert world.got == [("4", "large d"), ("2", 1)]
        assert [subjects for _, subjects in world.reads] == [["a", "c"]]
        assert world.gets.count == 2
        await world.answer(([_message(2, "c")], [], True))
        assert world.got[2:] == [("3", 2), ("1", None)]
        assert world.gets.count == 0

    _run(work)


def test_many_gets_are_two_reads_in_a_frame_each() -> None:
    async def work(world: _World) -> None:
        for count, parts in [
            (MIN_PART, [[MIN_PART]]),
            (MIN_PART + 8, [[MIN_PART], [8]]),
            (2 * MIN_PART, [[MIN_PART], [MIN_PART]]),
            (201, [[101], [100]]),
            (600, [[256], [256]]),
        ]:
            await world.asked(*((f"k{number}", "") for number in range(count)))
            assert world.take_frames() == parts, count
            subjects = [subject for _, part in world.reads for subject in part]
            assert subjects == [f"k{number}" for number in range(sum(map(sum, parts)))]
            while world.reads:
                await world.answer(([], [], True))
            assert len(world.got) == count and world.gets.count == 0
            world.got.clear()
            world.take_frames()

    _run(work)


def test_callers_in_lockstep_are_answered_in_turn() -> None:
    async def work(world: _World) -> None:
        await world.asked(*((f"k{number}", "") for number in range(64)))
        for turn in range(5):
            await world.answer(([], [], True))
            # Those who were answered ask again.
            await world.asked(*((f"k{turn}.{number}", "") for number in range(32)))
        assert world.take_frames() == [[32]] * 7
        assert len(world.reads) == 2

    _run(work)


def test_an_owner_in_the_same_process_has_one_part_at_a_time() -> None:
    """It would answer two of them together, and callers in lockstep would wait for each other."""

    async def work(world: _World) -> None:
        world.is_beside_owner = True
        await world.asked(*((f"k{number}", "") for number in range(64)))
        for turn in range(5):
            await world.answer(([], [], True))
            await world.asked(*((f"k{turn}.{number}", "") for number in range(32)))
            assert len(world.reads) == 1
        assert world.take_frames() == [[32]] * 6
        while world.reads:
            await world.answer(([], [], True))
        assert len(world.got) == 64 + 5 * 32 and world.gets.count == 0

    _run(work)


def test_many_who_ask_for_one_subject_are_one_read() -> None:
    async def work(world: _World) -> None:
        await world.asked(*(("a", str(number)) for number in range(500)))
        assert world.take_frames() == [[1]]
        await world.answer(([_message(7, "a")], [], True))
        assert world.got == [(str(number), 7) for number in range(500)]

    _run(work)


def test_what_waits_between_two_frames_is_told_that_the_client_is_closed() -> None:
    async def work(world: _World) -> None:
        world.refuses = UnavailableError(reason="closed")
        await world.asked(*((f"k{number}", "") for number in range(100)))
        assert world.got == [("", "unavailable")] * 100
        assert world.gets.count == 0
        world.refuses = None
        await world.asked(("a", "1"))
        assert world.take_frames() == [[1]]

    _run(work)


def test_an_error_answers_all_gets_of_its_read_and_no_other() -> None:
    async def work(world: _World) -> None:
        await world.asked(("a", "1"), ("b", "2"))
        await world.asked(("c", "3"))
        await world.answer(UnavailableError(reason="gone"))
        assert world.got == [("1", "unavailable"), ("2", "unavailable")]
        await world.answer(([_message(3, "c")], [], True))
        world.refuses = UnavailableError(reason="closed")
        await world.asked(("d", "4"))
        assert world.got[2:] == [("3", 3), ("4", "unavailable")]
        assert world.gets.count == 0

    _run(work)


def test_a_bug_over_answers_costs_these_and_none_that_wait() -> None:
    async def work(world: _World) -> None:
        answer = world.gets._answer

        def fails(answers: object) -> None:
            raise RuntimeError("a bug")

        world.gets._answer = fails
        for subject in "abc":
            await world.asked((subject, subject))
        await world.answer(([_message(1, "a")], [], True))
        await world.answer(([_message(2, "b")], [], True))
        assert world.got == [("a", "internal_error"), ("b", "internal_error")]
        world.gets._answer = answer
        await world.answer(([_message(3, "c")], [], True))
        assert world.got[2:] == [("c", 3)]
        assert world.gets.count == 0

    _run(work)
