"""The coalescer against a model of servers that keep outcomes as real ones do."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from holdfast.client.wire.coalescer import Coalescer
from holdfast.client.wire.credit import Credit
from holdfast.client.wire.effects import Resolve, SendFrame, Suspect
from holdfast.client.wire.filling import fill
from holdfast.client.wire.frame import FrameBuilder
from holdfast.client.wire.in_flight import SILENCE_LOOK_SECONDS, SPREAD_OPERATIONS
from holdfast.client.wire.operations import append_operation, pack_batch
from holdfast.client.wire.schedule import BACKOFF_MAX_SECONDS
from holdfast.client.wire.store_queue import StoreKey, StoreQueue
from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol import frames
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    BusyError,
    ConnectionFailedError,
    HoldfastError,
    InvalidNameError,
    MalformedFrameError,
    NoCoordinatorError,
    NoServerError,
    NotOwnerError,
    OperationTimeoutError,
    RequestError,
    StorageFailedError,
)
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    FRAME_TIMEOUT_SECONDS,
    FRAMES_IN_FLIGHT,
    MAX_FRAME_OPERATIONS,
    MAX_WAITING_BYTES,
    MAX_WAITING_OPERATIONS,
    MAX_WRITER_OUTCOMES,
    MIN_PAYLOAD_BYTES,
    MIN_WAITING_OPERATIONS,
    PING_SECONDS,
)
from holdfast.protocol.messages import Durability

STORE: StoreKey = (1, "s")
OTHER: StoreKey = (2, "k")
OWNER = Owner("a", "a-1", 1)


class Caller:
    """What asyncio's Future is to the coalescer."""

    def __init__(self) -> None:
        self.answer: Any = None

    def done(self) -> bool:
        return self.answer is not None

    def set_result(self, result: Any, /) -> None:
        assert self.answer is None, "answered twice"
        self.answer = result

    def cancel(self) -> None:
        self.answer = "cancelled"

    @property
    def error(self) -> HoldfastError:
        result, _, durability = self.answer
        assert durability is None
        assert isinstance(result, HoldfastError)
        return result


class Client:
    """A coalescer with the little that a test says of time and owners."""

    def __init__(self, *, resolve: bool = True) -> None:
        self.core = Coalescer(b"w" * 12, MIN_PAYLOAD_BYTES)
        self.now = 100.0
        self.resolve = resolve
        self.frames: list[SendFrame] = []
        self.resolves: list[list[StoreKey]] = []
        self.suspects: list[Suspect] = []
        self.pings: list[SendFrame] = []

    def append(
        self, value: bytes = b"v", key: StoreKey = STORE, durability: int = 0, timeout: float = 30.0
    ) -> Caller:
        return self._submit([frames.APPEND, value], True, key, durability, timeout)

    def get(self, seq: int = 1, key: StoreKey = STORE) -> Caller:
        return self._submit([frames.GET_MESSAGE, seq], False, key, 0, 30.0)

    def turn(self) -> list[SendFrame]:
        """Carry out the effects; return the frames that left."""
        sent: list[SendFrame] = []
        while True:
            effects = self.core.turn(self.now)
            if not effects:
                self.core.validate()
                return sent
            for effect in effects:
                if isinstance(effect, SendFrame) and not groups_of(effect):
                    self.pings.append(effect)
                elif isinstance(effect, SendFrame):
                    sent.append(effect)
                    self.frames.append(effect)
                elif isinstance(effect, Resolve):
                    self.resolves.append(effect.stores)
                    if self.resolve:
                        for key in effect.stores:
                            self.core.resolved(key, OWNER)
                else:
                    self.suspects.append(effect)

    def tick(self, seconds: float) -> list[SendFrame]:
        self.now += seconds
        self.core.tick(self.now)
        return self.turn()

    def reply(self, frame: SendFrame, *elements: list[Any]) -> None:
        self.core.reply(frame.number, frames.encode(list(elements)), self.now)
        self.core.validate()

    def refuse(self, frame: SendFrame, error: HoldfastError, index: int = 0) -> None:
        self.reply(frame, frames.error_result(index, error))

    def _submit(
        self, operation: list[Any], write: bool, key: StoreKey, durability: int, timeout: float
    ) -> Caller:
        caller = Caller()
        packed = frames.pack(operation)
        self.core.submit(key, (packed, caller, self.now + timeout, durability, timeout), write)
        return caller


