"""What was written elsewhere before keeps its time, wherever it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import GENESIS, after, leaf_of_set
from holdfast.protocol.changes import change_from_wire
from holdfast.protocol.names import StoreKind
from tests.support.tenant_keys import KEYS
from tests.support.ticked_store import Bench, configure

NOW = 1_000_000


@pytest.fixture(params=[True, False], ids=["in the file", "pending"])
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.STREAM, keeps_up=request.param)) as bench:
        bench.time = NOW
        yield bench


def append(time_ms: Any = None, *, subject: Any = None, msg_id: Any = None) -> list[Any]:
    options = None if time_ms is None else {"time_ms": time_ms}
    return [frames.APPEND, b"v", None, msg_id, None, None, subject, None, options]


def times(bench: Bench) -> list[int]:
    return [row[2] for row in bench.read(frames.GET_MESSAGES)[0]]


def test_they_are_read_with_their_times(stream: Bench) -> None:
    stream.do(*append(5))
    stream.do(*append(7, subject="a.b"))
    stream.do(*append())
    assert times(stream) == [5, 7, NOW]
    assert stream.read(frames.HEAD)[7:9] == [5, NOW]


def test_followers_see_their_times(stream: Bench) -> None:
    stream.do(*append(5, subject="a.b"))
    [[wire]] = stream.broadcasts
    message = change_from_wire(wire, 1, NOW).message
    assert message is not None
    assert (message.time, message.subject) == (5, "a.b")


def test_the_next_owner_has_their_times(stream: Bench) -> None:
    stream.do(*append(5, subject="a.b"))
    stream.fail_over()
    assert times(stream) == [5]


def test_a_maximum_age_counts_from_their_times(stream: Bench) -> None:
    configure(stream, max_age_seconds=100)
    stream.do(*append(NOW - 99_500))
    stream.do(*append())
    stream.time += 1000
    stream.tick()
    assert times(stream) == [NOW]


def test_an_id_counts_as_long_as_it_would_have_there(stream: Bench) -> None:
    configure(stream, dedupe_window_seconds=10)
    stream.do(*append(NOW - 5000, msg_id="recent"))
    assert stream.do(*append(msg_id="recent")) == [1, 2, NOW - 5000, True]
    stream.time += 6000
    assert stream.do(*append(msg_id="recent"))[0] == 2


@pytest.mark.parametrize("time_ms", [0, -1, NOW + 1, "5", True, 1.5])
def test_a_time_that_has_not_been_is_refused(stream: Bench, time_ms: Any) -> None:
    assert stream.do(*append(time_ms))[0] == "invalid_argument"
    assert stream.store.last_seq == 0


# Entries
@pytest.fixture(
    params=[(True, None), (False, None), (True, KEYS), (False, KEYS)],
    ids=["in the file", "pending", "encrypted in the file", "encrypted and pending"],
)
def kv(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    keeps_up, keys = request.param
    with closing(Bench(tmp_path, StoreKind.KV, keeps_up=keeps_up, keys=keys)) as bench:
        bench.time = NOW
        yield bench


def set_entry(key: str, time_ms: Any = None, *, headers: Any = None) -> list[Any]:
    return [frames.SET_ENTRY, key, b"v", headers, None, None, time_ms]


def entry_times(bench: Bench) -> dict[str, int]:
    page = bench.read(frames.GET_ENTRIES, "")[0]
    return {row[0]: row[2] for row in page}


def test_entries_are_read_with_their_times(kv: Bench) -> None:
    kv.do(*set_entry("old", 5))
    kv.do(*set_entry("older", 3, headers={"user": "ada"}))
    kv.do(*set_entry("new"))
    assert entry_times(kv) == {"old": 5, "older": 3, "new": NOW}
    kv.do(*set_entry("old"))
    assert entry_times(kv)["old"] == NOW


def test_followers_see_the_times_of_entries(kv: Bench) -> None:
    kv.do(*set_entry("old", 5))
    [[wire]] = kv.broadcasts
    change = change_from_wire(wire, 1, NOW)
    assert change.entry is not None
    assert (change.time, change.entry.time, change.entry.headers) == (NOW, 5, {})


def test_the_next_owner_has_the_times_of_entries(kv: Bench) -> None:
    kv.do(*set_entry("old", 5))
    kv.fail_over()
    assert entry_times(kv) == {"old": 5}


def test_a_maximum_age_counts_from_the_times_of_entries(kv: Bench) -> None:
    configure(kv, max_age_seconds=100)
    kv.do(*set_entry("old", NOW - 99_500))
    kv.do(*set_entry("new"))
    kv.time += 1000
    kv.tick()
    assert set(entry_times(kv)) == {"new"}


@pytest.mark.parametrize(
    "settings", [{"chain": True}, {"history": 5}, {"chain": True, "history": 5}]
)
def test_chains_and_histories_have_the_times_of_entries(
    kv: Bench, settings: dict[str, Any]
) -> None:
    configure(kv, **settings)
    kv.do(*set_entry("old", 5))
    kv.do(*set_entry("old", 7))
    kv.do(*set_entry("new"))
    chain = kv.store.chain
    assert entry_times(kv) == {"old": 7, "new": NOW}
    # It compares the chain that it makes of the file with that of the owner before it.
    kv.fail_over()
    assert entry_times(kv) == {"old": 7, "new": NOW}
    assert kv.store.chain == chain
    # Leaves of encrypted values have a salt.
    if "chain" in settings and kv.keys is None:
        first = after(GENESIS, leaf_of_set(2, 5, b"v", None, "old"))
        second = after(first, leaf_of_set(3, 7, b"v", None, "old"))
        assert chain == after(second, leaf_of_set(4, NOW, b"v", None, "new"))


@pytest.mark.parametrize("time_ms", [0, -1, NOW + 1, "5", True, 1.5])
def test_a_time_of_an_entry_that_has_not_been_is_refused(kv: Bench, time_ms: Any) -> None:
    assert kv.do(*set_entry("k", time_ms))[0] == "invalid_argument"
    assert kv.store.count == 0
