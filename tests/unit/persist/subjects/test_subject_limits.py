"""What limits per subject and the passing of time remove from a stream with subjects."""

from __future__ import annotations

import random

import pytest

from holdfast.persist.operations import (
    eviction,
    operations,
    subject_limits,
)
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
    NEVER_EXPIRES,
    REASON_LIMIT,
    REASON_TTL,
)
from holdfast.protocol.header_block import HeaderBlock
from tests.support.stores import file_of
from tests.support.subject_stream import BLOCK, append, changes_of, fill, there
from tests.support.ticked_store import Bench, configure


def test_the_oldest_of_a_subject_go_in_the_same_turn(stream: Bench) -> None:
    configure(stream, max_messages_per_subject=2)
    stream.tick(*(append(name) for name in "ababaaac"))
    assert there(stream) == ["b", "b", "a", "a", "c"]
    assert changes_of(stream)[-1] == [CHANGE_DELETE_MESSAGES, [1, 3, 5], REASON_LIMIT]
    configure(stream, max_messages_per_subject=1)
    assert there(stream) == ["b", "a", "c"]
    stream.tick([frames.APPEND, b"none"], [frames.APPEND, b"none"])
    assert there(stream) == ["b", "a", "c", None, None]


@pytest.mark.parametrize("limit", [1, 3])
def test_keys_that_are_set_again_keep_their_last_messages_however_far_the_file_is(
    stream: Bench, limit: int
) -> None:
    configure(stream, max_messages_per_subject=limit)
    chance = random.Random(limit)
    expected: dict[str, list[bytes]] = {}
    for turn in range(120):
        group = []
        for number in range(chance.choice((1, 2, 5))):
            key = f"k{chance.randrange(4)}"
            value = b"%d.%d" % (turn, number) + b"-" * chance.randrange(9)
            group.append(append(key, value))
            expected[key] = [*expected.get(key, []), value][-limit:]
        if chance.random() < 0.1:
            # What a tick that failed has done is taken back.
            stream.tick(append("k0", b"lost"), append("k1", b"lost"), commit=False)
        stream.tick(*group)
        if chance.random() < 0.3:
            stream.materialise()
        if chance.random() < 0.05:
            assert stream.do(frames.PURGE, "k2")[0] == len(expected.pop("k2", []))
        if chance.random() < 0.05:
            stream.reopen()
        counts = {key: stream.store.contents.subjects.count(key) for key in expected}
        assert counts == {key: len(values) for key, values in expected.items()}
    found: dict[str, list[bytes]] = {}
    for row in stream.read(frames.GET_MESSAGES)[0]:
        found.setdefault(row[5], []).append(row[3])
    assert found == expected
    before = stream.store.bytes
    stream.reopen()
    # The file has counted for itself.
    assert stream.store.bytes == before