def groups_of(frame: SendFrame) -> list[frames.Group]:
    return frames.decode_request(frame.payload)[1]


def answered(index: int, *results: Any, durability: int = 2) -> list[Any]:
    return [index, 0, frames.encode_outcome(1, 1234, durability, list(results))]


def test_a_frame_is_byte_for_byte_what_the_protocol_encodes() -> None:
    client = Client()
    for number in range(20):
        client.append(b"x" * number)
    client.append(b"d", durability=1)
    client.get(7)
    client.append(b"", key=OTHER)
    (frame,) = client.turn()
    writer, groups = frames.decode_request(frame.payload)
    assert frame.payload == frames.encode_request(writer, [list(group) for group in groups])
    assert [(g.kind, g.counter, g.durability, len(g.operations)) for g in groups] == [
        (1, 1, 0, 20),
        (1, 2, 1, 1),
        (1, 0, 0, 1),
        (2, 1, 0, 1),
    ]


def test_everything_that_waits_for_one_server_leaves_in_one_frame() -> None:
    client = Client()
    for key in (STORE, OTHER):
        client.append(key=key)
        client.append(key=key)
    frames_sent = client.turn()
    assert len(frames_sent) == 1
    assert client.resolves == [[STORE, OTHER]]
    assert [g.name for g in groups_of(frames_sent[0])] == ["s", "k"]


def test_each_caller_gets_its_own_result() -> None:
    client = Client()
    first, second = client.append(), client.append()
    (frame,) = client.turn()
    client.reply(frame, answered(0, [1, 1], [2, 2], durability=1))
    assert first.answer == ([1, 1], 1234, 1)
    assert second.answer == ([2, 2], 1234, 1)
    assert client.core.pending_count == 0


def test_writes_that_wait_for_the_bucket_keep_no_other_write_waiting() -> None:
    client = Client()
    stored = [client.append(b"%d" % number, durability=3) for number in range(2)]
    [first] = client.turn()
    for _ in range(FRAMES_IN_FLIGHT + 3):
        client.append(durability=3)
        assert len(client.turn()) == 1, "a later one need not wait for the next object"
    plain = client.append(key=OTHER)
    [frame] = client.turn()
    assert [group.name for group in groups_of(frame)] == [OTHER[1]]
    client.reply(frame, answered(0, [0, 1]))
    assert plain.answer is not None
    client.reply(first, answered(0, [1, 1], [2, 2], durability=3))
    assert all(each.answer is not None for each in stored)


def test_operations_gather_while_frames_are_in_flight() -> None:
    client = Client()
    for _ in range(FRAMES_IN_FLIGHT + 3):
        client.append()
        client.turn()
    assert len(client.frames) == FRAMES_IN_FLIGHT
    client.reply(client.frames[0], answered(0, [1, 1]))
    (frame,) = client.turn()
    assert len(groups_of(frame)[0].operations) == 3


def test_a_frame_keeps_within_the_limits_of_bytes_and_operations() -> None:
    client = Client()
    for _ in range(30):
        client.append(b"x" * 300_000)
    for frame in client.turn():
        assert len(frame.payload) <= MIN_PAYLOAD_BYTES
        assert len(groups_of(frame)[0].operations) == 3
    small = Client()
    for _ in range(10 * MAX_FRAME_OPERATIONS):
        small.append(b"")
    for frame in small.turn():
        assert len(groups_of(frame)[0].operations) == MAX_FRAME_OPERATIONS


def test_what_waits_is_spread_over_the_frames_that_may_leave() -> None:
    client = Client()
    for _ in range(SPREAD_OPERATIONS * FRAMES_IN_FLIGHT):
        client.append()
    assert [len(groups_of(frame)[0].operations) for frame in client.turn()] == (
        [SPREAD_OPERATIONS] * FRAMES_IN_FLIGHT
    )


