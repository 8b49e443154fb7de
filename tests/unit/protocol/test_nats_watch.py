"""When a connection to NATS counts as dead, and that the nats-py installed is one that we know."""

from __future__ import annotations

import pytest
from nats.aio.client import Client

from holdfast.protocol.bus import nats_client
from holdfast.protocol.bus.nats_client import check_nats_py
from holdfast.protocol.bus.nats_watch import Step, Watch
from holdfast.protocol.errors import ConnectionFailedError
from holdfast.protocol.limits import BUS_DEAD_LOOKS, BUS_LOOK_SECONDS, BUS_PING_LOOKS


def test_silence_calls_for_a_ping_and_then_for_another_connection() -> None:
    watch = Watch()
    steps = [watch.look(False, 0, 0) for _ in range(BUS_DEAD_LOOKS)]
    expected = [Step.NONE] * BUS_DEAD_LOOKS
    expected[BUS_PING_LOOKS - 1] = Step.PING
    expected[-1] = Step.ABORT
    assert steps == expected
    # The last byte may have come just after a look.
    assert (BUS_DEAD_LOOKS + 1) * BUS_LOOK_SECONDS < 5


def test_whoever_is_heard_in_time_is_never_given_up() -> None:
    watch = Watch()
    for _ in range(20):
        steps = [watch.look(False, 0, 0) for _ in range(BUS_DEAD_LOOKS - 1)]
        assert Step.ABORT not in steps
        assert steps.count(Step.PING) == 1
        assert watch.look(True, 0, 0) is Step.NONE


def test_a_slow_line_is_waited_for_while_it_takes_what_is_before_the_ping() -> None:
    watch = Watch()
    acked, unacked, steps = 0, 1_000_000, []
    while unacked > 0:
        acked, unacked = acked + 50_000, unacked - 50_000
        steps.append(watch.look(False, acked, unacked))
    assert steps.count(Step.PING) == 1
    assert Step.ABORT not in steps
    # From here on the answer is due, whatever else is sent and acknowledged.
    for _ in range(BUS_DEAD_LOOKS):
        acked += 1000
        steps.append(watch.look(False, acked, 0))
    assert Step.ABORT in steps


def test_a_dead_line_is_given_up_whatever_waits_in_it() -> None:
    watch = Watch()
    steps = [watch.look(False, 0, 1_000_000 * look) for look in range(BUS_DEAD_LOOKS)]
    assert steps[-1] is Step.ABORT


def test_another_nats_py_than_we_know_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    check_nats_py()
    check_nats_py.cache_clear()
    monkeypatch.delattr(Client, "_process_op_err")
    with pytest.raises(ConnectionFailedError, match="_process_op_err"):
        check_nats_py()
    monkeypatch.undo()
    check_nats_py.cache_clear()
    assert nats_client._tcp_transport() is not None
