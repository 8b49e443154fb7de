"""Runs: many operations of a store that are one caller's, packed once."""

from __future__ import annotations

import pytest

from holdfast.client.handles.serving_wire import Packer
from holdfast.client.wire.filling import fill
from holdfast.client.wire.frame import FrameBuilder
from holdfast.client.wire.store_queue import StoreQueue
from holdfast.client.wire.waiting import PackedRun
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    InvalidArgumentError,
    MalformedFrameError,
    OperationTimeoutError,
)
from holdfast.protocol.messages import Ack, Durability
from tests.support.coalescer_client import STORE, Caller, Client, answered, groups_of


def _run(count: int, value: bytes = b"") -> PackedRun:
    return Packer(3).run([("a.b", value, b"")] * count)


def _submit_run(client: Client, count: int) -> Caller:
    caller = Caller()
    client.core.submit(STORE, (_run(count), caller, client.now + 30.0, 0, 30.0), True)
    return caller


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_a_run_is_the_operations_one_after_the_other(client: Client, count: int) -> None:
    _submit_run(client, count)
    alone = client.append()
    (group,) = [group for frame in client.turn() for group in groups_of(frame)]
    append = [frames.APPEND, b"", None, None, None, None, "a.b", 3]
    assert group.operations == [append] * count + [[frames.APPEND, b"v"]]
    assert alone.answer is None


def test_the_waiters_of_runs_get_the_results_of_all_their_operations(client: Client) -> None:
    first, second, alone, third = (
        *(_submit_run(client, 3), _submit_run(client, 1)),
        *(client.append(), _submit_run(client, 2)),
    )
    (frame,) = client.turn()
    outcome = frames.encode_outcome(1, 1234, 2, frames.Run(10, 20, 7))
    client.reply(frame, [0, 0, outcome])
    synced = Durability.SYNCED
    assert first.answer == (frames.Run(10, 20, 3), 1234, synced)
    assert second.answer == (frames.Run(13, 23, 1), 1234, synced)
    assert alone.answer == Ack(14, 24, 1234, synced)
    assert third.answer == (frames.Run(15, 25, 2), 1234, synced)
    assert client.core.pending_count == 0


def test_each_operation_of_a_run_may_have_its_own_result(client: Client) -> None:
    run, alone = _submit_run(client, 3), client.append()
    (frame,) = client.turn()
    refused = ["limit_exceeded", {}]
    # An answer with too few results is none.
    with pytest.raises(MalformedFrameError):
        client.reply(frame, answered(0, [1, 1], refused))
    client.reply(frame, answered(0, [1, 1], refused, [2, 2], [3, 3]))
    assert run.answer == ([[1, 1], refused, [2, 2]], 1234, Durability.SYNCED)
    assert alone.answer == ([3, 3], 1234, Durability.SYNCED)


def test_a_run_is_refused_and_sent_again_as_a_whole(client: Client) -> None:
    run = _submit_run(client, 3)
    (frame,) = client.turn()
    client.core.reconnected()
    (again,) = client.turn()
    assert groups_of(again)[0].operations == groups_of(frame)[0].operations
    client.refuse(again, InvalidArgumentError(argument="a", reason="b"))
    assert isinstance(run.error, InvalidArgumentError)
    late = _submit_run(client, 2)
    client.turn()
    client.tick(31.0)
    assert isinstance(late.error, OperationTimeoutError)


def test_runs_share_frames_as_far_as_they_fit() -> None:
    queue = StoreQueue((1, "s"))
    queue.holds_several = True
    for count in (200, 100, 300, 1):
        queue.writes.append((_run(count), Caller(), 1.0, 0, 1.0))
    taken = []
    while queue.writes:
        frame = FrameBuilder(1, b"w", 10**6, 256, 256)
        fill(frame, queue)
        taken.append([len(group.operations) for group in frames.decode_request(frame.payload())[1]])
        queue.groups.clear()
    assert taken == [[200], [100], [300], [1]]