def test_a_key_that_is_set_again_and_again_is_evicted_without_a_look_at_the_file(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(stream, max_messages_per_subject=1)

    def set_all(value: bytes) -> None:
        stream.tick(*(append(f"k{number}", value) for number in range(5)))

    set_all(b"1")
    set_all(b"22")
    stream.materialise()
    file = file_of(stream.store)

    def no_look(*_: object) -> None:
        raise AssertionError("this takes as long as the rest of the write")

    with monkeypatch.context() as patched:
        patched.setattr(type(file.subjects), "first_seqs", no_look)
        patched.setattr(type(file), "bytes_of", no_look)
        for size in range(3, 9):
            set_all(b"v" * size)
            stream.store.materialise(stream.number)
            stream.store.checkpointed()
    before = stream.store.bytes
    stream.reopen()
    assert (stream.store.count, stream.store.bytes) == (5, before)


@pytest.mark.parametrize("how", ["replace", "delete", "purge", "trim", "fail"])
def test_a_first_message_that_has_changed_meanwhile_is_not_taken_for_what_it_was(
    stream: Bench, how: str
) -> None:
    configure(stream, max_messages_per_subject=1)
    for value in (b"1", b"22", b"333"):
        stream.tick(append("k", value), append("other", value))
    seq = stream.store.contents.subjects.last_seq("k")
    if how == "replace":
        stream.do(frames.SET_MESSAGE, seq, b"longer than it was")
    elif how == "delete":
        stream.do(frames.DELETE_MESSAGES, [seq])
    elif how == "purge":
        stream.do(frames.PURGE, "k")
    elif how == "trim":
        stream.do(frames.TRIM, seq)
    else:
        stream.tick(append("k", b"lost"), append("k", b"lost too"), commit=False)
    stream.tick(append("k", b"4444"), append("other", b"4444"))
    assert sorted(there(stream)) == ["k", "other"]
    before = stream.store.bytes
    stream.reopen()
    assert stream.store.bytes == before


def test_a_new_limit_looks_through_all_subjects_some_at_a_time(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream, *(f"s{number % 10}" for number in range(40)))
    stream.materialise()
    monkeypatch.setattr(subject_limits, "_LOOKED_THROUGH", 3)
    monkeypatch.setattr(subject_limits, "MAX_EVICTED_ROWS", 5)
    configure(stream, max_messages_per_subject=2)
    removed = []
    for _ in range(20):
        before = stream.store.count
        is_done = eviction.expire(stream.store, stream.time)
        stream.commit()
        removed.append(before - stream.store.count)
        if is_done:
            break
    assert sorted(there(stream)) == sorted(f"s{number % 10}" for number in range(20))
    assert max(removed) == 5


def test_what_an_owner_left_undone_is_done_by_the_next(
    stream: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stream, *"aaabbb")
    monkeypatch.setattr(subject_limits, "MAX_EVICTED_ROWS", 1)
    configure(stream, max_messages_per_subject=1)
    assert stream.store.count == 5
    stream.fail_over()
    monkeypatch.undo()
    stream.tick()
    assert there(stream) == ["a", "b"]
    stream.reopen()
    stream.tick([frames.APPEND, b"v"])
    assert there(stream) == ["a", "b", None]


def test_a_message_beyond_the_limit_of_its_subject_can_be_refused(stream: Bench) -> None:
    configure(stream, max_messages_per_subject=2, discard_new_per_subject=True)
    fill(stream, "a", "a", "b")
    refused = stream.do(*append("a"))
    assert refused == [
        "limit_exceeded", {"what": "max_messages_per_subject", "limit": 2, "value": 3},
    ]  # fmt: skip
    batch = [append("b"), append("b")]
    assert stream.do(frames.BATCH, batch)[1]["what"] == "max_messages_per_subject"
    assert there(stream) == ["a", "a", "b"]
    assert stream.do(*append("a", rollup="sub"))[0] == 4
    assert there(stream) == ["b", "a"]


def test_the_limit_of_one_message_counts_value_and_headers_alone(stream: Bench) -> None:
    configure(stream, max_message_bytes=10 + len(BLOCK))
    assert stream.do(*append("a" * 500, bytes(10), headers=BLOCK))[0] == 1
    assert stream.do(*append("a", bytes(11), headers=BLOCK))[1]["value"] == 11 + len(BLOCK)


def test_a_subject_that_expires_leaves_a_marker_that_expires_too(stream: Bench) -> None:
    configure(stream, subject_marker_seconds=90)
    stream.do(*append("a", ttl_seconds=1))
    stream.do(*append("b", ttl_seconds=1))
    stream.do(*append("b"))
    stream.time += 2000
    stream.tick()
    assert changes_of(stream)[-2] == [CHANGE_TRIM, 2, REASON_TTL]
    change = changes_of(stream)[-1]
    assert change[:3] == [CHANGE_SET_MESSAGE, 4, b""]
    assert change[5:] == [stream.time + 90_000, "a"]
    assert dict(HeaderBlock(change[3])) == {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1m30s"}
    assert there(stream) == ["b", "a"]
    stream.reopen()
    stream.time += 90_000
    assert there(stream) == ["b"]


@pytest.mark.parametrize("lags", [True, False])
def test_what_says_that_its_subject_was_purged_needs_no_marker(stream: Bench, lags: bool) -> None:
    configure(stream, subject_marker_seconds=1, max_age_seconds=5)
    fill(stream, "a", "b", "c")
    purge = HeaderBlock.of({"KV-Operation": "PURGE"}).block
    stream.do(*append("a", b"", headers=purge, rollup="sub"))
    stream.do(*append("b", b"", headers={"KV-Operation": "PURGE"}))
    stream.do(*append("c", b"", headers=HeaderBlock.of({"KV-Operation": "DEL"}).block))
    stream.do(*append("d", never_expires=True))
    if not lags:
        stream.materialise()
    stream.time += 5000
    stream.tick()
    assert there(stream) == ["d", "c"]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (1, "1ms"), (999, "999ms"), (1000, "1s"), (1500, "1.5s"), (60_000, "1m0s"),
        (61_250, "1m1.25s"), (3_600_000, "1h0m0s"), (90_061_001, "25h1m1.001s"),
    ],
)  # fmt: skip
def test_times_are_written_as_go_writes_them(milliseconds: int, text: str) -> None:
    assert subject_limits._go_duration(milliseconds) == text


def test_a_message_that_never_expires_outlives_the_maximum_age(stream: Bench) -> None:
    configure(stream, max_age_seconds=1)
    stream.do(*append("a", never_expires=True))
    fill(stream, "b")
    assert changes_of(stream)[-2][5] == NEVER_EXPIRES
    stream.time += 10_000
    assert there(stream) == ["a"]
    stream.reopen()
    stream.time += 10_000
    assert there(stream) == ["a"]


def test_operations_that_look_at_other_messages_see_no_expired_ones(stream: Bench) -> None:
    plain, looking = append("a"), append("a", expected_last_subject_seq=0)
    assert not operations.sees_expired(stream.store, [looking])
    fill(stream, "a")
    assert operations.sees_expired(stream.store, [plain[:7], looking])
    assert not operations.sees_expired(stream.store, [[frames.APPEND, b"v"], plain[:8]])
    for number in (frames.PURGE, frames.BATCH):
        assert operations.sees_expired(stream.store, [[number]])
