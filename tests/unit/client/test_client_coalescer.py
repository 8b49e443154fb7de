"""The coalescer: what leaves when, what is sent again, and who gets which answer."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from holdfast.client.wire.effects import Suspect
from holdfast.client.wire.filling import fill
from holdfast.client.wire.frame import FrameBuilder
from holdfast.client.wire.in_flight import (
    SILENCE_LOOK_SECONDS,
    SPREAD_OPERATIONS,
    SPREAD_READS,
)
from holdfast.client.wire.operations import append_operation, pack_batch
from holdfast.client.wire.schedule import BACKOFF_MAX_SECONDS
from holdfast.client.wire.store_queue import StoreQueue
from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    BusyError,
    ConnectionFailedError,
    InvalidNameError,
    NoCoordinatorError,
    NotOwnerError,
    OperationTimeoutError,
)
from holdfast.protocol.limits import (
    FRAME_RESERVE_BYTES,
    FRAME_TIMEOUT_SECONDS,
    FRAMES_IN_FLIGHT,
    MAX_FRAME_OPERATIONS,
    MIN_PAYLOAD_BYTES,
    PING_SECONDS,
)
from holdfast.protocol.messages import Durability
from tests.support.coalescer_client import OTHER, STORE, Caller, Client, answered, groups_of


def test_a_frame_is_byte_for_byte_what_the_protocol_encodes(client: Client) -> None:
    for number in range(20):
        client.append(b"x" * number)
    client.append(b"d", durability=1)
    client.get(7)
    _, frame = client.send(b"", key=OTHER)
    writer, groups = frames.decode_request(frame.payload)
    assert frame.payload == frames.encode_request(writer, [list(group) for group in groups])
    assert [(g.kind, g.counter, g.durability, len(g.operations)) for g in groups] == [
        (1, 1, 0, 20),
        (1, 2, 1, 1),
        (1, 0, 0, 1),
        (2, 1, 0, 1),
    ]


def test_everything_that_waits_for_one_server_leaves_in_one_frame(client: Client) -> None:
    for key in (STORE, OTHER):
        client.append(key=key)
        client.append(key=key)
    (frame,) = client.turn()
    assert client.resolves == [[STORE, OTHER]]
    assert [g.name for g in groups_of(frame)] == ["s", "k"]


def test_each_caller_gets_its_own_result(client: Client) -> None:
    first, second = client.append(), client.append()
    (frame,) = client.turn()
    client.reply(frame, answered(0, [1, 1], [2, 2], durability=1))
    assert first.answer == ([1, 1], 1234, 1)
    assert second.answer == ([2, 2], 1234, 1)
    assert client.core.pending_count == 0


def test_writes_that_wait_for_the_bucket_keep_no_other_write_waiting(client: Client) -> None:
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


def test_operations_gather_while_frames_are_in_flight(client: Client) -> None:
    for _ in range(FRAMES_IN_FLIGHT + 3):
        client.append()
        client.turn()
    assert len(client.frames) == FRAMES_IN_FLIGHT
    client.reply(client.frames[0], answered(0, [1, 1]))
    (frame,) = client.turn()
    assert len(groups_of(frame)[0].operations) == 3


def test_a_frame_keeps_within_the_limits_of_bytes_and_operations(client: Client) -> None:
    client.append_many(30, b"x" * 300_000)
    for frame in client.turn():
        assert len(frame.payload) <= MIN_PAYLOAD_BYTES
        assert len(groups_of(frame)[0].operations) == 3
    small = Client()
    small.append_many(10 * MAX_FRAME_OPERATIONS, b"")
    for frame in small.turn():
        assert len(groups_of(frame)[0].operations) == MAX_FRAME_OPERATIONS


def test_what_waits_is_spread_over_the_frames_that_may_leave(client: Client) -> None:
    client.append_many(SPREAD_OPERATIONS * FRAMES_IN_FLIGHT)
    assert [len(groups_of(frame)[0].operations) for frame in client.turn()] == (
        [SPREAD_OPERATIONS] * FRAMES_IN_FLIGHT
    )


def test_reads_at_once_leave_in_two_frames_so_that_client_and_server_both_work(
    client: Client,
) -> None:
    for seq in range(2 * SPREAD_READS + 10):
        client.get(seq)
    halves = [len(groups_of(frame)[0].operations) for frame in client.turn()]
    assert halves == [SPREAD_READS + 5] * 2


def test_reads_of_many_stores_leave_in_two_frames_too(client: Client) -> None:
    for number in range(2 * SPREAD_READS):
        client.get(key=(1, f"s{number}"))
    first, second = client.turn()
    assert len(groups_of(first)) == len(groups_of(second)) == SPREAD_READS
    names = {group.name for frame in (first, second) for group in groups_of(frame)}
    assert len(names) == 2 * SPREAD_READS


def test_few_reads_and_all_writes_leave_in_one_frame(client: Client) -> None:
    for seq in range(SPREAD_READS):
        client.get(seq)
    assert len(client.turn()) == 1
    client.append_many(4 * SPREAD_READS)
    for seq in range(SPREAD_READS):
        client.get(seq)
    (frame,) = client.turn()
    assert [len(group.operations) for group in groups_of(frame)] == [4 * SPREAD_READS, SPREAD_READS]


def test_the_halves_stay_apart_while_their_callers_ask_again(client: Client) -> None:
    for seq in range(2 * SPREAD_READS):
        client.get(seq)
    in_flight = client.turn()
    for _ in range(5):
        first, *in_flight = in_flight
        client.reply(first, answered(0, *[[seq] for seq in range(SPREAD_READS)]))
        for seq in range(SPREAD_READS):
            client.get(seq)
        in_flight += client.turn()
        assert [len(groups_of(frame)[0].operations) for frame in in_flight] == [SPREAD_READS] * 2


def test_the_largest_value_fits_in_a_frame(client: Client) -> None:
    _, frame = client.send(b"x" * 1_000_000)
    assert len(frame.payload) <= MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES


def test_one_busy_store_does_not_keep_others_from_the_next_frame(client: Client) -> None:
    client.append_many(SPREAD_OPERATIONS * 2)
    client.append(key=OTHER)
    first, second, *_ = client.turn()
    assert [g.name for g in groups_of(first)] == ["s"]
    assert "k" in [g.name for g in groups_of(second)]


def test_an_unanswered_group_is_sent_again_unchanged_before_newer_ones(client: Client) -> None:
    _, first = client.send(b"1")
    again = client.tick(FRAME_TIMEOUT_SECONDS)
    assert groups_of(again[0]) == groups_of(first)
    client.send(b"2")
    (third,) = client.tick(FRAME_TIMEOUT_SECONDS * 4)
    assert [(g.counter, g.first_unacked) for g in groups_of(third)] == [(1, 1), (2, 1)]


def test_a_late_answer_to_the_first_copy_counts_and_the_second_is_ignored(client: Client) -> None:
    write, read = client.append(), client.get()
    (first,) = client.turn()
    (second,) = client.tick(FRAME_TIMEOUT_SECONDS)
    client.reply(first, answered(0, [1, 1]), answered(1, None))
    assert write.answer[0] == [1, 1]
    assert read.answer[0] is None
    client.reply(second, answered(0, [1, 1]), answered(1, [1, 1, 0, b""]))
    assert read.answer[0] is None
    assert client.core.pending_count == 0


def test_a_late_server_is_asked_whether_it_is_there_and_failed_over_when_it_is_not(
    client: Client,
) -> None:
    caller, frame = client.send()
    client.tick(PING_SECONDS * 0.6)
    assert client.pings == []
    client.tick(PING_SECONDS * 0.6)
    (ping,) = client.pings
    assert ping.server == frame.server
    client.resolve = False
    client.no_responders(ping)
    assert client.suspects == [Suspect("a", "a-1")]
    client.tick(1.0)
    (again,) = client.move()
    assert again.server == "b"
    assert groups_of(again) == groups_of(frame)
    client.settle(caller, again)


def test_a_server_that_is_only_slow_is_asked_now_and_then_and_keeps_its_frame(
    client: Client,
) -> None:
    caller, frame = client.send()
    for asked in range(1, 5):
        assert client.tick(PING_SECONDS * 1.1) == []
        assert len(client.pings) == asked
        client.reply(client.pings[-1])
    client.settle(caller, frame)
    assert client.tick(PING_SECONDS * 3) == []
    assert len(client.pings) == 4
    assert client.suspects == []


def test_a_slow_server_is_given_more_time_with_each_resend(client: Client) -> None:
    client.send()
    sent = [len(client.tick(FRAME_TIMEOUT_SECONDS)) for _ in range(5)]
    assert sent == [1, 0, 1, 0, 0]


def test_a_silent_server_has_its_stores_asked_for_again(client: Client) -> None:
    client.send()
    client.resolve = False
    client.tick(FRAME_TIMEOUT_SECONDS)
    assert client.resolves == [[STORE], [STORE]]
    (frame,) = client.move()
    assert frame.server == "b"
    assert groups_of(frame)[0].counter == 1


def test_the_owner_of_a_silent_server_s_stores_is_asked_for_more_often_than_resends(
    client: Client,
) -> None:
    client.append()
    client.get()
    client.send(key=OTHER)
    client.tick(FRAME_TIMEOUT_SECONDS)
    asked = len(client.resolves)
    client.resolve = False
    assert client.tick(SILENCE_LOOK_SECONDS) == []
    assert len(client.resolves) == asked + 1
    moved = client.move()
    assert [frame.server for frame in moved] == ["a", "b"]
    assert [(g.name, g.counter) for g in groups_of(moved[1])] == [("s", 1), ("s", 0)]


def test_of_a_silent_server_the_owner_of_one_store_of_each_frame_is_asked_for(
    client: Client,
) -> None:
    client.append()
    client.send(key=OTHER)
    client.tick(FRAME_TIMEOUT_SECONDS)
    client.turn()
    asked = len(client.resolves)
    client.tick(SILENCE_LOOK_SECONDS)
    assert client.resolves[asked:] == [[STORE]]


def test_a_lost_coordinator_does_not_hinder_a_resend_to_a_known_owner(client: Client) -> None:
    caller, _ = client.send()
    client.resolve = False
    (again,) = client.tick(FRAME_TIMEOUT_SECONDS)
    client.core.resolve_failed(STORE, NoCoordinatorError(prefix="hf"), client.now)
    client.settle(caller, again)


def test_not_owner_leads_to_the_new_owner_at_once_with_the_same_counters(client: Client) -> None:
    _, first = client.send()
    _, second = client.send()
    client.resolve = False
    client.refuse(first, NotOwnerError(server="a"))
    client.turn()
    client.refuse(second, NotOwnerError(server="a"))
    client.turn()
    assert client.resolves == [[STORE], [STORE]]
    (moved,) = client.move()
    assert moved.server == "b"
    assert [g.counter for g in groups_of(moved)] == [1, 2]


def test_no_responders_suspects_the_server_once_and_resolves_after_a_pause(client: Client) -> None:
    client.append()
    _, frame = client.send(key=OTHER)
    assert client.no_responders(frame) == []
    assert client.suspects == [Suspect("a", "a-1")]
    (again,) = client.tick(0.02)
    assert len(groups_of(again)) == 2
    client.no_responders(again)
    assert len(client.suspects) == 1
    client.core.suspect_answered("a")
    (third,) = client.turn()
    client.no_responders(third)
    assert len(client.suspects) == 2


def test_busy_backs_off_with_growing_pauses_and_keeps_the_owner(client: Client) -> None:
    caller, frame = client.send()
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
    client.settle(caller, frame)


def test_a_gap_sends_all_unanswered_groups_of_the_store_again_in_order(client: Client) -> None:
    sent = [client.send()[1] for _ in range(3)]
    client.reply(sent[1], [0, 1, "writer_gap", {"counter": 2, "expected": 1}])
    (again,) = client.turn()
    assert [g.counter for g in groups_of(again)] == [1, 2, 3]
    client.reply(sent[2], [0, 1, "writer_gap", {"counter": 3, "expected": 1}])
    assert client.turn() == [], "the copy sent last has its own answer"


def test_the_floor_passes_what_is_answered(client: Client) -> None:
    sent = [client.send()[1] for _ in range(2)]
    client.reply(sent[0], answered(0, [1, 1]))
    _, third = client.send()
    assert groups_of(third)[0].first_unacked == 2
    client.reply(sent[1], answered(0, [2, 2]))
    _, fourth = client.send()
    assert groups_of(fourth)[0].first_unacked == 3


def test_the_floor_passes_a_group_whose_callers_have_all_given_up(client: Client) -> None:
    cancelled, _ = client.send()
    expired, _ = client.send(timeout=1.0)
    cancelled.cancel()
    client.tick(1.0)
    assert isinstance(expired.error, OperationTimeoutError)
    _, third = client.send()
    assert [(g.counter, g.first_unacked) for g in groups_of(third)] == [(3, 3)]
    assert client.core.pending_count == 1


def test_writes_behind_one_that_waits_for_the_bucket_stay_within_the_servers_memory(
    client: Client,
) -> None:
    """`first_unacked` stays while a `stored` write waits: what comes after it is answered
    meanwhile, and kept by the owner, up to a bound; the rest goes on when the first is answered."""
    stored, first = client.send(durability=Durability.STORED)
    window = 8
    with mock.patch("holdfast.client.wire.store_queue.MAX_WRITER_OUTCOMES", window):
        answered_count = 0
        for _ in range(3 * window):
            caller = client.append()
            for frame in client.turn():
                for index, group in enumerate(groups_of(frame)):
                    assert group.counter - group.first_unacked < window
                    client.reply(frame, answered(index, [1, 1]))
            answered_count += caller.done()
        assert answered_count == window - 1
        client.settle(stored, first)
        (frame,) = client.turn()
        [group] = groups_of(frame)
        assert (group.counter, group.first_unacked) == (window + 1, window + 1)
        assert len(group.operations) == 2 * window + 1


def test_a_reconnect_sends_everything_unanswered_at_once(client: Client) -> None:
    sent = [client.send()[1] for _ in range(3)]
    client.get()
    sent += client.turn()
    client.core.reconnected()
    (again,) = client.turn()
    assert [g.counter for g in groups_of(again)] == [1, 2, 3, 0]


def test_closing_answers_everything(client: Client) -> None:
    callers = [client.append(), client.get()]
    client.turn()
    callers += [client.append(key=OTHER), client.append()]
    client.core.fail_all(ConnectionFailedError(url="NATS", reason="closed"))
    assert [type(caller.error) for caller in callers] == [ConnectionFailedError] * 4
    assert client.core.pending_count == 0


def test_a_forgotten_store_comes_back_above_all_counters_that_were_forgotten(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.wire.schedule.MAX_KNOWN_STORES", 4)
    for number in range(12):
        key = (1, f"s{number}")
        for _ in range(2):
            client.settle(*client.send(key=key))
        client.tick(31.0)
    _, frame = client.send(key=(1, "s0"))
    (group,) = groups_of(frame)
    assert group.counter == group.first_unacked > 2
    assert WriterState(last=2).judge(group.counter, group.first_unacked)[0] is Admission.NEW


def test_a_group_formed_under_a_higher_limit_still_fits_when_it_is_sent_again() -> None:
    queue = StoreQueue(STORE)
    for _ in range(10):
        queue.writes.append((frames.pack([frames.APPEND, b""]), Caller(), 0.0, 0, 0.0))
    assert fill(FrameBuilder(1, b"w", 1000, 10, 10), queue) == (True, 0)
    queue.requeue()
    again = FrameBuilder(2, b"w", 1000, 4, 4)
    assert fill(again, queue) == (True, 0)
    assert len(again.groups[0].operations) == 10


def test_batches_count_for_a_frame_with_every_operation_in_them() -> None:
    queue = StoreQueue((1, "s"))
    queue.holds_several = True
    sizes = [3000, 1000, 96, 1, 4096, 2]
    for size in sizes:
        batch = pack_batch([append_operation(b"")] * size, 10**6)
        queue.writes.append((batch, Caller(), 1.0, 0, 1.0))
    taken = []
    while queue.writes:
        frame = FrameBuilder(1, b"w", 10**6, 256, 256)
        fill(frame, queue)
        decoded = frames.decode_request(frame.payload())[1]
        taken.append([len(operation[1]) for group in decoded for operation in group.operations])
        queue.groups.clear()
    assert taken == [[3000, 1000, 96], [1], [4096], [2]]


class _Again(Caller):
    """A caller who submits another write when he hears that his own has failed."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self.later: Caller | None = None

    def set_result(self, result: Any, /) -> None:
        super().set_result(result)
        self.later = self._client.append(timeout=2.0)


@pytest.mark.parametrize("expires", [True, False])
def test_a_write_that_is_submitted_when_another_has_failed_has_its_own_time(expires: bool) -> None:
    client = Client(resolve=False)
    packed = frames.pack([frames.APPEND, b"v"])
    callers = [_Again(client) for _ in range(2)]
    for caller in callers:
        client.core.submit(STORE, (packed, caller, client.now + 1.0, 0, 1.0), True)
    client.turn()
    if expires:
        client.tick(1.0)
    else:
        client.core.resolve_failed(STORE, InvalidNameError(what="", name="", reason=""), client.now)
    for caller in callers:
        assert caller.error is not None
        assert caller.later is not None
        assert not caller.later.done()
    assert client.core.pending_count == 2
    client.tick(2.0)
    for caller in callers:
        assert caller.later is not None
        assert isinstance(caller.later.error, OperationTimeoutError)
    assert client.core.pending_count == 0