def test_the_largest_value_fits_in_a_frame() -> None:
    client = Client()
    client.append(b"x" * 1_000_000)
    (frame,) = client.turn()
    assert len(frame.payload) <= MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


def test_one_busy_store_does_not_keep_others_from_the_next_frame() -> None:
    client = Client()
    for _ in range(SPREAD_OPERATIONS * 2):
        client.append()
    client.append(key=OTHER)
    first, second, *_ = client.turn()
    assert [g.name for g in groups_of(first)] == ["s"]
    assert "k" in [g.name for g in groups_of(second)]


def test_an_unanswered_group_is_sent_again_unchanged_before_newer_ones() -> None:
    client = Client()
    client.append(b"1")
    (first,) = client.turn()
    again = client.tick(FRAME_TIMEOUT_SECONDS)
    assert groups_of(again[0]) == groups_of(first)
    client.append(b"2")
    client.turn()
    (third,) = client.tick(FRAME_TIMEOUT_SECONDS * 4)
    assert [(g.counter, g.first_unacked) for g in groups_of(third)] == [(1, 1), (2, 1)]


def test_a_late_answer_to_the_first_copy_counts_and_the_second_is_ignored() -> None:
    client = Client()
    write, read = client.append(), client.get()
    (first,) = client.turn()
    (second,) = client.tick(FRAME_TIMEOUT_SECONDS)
    client.reply(first, answered(0, [1, 1]), answered(1, None))
    assert write.answer[0] == [1, 1]
    assert read.answer[0] is None
    client.reply(second, answered(0, [1, 1]), answered(1, [1, 1, 0, b""]))
    assert read.answer[0] is None
    assert client.core.pending_count == 0


def test_a_late_server_is_asked_whether_it_is_there_and_failed_over_when_it_is_not() -> None:
    client = Client()
    caller = client.append()
    (frame,) = client.turn()
    client.tick(PING_SECONDS * 0.6)
    assert client.pings == []
    client.tick(PING_SECONDS * 0.6)
    (ping,) = client.pings
    assert ping.server == frame.server
    client.resolve = False
    client.core.no_responders(ping.number, client.now)
    client.turn()
    assert client.suspects == [Suspect("a", "a-1")]
    client.tick(1.0)
    client.core.resolved(STORE, Owner("b", "b-1", 2))
    (again,) = client.turn()
    assert again.server == "b"
    assert groups_of(again) == groups_of(frame)
    client.reply(again, answered(0, [1, 1]))
    assert caller.answer[0] == [1, 1]


def test_a_server_that_is_only_slow_is_asked_now_and_then_and_keeps_its_frame() -> None:
    client = Client()
    caller = client.append()
    (frame,) = client.turn()
    for asked in range(1, 5):
        assert client.tick(PING_SECONDS * 1.1) == []
        assert len(client.pings) == asked
        client.reply(client.pings[-1])
    client.reply(frame, answered(0, [1, 1]))
    assert caller.answer[0] == [1, 1]
    assert client.tick(PING_SECONDS * 3) == []
    assert len(client.pings) == 4
    assert client.suspects == []


def test_a_slow_server_is_given_more_time_with_each_resend() -> None:
    client = Client()
    client.append()
    client.turn()
    sent = [len(client.tick(FRAME_TIMEOUT_SECONDS)) for _ in range(5)]
    assert sent == [1, 0, 1, 0, 0]


def test_a_silent_server_has_its_stores_asked_for_again() -> None:
    client = Client()
    client.append()
    client.turn()
    client.resolve = False
    client.tick(FRAME_TIMEOUT_SECONDS)
    assert client.resolves == [[STORE], [STORE]]
    client.core.resolved(STORE, Owner("b", "b-1", 2))
    (frame,) = client.turn()
    assert frame.server == "b"
    assert groups_of(frame)[0].counter == 1


