"""Which error a caller gets, and when: what was sent may be stored, what was not is refused."""

from __future__ import annotations

import pytest

from holdfast.client.wire.effects import SendFrame
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    InvalidNameError,
    MalformedFrameError,
    NoCoordinatorError,
    NoServerError,
    NotAllowedError,
    OperationTimeoutError,
    StorageFailedError,
)
from holdfast.protocol.limits import FRAME_TIMEOUT_SECONDS, FRAMES_IN_FLIGHT
from tests.support.coalescer_client import OTHER, OWNER, STORE, Client, answered, groups_of

FORBIDDEN = NotAllowedError(action="publish", subject="a")
GOOD = [0, 0, frames.encode_outcome(1, 1, 2, [[1, 1]])]


def test_an_operation_cancelled_before_it_left_is_never_sent() -> None:
    client = Client(resolve=False)
    client.append().cancel()
    client.get().cancel()
    client.turn()
    client.core.resolved(STORE, OWNER)
    assert client.turn() == []
    assert client.core.pending_count == 0


def give_up_in_line(client: Client) -> SendFrame:
    """Let the only caller of a store give up while it waits for a busy server; return a frame that
    the server has."""
    busy = [client.send(key=OTHER)[1] for _ in range(FRAMES_IN_FLIGHT)]
    client.append(timeout=0.1)
    assert client.tick(0.1) == []
    return busy[0]


def test_a_store_whose_callers_gave_up_in_line_does_not_stay_with_a_lost_server(
    client: Client,
) -> None:
    client.no_responders(give_up_in_line(client))
    caller, frame = client.send()
    client.settle(caller, frame)


def test_a_store_whose_callers_gave_up_in_line_does_not_stay_with_a_forbidden_server(
    client: Client,
) -> None:
    give_up_in_line(client)
    client.core.refused("a", FORBIDDEN, client.now)
    caller, frame = client.send()
    client.settle(caller, frame)


def test_a_store_whose_callers_gave_up_in_line_does_not_stay_with_its_former_owner(
    client: Client,
) -> None:
    give_up_in_line(client)
    client.move()
    caller, frame = client.send()
    assert frame.server == "b"
    client.settle(caller, frame)


def test_who_may_not_ask_for_the_owner_is_not_told_that_what_was_sent_is_refused(
    client: Client,
) -> None:
    sent, frame = client.send()
    client.resolve = False
    client.no_responders(frame)
    client.tick(1.0)
    unsent, reading = client.append(), client.get()
    client.core.resolve_failed(STORE, FORBIDDEN, client.now)
    assert isinstance(unsent.error, NotAllowedError)
    assert isinstance(reading.error, NotAllowedError)
    assert not sent.done()
    client.resolve = True
    (copy,) = client.tick(1.0)
    assert groups_of(copy)[0].counter == 1
    client.settle(sent, copy)


def test_a_store_whose_owner_nobody_tells_times_out_if_a_write_may_be_stored(
    client: Client,
) -> None:
    sent, frame = client.send(timeout=3.0)
    client.resolve = False
    client.no_responders(frame)
    for _ in range(8):
        client.core.resolve_failed(STORE, FORBIDDEN, client.now)
        client.tick(0.6)
    assert isinstance(sent.error, OperationTimeoutError)
    assert "publish" in str(sent.error)


def test_what_the_bus_refuses_was_not_sent_but_an_earlier_copy_may_be_stored(
    client: Client,
) -> None:
    first, _ = client.send()
    second = client.append(key=OTHER)
    assert len(client.tick(FRAME_TIMEOUT_SECONDS)) == 2
    client.core.refused("a", FORBIDDEN, client.now)
    assert isinstance(second.error, NotAllowedError)
    assert not first.done()
    (again,) = client.tick(1.0)
    client.settle(first, again)


def test_a_client_that_may_not_listen_does_not_say_that_what_was_sent_is_refused(
    client: Client,
) -> None:
    sent, _ = client.send()
    unsent = client.append(key=OTHER)
    client.core.fail_all(FORBIDDEN)
    assert isinstance(sent.error, ConnectionFailedError)
    assert isinstance(unsent.error, NotAllowedError)


def test_a_group_error_reaches_each_caller_as_its_own_exception(client: Client) -> None:
    first, second = client.append(), client.append()
    (frame,) = client.turn()
    client.refuse(frame, StorageFailedError(reason="full"))
    assert isinstance(first.error, StorageFailedError)
    assert first.error is not second.error
    _, after = client.send()
    assert groups_of(after)[0].first_unacked == groups_of(after)[0].counter == 2


def test_a_refusal_of_the_whole_frame_concerns_every_group(client: Client) -> None:
    first, second = client.append(), client.append(key=OTHER)
    (frame,) = client.turn()
    client.refuse(frame, MalformedFrameError(reason="no"), index=-1)
    assert isinstance(first.error, MalformedFrameError)
    assert isinstance(second.error, MalformedFrameError)


def test_a_reply_may_answer_some_groups_now_and_others_later(client: Client) -> None:
    first, second = client.append(), client.append(key=OTHER)
    (frame,) = client.turn()
    client.reply(frame, answered(1, [0, 1]))
    assert second.done()
    assert not first.done()
    client.reply(frame, answered(0, [1, 1]))
    assert first.done()


def test_reads_answered_in_part_are_asked_for_the_rest(client: Client) -> None:
    callers = [client.get(seq) for seq in range(1, 6)]
    (frame,) = client.turn()
    client.reply(frame, answered(0, "one", "two"))
    (rest,) = client.turn()
    assert groups_of(rest)[0].operations == [[frames.GET_MESSAGE, seq] for seq in (3, 4, 5)]
    client.reply(rest, answered(0, "three", "four", "five"))
    assert [c.answer[0] for c in callers] == ["one", "two", "three", "four", "five"]


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\x01\xc1"),
        *map(frames.encode, (7, {"error": "busy"}, [7], [[]], [[0]])),
        *map(frames.encode, ([["first", 0, b""]], [[9, 0, b""]], [[-2, *GOOD[1:]]])),
        *map(frames.encode, ([[0, 1, "busy", 7]], [[0, 1, "busy", {1: 2}]])),
        frames.encode([[0, 0, b"no outcome"]]),
        frames.encode([[0, 0, frames.encode_outcome(1, 1, 2, [])]]),
        frames.encode([[0, 0, frames.encode_outcome(1, 1, 2, [[1, 1], [2, 2]])]]),
        frames.encode([[0, 0, frames.pack([1, 1, [2], [[1, 1]]])]]),
        frames.encode([[0, 0, frames.pack([1, None, 2, [[1, 1]]])]]),
        frames.encode([GOOD, [1, 0, b"no outcome"]]),
    ],
)
def test_a_reply_that_makes_no_sense_is_as_good_as_lost(client: Client, payload: bytes) -> None:
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


def test_a_reply_in_another_version_is_the_answer_of_all_in_its_frame(client: Client) -> None:
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
        ConnectionFailedError(url="", reason="lost"),
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


def test_what_was_sent_may_be_stored_so_its_error_is_a_timeout_that_names_the_reason(
    client: Client,
) -> None:
    caller, frame = client.send(timeout=1.0)
    client.resolve = False
    client.no_responders(frame)
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
