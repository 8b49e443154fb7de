"""The time of a store that an owner with a clock far ahead has written: it goes on at the usual
pace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.protocol import frames
from holdfast.protocol.names import StoreKind
from tests.support.ticked_store import Bench, append, configure, put

#: One that was set for a moment, and one of a machine whose battery is empty.
LEAPS = (3_600_000, 30 * 365 * 86_400_000)


each_leap = pytest.mark.parametrize("leap", LEAPS)


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.KV)) as bench:
        yield bench


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.STREAM)) as bench:
        yield bench


@pytest.mark.parametrize("reopened", [False, True])
@each_leap
def test_a_ttl_that_was_set_by_a_clock_ahead_ends_in_time(
    kv: Bench, leap: int, reopened: bool
) -> None:
    kv.time += leap
    kv.do(*put("presence", ttl_seconds=1.0))
    kv.time -= leap
    if reopened:
        kv.reopen()
    assert list(kv.rows()) == ["presence"]
    kv.time += 990
    assert list(kv.rows()) == ["presence"]
    kv.time += 20
    assert list(kv.rows()) == []
    before = kv.store.time
    kv.do(*put("next"))
    assert kv.store.time >= before


@each_leap
def test_rates_flow_though_the_clock_was_ahead(stream: Bench, leap: int) -> None:
    configure(stream, max_messages_per_second=10)
    stream.time += leap
    assert stream.tick(*[append()] * 10)[-1][0] == 10
    stream.time -= leap
    assert stream.tick(append())[0][0] != 11, "the bucket is empty"
    stream.time += 1000
    results = stream.tick(*[append()] * 10)
    assert [result[0] for result in results] == list(range(11, 21))


@each_leap
def test_ack_waits_end_though_the_clock_was_ahead(stream: Bench, leap: int) -> None:
    stream.do(*append())
    workers = stream.do(frames.CONSUMER_CONFIGURE, "workers", {"ack_wait_seconds": 5.0})[0]
    stream.time += leap
    assert stream.do(frames.CONSUMER_FETCH, workers, 10)[0] == [[1, 1]]
    stream.time -= leap
    assert stream.do(frames.CONSUMER_FETCH, workers, 10)[0] == []
    stream.time += 4900
    assert stream.do(frames.CONSUMER_FETCH, workers, 10)[0] == []
    stream.time += 200
    assert stream.do(frames.CONSUMER_FETCH, workers, 10)[0] == [[1, 2]]


@each_leap
def test_a_msg_id_is_forgotten_though_the_clock_was_ahead(stream: Bench, leap: int) -> None:
    stream.time += leap
    operation = [frames.APPEND, b"v", None, "once"]
    first = stream.do(*operation)
    stream.time -= leap
    for _ in range(2):
        assert stream.do(*operation)[0] == first[0]
        stream.time += 70_000
    assert stream.do(*operation)[0] == first[0] + 1


def test_the_times_of_a_store_never_go_back_however_clocks_differ(stream: Bench) -> None:
    times = []
    for step in (500, -400, 300, 3_600_000, -3_600_000, 1, 0, -5, 7_200_000, -9_000_000, 10):
        stream.time = max(1, stream.time + step)
        stream.do(*append())
        times.append(stream.store.time)
    assert times == sorted(times)