def test_the_owner_of_a_silent_server_s_stores_is_asked_for_more_often_than_resends() -> None:
    client = Client()
    client.append()
    client.get()
    client.append(key=OTHER)
    client.turn()
    client.tick(FRAME_TIMEOUT_SECONDS)
    asked = len(client.resolves)
    client.resolve = False
    assert client.tick(SILENCE_LOOK_SECONDS) == []
    assert len(client.resolves) == asked + 1
    client.core.resolved(STORE, Owner("b", "b-1", 2))
    moved = client.turn()
    assert [frame.server for frame in moved] == ["a", "b"]
    assert [(g.name, g.counter) for g in groups_of(moved[1])] == [("s", 1), ("s", 0)]


def test_of_a_silent_server_the_owner_of_one_store_of_each_frame_is_asked_for() -> None:
    client = Client()
    client.append()
    client.append(key=OTHER)
    client.turn()
    client.tick(FRAME_TIMEOUT_SECONDS)
    client.turn()
    asked = len(client.resolves)
    client.tick(SILENCE_LOOK_SECONDS)
    assert client.resolves[asked:] == [[STORE]]


def test_a_lost_coordinator_does_not_hinder_a_resend_to_a_known_owner() -> None:
    client = Client()
    caller = client.append()
    client.turn()
    client.resolve = False
    (again,) = client.tick(FRAME_TIMEOUT_SECONDS)
    client.core.resolve_failed(STORE, NoCoordinatorError(prefix="hf"), client.now)
    client.reply(again, answered(0, [1, 1]))
    assert caller.answer[0] == [1, 1]


def test_not_owner_leads_to_the_new_owner_at_once_with_the_same_counters() -> None:
    client = Client()
    client.append()
    (first,) = client.turn()
    client.append()
    (second,) = client.turn()
    client.resolve = False
    client.refuse(first, NotOwnerError(server="a"))
    client.turn()
    client.refuse(second, NotOwnerError(server="a"))
    client.turn()
    assert client.resolves == [[STORE], [STORE]]
    client.core.resolved(STORE, Owner("b", "b-1", 2))
    (moved,) = client.turn()
    assert moved.server == "b"
    assert [g.counter for g in groups_of(moved)] == [1, 2]


def test_no_responders_suspects_the_server_once_and_resolves_after_a_pause() -> None:
    client = Client()
    client.append()
    client.append(key=OTHER)
    (frame,) = client.turn()
    client.core.no_responders(frame.number, client.now)
    assert client.turn() == []
    assert client.suspects == [Suspect("a", "a-1")]
    (again,) = client.tick(0.02)
    assert len(groups_of(again)) == 2
    client.core.no_responders(again.number, client.now)
    client.turn()
    assert len(client.suspects) == 1
    client.core.suspect_answered("a")
    (third,) = client.turn()
    client.core.no_responders(third.number, client.now)
    client.turn()
    assert len(client.suspects) == 2


def test_busy_backs_off_with_growing_pauses_and_keeps_the_owner() -> None:
    client = Client()
    caller = client.append()
    (frame,) = client.turn()
    pauses = []
    for _ in range(8):
        client.refuse(frame, BusyError(what="inbox"))
        assert client.turn() == []
        refused_at, sent = client.now, []
        while not sent:
            sent = client.tick(client.core.wake_at - client.now)
        (frame,) = sent
        pauses.append(client.now - refused_at)
        assert groups_of(frame)[0].counter == 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(BACKOFF_MAX_SECONDS)
    assert len(client.resolves) == 1
    client.reply(frame, answered(0, [1, 1]))
    assert caller.answer[0] == [1, 1]


def test_a_gap_sends_all_unanswered_groups_of_the_store_again_in_order() -> None:
    client = Client()
    sent = []
    for _ in range(3):
        client.append()
        sent += client.turn()
    client.reply(sent[1], [0, 1, "writer_gap", {"counter": 2, "expected": 1}])
    (again,) = client.turn()
    assert [g.counter for g in groups_of(again)] == [1, 2, 3]
    client.reply(sent[2], [0, 1, "writer_gap", {"counter": 3, "expected": 1}])
    assert client.turn() == [], "the copy sent last has its own answer"


