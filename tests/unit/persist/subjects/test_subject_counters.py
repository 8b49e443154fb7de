"""Counters: messages that add to the last one of their subject."""

from __future__ import annotations

import json

import pytest

from holdfast.protocol import frames
from holdfast.protocol.limits import (
    MAX_COUNTER_DIGITS,
)
from tests.support.subject_stream import BLOCK, append
from tests.support.ticked_store import Bench


def test_a_counter_adds_to_the_last_message_of_its_subject(stream: Bench) -> None:
    assert stream.do(*append("n", b"", incr="5")) == [1, 1, None, False, "5"]
    stream.reopen()
    results = stream.tick(append("n", b"", incr="-7"), append("m", b"", incr=f"+{10**40}"))
    assert [each[4] for each in results] == ["-2", str(10**40)]
    assert stream.do(*append("n", b"", incr="+0", headers=BLOCK))[4] == "-2"
    assert [json.loads(row[3]) for row in stream.read(frames.GET_MESSAGES)[0]] == [
        {"val": "5"}, {"val": "-2"}, {"val": str(10**40)}, {"val": "-2"},
    ]  # fmt: skip
    stream.do(frames.DELETE_MESSAGES, [4])
    assert stream.do(*append("n", b"", incr="1"))[4] == "-1"
    stream.do(frames.PURGE, "n")
    assert stream.do(*append("n", b"", incr="1"))[4] == "1"


def test_a_counter_that_is_repeated_says_its_first_total(stream: Bench) -> None:
    first = stream.do(*append("n", b"", incr="5", msg_id="x"))
    stream.do(*append("n", b"", incr="5"))
    assert stream.do(*append("n", b"", incr="5", msg_id="x")) == [1, 1, 1000, True, "5"]
    assert first == [1, 1, None, False, "5"]
    stream.do(frames.DELETE_MESSAGES, [1])
    assert stream.do(*append("n", b"", incr="5", msg_id="x")) == [1, 1, 1000, True, None]


@pytest.mark.parametrize("value", [b"", b"v", b"[]", b'{"val":5}', b'{"val":"x"}', b"[" * 9999])
def test_what_is_no_counter_is_not_counted(stream: Bench, value: bytes) -> None:
    stream.do(*append("n", value))
    assert stream.do(*append("n", b"", incr="1"))[0] == "invalid_argument"
    assert stream.store.count == 1


def test_a_counter_does_not_grow_without_bound(stream: Bench) -> None:
    nines = "9" * MAX_COUNTER_DIGITS
    assert stream.do(*append("n", b"", incr=nines))[4] == nines
    assert stream.do(*append("n", b"", incr="1"))[0] == "too_large"


def test_a_counter_adds_to_what_its_last_message_was_set_to(stream: Bench) -> None:
    stream.do(*append("n", b"", incr="5"))
    stream.do(frames.SET_MESSAGE, 1, b'{"val":"70"}')
    assert stream.do(*append("n", b"", incr="5"))[4] == "75"
    stream.do(frames.SET_MESSAGE, 2, b"v")
    assert stream.do(*append("n", b"", incr="5"))[0] == "invalid_argument"


def test_a_counter_forgets_what_was_taken_back(stream: Bench) -> None:
    stream.do(*append("n", b"", incr="1"))
    stream.tick(append("n", b"", incr="5"), commit=False)
    bad = [append("n", b"", incr="7"), append("n", b"", incr="x")]
    assert stream.do(frames.BATCH, bad)[0] == "invalid_argument"
    assert stream.do(*append("n", b"", incr="1"))[4] == "2"