def test_the_floor_passes_what_is_answered() -> None:
    client = Client()
    sent = []
    for _ in range(2):
        client.append()
        sent += client.turn()
    client.reply(sent[0], answered(0, [1, 1]))
    client.append()
    (third,) = client.turn()
    assert groups_of(third)[0].first_unacked == 2
    client.reply(sent[1], answered(0, [2, 2]))
    client.append()
    (fourth,) = client.turn()
    assert groups_of(fourth)[0].first_unacked == 3


def test_the_floor_passes_a_group_whose_callers_have_all_given_up() -> None:
    client = Client()
    cancelled = client.append()
    client.turn()
    expired = client.append(timeout=1.0)
    client.turn()
    cancelled.cancel()
    client.tick(1.0)
    assert isinstance(expired.error, OperationTimeoutError)
    client.append()
    (third,) = client.turn()
    assert [(g.counter, g.first_unacked) for g in groups_of(third)] == [(3, 3)]
    assert client.core.pending_count == 1


def test_an_operation_cancelled_before_it_left_is_never_sent() -> None:
    client = Client(resolve=False)
    client.append().cancel()
    client.get().cancel()
    client.turn()
    client.core.resolved(STORE, OWNER)
    assert client.turn() == []
    assert client.core.pending_count == 0


def test_a_group_error_reaches_each_caller_as_its_own_exception() -> None:
    client = Client()
    first, second = client.append(), client.append()
    (frame,) = client.turn()
    client.refuse(frame, StorageFailedError(reason="full"))
    assert isinstance(first.error, StorageFailedError)
    assert first.error is not second.error
    client.append()
    (after,) = client.turn()
    assert groups_of(after)[0].first_unacked == groups_of(after)[0].counter == 2


def test_a_refusal_of_the_whole_frame_concerns_every_group() -> None:
    client = Client()
    first, second = client.append(), client.append(key=OTHER)
    (frame,) = client.turn()
    client.refuse(frame, MalformedFrameError(reason="no"), index=-1)
    assert isinstance(first.error, MalformedFrameError)
    assert isinstance(second.error, MalformedFrameError)


def test_a_reply_may_answer_some_groups_now_and_others_later() -> None:
    client = Client()
    first, second = client.append(), client.append(key=OTHER)
    (frame,) = client.turn()
    client.reply(frame, answered(1, [0, 1]))
    assert second.done()
    assert not first.done()
    client.reply(frame, answered(0, [1, 1]))
    assert first.done()


def test_reads_answered_in_part_are_asked_for_the_rest() -> None:
    client = Client()
    callers = [client.get(seq) for seq in range(1, 6)]
    (frame,) = client.turn()
    client.reply(frame, answered(0, "one", "two"))
    (rest,) = client.turn()
    assert groups_of(rest)[0].operations == [[frames.GET_MESSAGE, seq] for seq in (3, 4, 5)]
    client.reply(rest, answered(0, "three", "four", "five"))
    assert [c.answer[0] for c in callers] == ["one", "two", "three", "four", "five"]


GOOD = [0, 0, frames.encode_outcome(1, 1, 2, [[1, 1]])]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01\xc1",
        frames.encode(7),
        frames.encode({"error": "busy"}),
        frames.encode([7]),
        frames.encode([[]]),
        frames.encode([[0]]),
        frames.encode([["first", 0, b""]]),
        frames.encode([[9, 0, b""]]),
        frames.encode([[-2, *GOOD[1:]]]),
        frames.encode([[0, 1, "busy", 7]]),
        frames.encode([[0, 1, "busy", {1: 2}]]),
        frames.encode([[0, 0, b"no outcome"]]),
        frames.encode([[0, 0, frames.encode_outcome(1, 1, 2, [])]]),
        frames.encode([[0, 0, frames.encode_outcome(1, 1, 2, [[1, 1], [2, 2]])]]),
        frames.encode([[0, 0, frames.pack([1, 1, [2], [[1, 1]]])]]),
        frames.encode([[0, 0, frames.pack([1, None, 2, [[1, 1]]])]]),
        frames.encode([GOOD, [1, 0, b"no outcome"]]),
    ],
)
def test_a_reply_that_makes_no_sense_is_as_good_as_lost(payload: bytes) -> None:
    client = Client()
    callers = client.append(), client.append(key=OTHER)
    (frame,) = client.turn()
    with pytest.raises(MalformedFrameError):
        client.core.reply(frame.number, payload, client.now)
    client.core.validate()
    assert client.core.pending_count == 2
    (again,) = client.tick(FRAME_TIMEOUT_SECONDS)
    client.reply(again, answered(0, [1, 1]), answered(1, [1, 1]))
    assert [caller.answer[0] for caller in callers] == [[1, 1], [1, 1]]
    assert client.core.pending_count == 0


def test_a_reply_in_another_version_is_the_answer_of_all_in_its_frame() -> None:
    client = Client()
    callers = client.append(), client.get()
    (frame,) = client.turn()
    client.core.reply(frame.number, b"\x09rubbish", client.now)
    assert {caller.error.code for caller in callers} == {"unsupported_version"}
    client.core.validate()
    assert client.core.pending_count == 0


@pytest.mark.parametrize(
    "error",
    [
        NoCoordinatorError(prefix="hf"),
        NoServerError(),
        ConnectionFailedError(url="NATS", reason="lost"),
    ],
)
def test_what_was_never_sent_is_told_why_when_its_time_is_up(error: HoldfastError) -> None:
    client = Client(resolve=False)
    caller = client.append(timeout=1.0)
    client.turn()
    client.core.resolve_failed(STORE, error, client.now)
    client.tick(1.0)
    assert type(caller.error) is type(error)
    assert client.core.pending_count == 0


def test_what_was_sent_may_be_stored_so_its_error_is_a_timeout_that_names_the_reason() -> None:
    client = Client()
    caller = client.append(timeout=1.0)
    (frame,) = client.turn()
    client.resolve = False
    client.core.no_responders(frame.number, client.now)
    client.tick(0.1)
    client.core.resolve_failed(STORE, NoServerError(), client.now)
    client.tick(1.0)
    assert isinstance(caller.error, OperationTimeoutError)
    assert "no persist server" in str(caller.error)
    assert "1 s" in str(caller.error)


def test_an_error_of_the_coordinator_that_no_retry_helps_is_the_answer() -> None:
    client = Client(resolve=False)
    caller = client.append()
    client.turn()
    client.core.resolve_failed(STORE, InvalidNameError(what="store", name="", reason=""), 0.0)
    assert isinstance(caller.error, InvalidNameError)


def test_writes_behind_one_that_waits_for_the_bucket_stay_within_the_servers_memory() -> None:
    """`first_unacked` stays while a `stored` write waits: what comes after it is answered
    meanwhile, and kept by the owner, up to a bound; the rest goes on when the first is answered."""
    client = Client()
    stored = client.append(durability=Durability.STORED)
    (first,) = client.turn()
    window = 8
    with mock.patch("holdfast.client.wire.store_queue.MAX_WRITER_OUTCOMES", window):
        answered_count = 0
        for _ in range(3 * window):
            caller = client.append()
            for frame in client.turn():
                for index, group in enumerate(groups_of(frame)):
                    assert group.counter - group.first_unacked < window
                    client.core.reply(
                        frame.number, frames.encode([answered(index, [1, 1])]), client.now
                    )
            client.core.validate()
            answered_count += caller.done()
        assert answered_count == window - 1
        client.core.reply(first.number, frames.encode([answered(0, [1, 1])]), client.now)
        assert stored.done()
        (frame,) = client.turn()
        [group] = groups_of(frame)
        assert (group.counter, group.first_unacked) == (window + 1, window + 1)
        assert len(group.operations) == 2 * window + 1


def test_a_reconnect_sends_everything_unanswered_at_once() -> None:
    client = Client()
    sent = []
    for _ in range(3):
        client.append()
        sent += client.turn()
    client.get()
    sent += client.turn()
    client.core.reconnected()
    (again,) = client.turn()
    assert [g.counter for g in groups_of(again)] == [1, 2, 3, 0]


def test_closing_answers_everything() -> None:
    client = Client()
    callers = [client.append(), client.get()]
    client.turn()
    callers += [client.append(key=OTHER), client.append()]
    client.core.fail_all(ConnectionFailedError(url="NATS", reason="closed"))
    assert [type(caller.error) for caller in callers] == [ConnectionFailedError] * 4
    assert client.core.pending_count == 0


def test_a_forgotten_store_comes_back_above_all_counters_that_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.client.wire.schedule.MAX_KNOWN_STORES", 4)
    client = Client()
    for number in range(12):
        key = (1, f"s{number}")
        for _ in range(2):
            client.append(key=key)
            (frame,) = client.turn()
            client.reply(frame, answered(0, [1, 1]))
        client.tick(31.0)
    client.append(key=(1, "s0"))
    (frame,) = client.turn()
    (group,) = groups_of(frame)
    assert group.counter == group.first_unacked > 2
    assert WriterState(last=2).judge(group.counter, group.first_unacked)[0] is Admission.NEW


def test_a_group_formed_under_a_higher_limit_still_fits_when_it_is_sent_again() -> None:
    queue = StoreQueue(STORE)
    for _ in range(10):
        queue.writes.append((frames.pack([frames.APPEND, b""]), Caller(), 0.0, 0, 0.0))
    assert fill(FrameBuilder(1, b"w", 1000, 10), queue) == (True, 0)
    queue.requeue()
    again = FrameBuilder(2, b"w", 1000, 4)
    assert fill(again, queue) == (True, 0)
    assert len(again.groups[0].operations) == 10


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
                if fate < faults / 2:
                    continue
                if fate < faults:
                    client.core.no_responders(effect.number, client.now)
                    client.core.validate()
                    continue
                for element in server.handle(effect.payload, owner, effect.server):
                    if chance.random() < faults:
                        continue
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
    owner: dict[StoreKey, str] = {STORE: "a"}
    callers: list[tuple[bytes, Caller]] = []
    for step in range(50):
        value = str(step).encode()
        callers.append((value, client.append(value, timeout=chance.choice([0.3, 3.0, 1e6]))))
        if chance.random() < 0.3:
            victim = chance.choice(callers)[1]
            if not victim.done():
                victim.cancel()
        for effect in client.core.turn(client.now):
            if isinstance(effect, Resolve):
                client.core.resolved(STORE, OWNER)
            elif isinstance(effect, SendFrame) and chance.random() < 0.7:
                elements = server.handle(effect.payload, owner, "a")
                if chance.random() < 0.7:
                    client.core.reply(effect.number, frames.encode(elements), client.now)
        client.now += chance.choice([0.0, 0.2, 1.0])
        client.core.tick(client.now)
        client.core.validate()
    for _ in range(200):
        for effect in client.core.turn(client.now):
            if isinstance(effect, SendFrame):
                elements = server.handle(effect.payload, owner, "a")
                client.core.reply(effect.number, frames.encode(elements), client.now)
        client.now += 0.5
        client.core.tick(client.now)
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


def test_batches_count_for_a_frame_with_every_operation_in_them() -> None:
    queue = StoreQueue((1, "s"))
    queue.holds_batches = True
    sizes = [3000, 1000, 96, 1, 4096, 2]
    for size in sizes:
        batch = pack_batch([append_operation(b"")] * size, 10**6)
        queue.writes.append((batch, Caller(), 1.0, 0, 1.0))
    taken = []
    while queue.writes:
        frame = FrameBuilder(1, b"w", 10**6, 256)
        fill(frame, queue)
        decoded = frames.decode_request(frame.payload())[1]
        taken.append([len(operation[1]) for group in decoded for operation in group.operations])
        queue.groups.clear()
    assert taken == [[3000, 1000, 96], [1], [4096], [2]]


def test_a_frame_of_which_only_stored_writes_are_left_keeps_no_place() -> None:
    client = Client()
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


# Backpressure


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


def test_large_operations_are_bounded_by_their_bytes() -> None:
    client = Client()
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


def test_a_store_with_a_backlog_starves_neither_others_nor_its_own_readers() -> None:
    client = Client()
    for _ in range(5 * MAX_FRAME_OPERATIONS):
        client.append()
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
