"""The pure parts of durable streams: bodies, offsets, producers, requests, names, lifetimes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.http.durable.bodies import data_event, elements_of, joined, messages_of
from holdfast.gateway.http.durable.durable_stream import DurableStream
from holdfast.gateway.http.durable.known_stream import KnownStream, Told
from holdfast.gateway.http.durable.lifetimes import LastUse
from holdfast.gateway.http.durable.offsets import (
    OffsetWord,
    next_cursor,
    offset_text,
    parse_offset,
)
from holdfast.gateway.http.durable.producers import (
    Producer,
    ProducerVerdict,
    Producing,
    judge,
)
from holdfast.gateway.http.durable.requests import append_request, create_request, read_request
from holdfast.gateway.http.durable.stream_names import store_of, store_of_url_path
from holdfast.gateway.http.durable.stream_record import DurableState, ForkRow, StreamConfig
from holdfast.gateway.http.problems import ProblemError

_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def stream(content_type: str = "text/plain", **config: int) -> KnownStream:
    """A stream with the marker that opened it, and nothing else."""
    made = StreamConfig("id", content_type, 1000, 1, **config)
    return KnownStream(made, DurableState(7), 7, 1, {}, {})


@given(st.lists(_JSON, min_size=1), st.sampled_from(["", " ", "\r\n\t"]))
def test_elements_of_an_array_are_cut_out_byte_for_byte(values: list[object], gap: str) -> None:
    written = [json.dumps(value, ensure_ascii=False) for value in values]
    body = f"{gap}[{gap}{f'{gap},{gap}'.join(written)}{gap}]{gap}".encode()
    elements = elements_of(body)
    assert elements == [each.encode() for each in written]
    assert json.loads(joined(elements, "application/json")) == values


def test_numbers_keep_their_digits_and_objects_their_order() -> None:
    body = b'[1.10, 12345678901234567890123, {"b":1,"a":1e400}]'
    assert elements_of(body) == [b"1.10", b"12345678901234567890123", b'{"b":1,"a":1e400}']


@pytest.mark.parametrize(
    "body",
    [
        *(b"[", b"]", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1]2", b"1 2", b" ", b"nul"),
        *(b"[NaN]", b"Infinity", b"-Infinity", b"'a'", b'"\xff"', b"\xef\xbb\xbf1", b'"a'),
        *(b"[" * 200_000, b'{"a":' * 100_000, b"[1]]", b"\x00", b"[1]\x00", b'"a\nb"'),
        b"1" * 10_000,
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        elements_of(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_bytes_are_one_message_and_an_empty_array_is_none() -> None:
    assert messages_of(b"[1,2]", "application/octet-stream") == [b"[1,2]"]
    assert messages_of(b"[1,2]", "Application/JSON; charset=utf-8") == [b"1", b"2"]
    assert messages_of(b" [ ] ", "application/json") == []


@given(st.binary())
def test_no_content_can_pass_for_another_field_or_event(content: bytes) -> None:
    event = data_event([content], "text/plain")
    assert event.endswith(b"\n\n") and b"\r" not in event and b"\n\n" not in event[:-2]
    lines = event[:-2].split(b"\n")
    assert lines[0] == b"event: data" and all(each.startswith(b"data:") for each in lines[1:])


@given(st.integers(0, 10**16 - 1), st.integers(0, 10**16 - 1))
def test_offsets_sort_as_their_seqs_do(one: int, other: int) -> None:
    assert parse_offset(offset_text(one)) == one
    assert (offset_text(one) < offset_text(other)) == (one < other)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-2", "NOW", "0,0", "0 0", "0000000000000000_1", "1" * 16 + "_" + "0" * 16, "٣" * 16],
)
def test_offsets_of_others_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="invalid_offset"):
        parse_offset(text)
    assert parse_offset("-1") is OffsetWord.BEGINNING and parse_offset("now") is OffsetWord.END


def test_a_cursor_never_comes_twice_to_one_reader() -> None:
    now_ms, given_cursor = 1_800_000_000_000, None
    seen = set()
    for _ in range(20):
        given_cursor = next_cursor(given_cursor, now_ms)
        assert given_cursor not in seen
        seen.add(given_cursor)
    for hostile in ("-1", "x", "9" * 19, "\u0663"):
        assert next_cursor(hostile, now_ms) == next_cursor(None, now_ms)


@pytest.mark.parametrize(
    ("known", "epoch", "seq", "expected"),
    [
        (None, 0, 0, ProducerVerdict.NEW),
        (None, 5, 0, ProducerVerdict.NEW),
        (None, 0, 1, (409, "producer_gap")),
        (Producer(1, 3), 1, 4, ProducerVerdict.NEW),
        (Producer(1, 3), 1, 3, ProducerVerdict.REPEATED),
        (Producer(1, 3), 1, 0, ProducerVerdict.REPEATED),
        (Producer(1, 3), 1, 5, (409, "producer_gap")),
        (Producer(1, 3), 0, 4, (403, "stale_epoch")),
        (Producer(1, 3), 2, 0, ProducerVerdict.NEW),
        (Producer(1, 3), 2, 4, (400, "invalid_producer")),
    ],
)
def test_producers(known: Producer | None, epoch: int, seq: int, expected: object) -> None:
    try:
        found: object = judge(known, Producing("p", epoch, seq))
    except ProblemError as error:
        found = (error.status, error.code)
    assert found == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"stream-ttl": "-1"},
        {"stream-ttl": "1.5"},
        {"stream-ttl": "01"},
        {"stream-ttl": "1e3"},
        {"stream-ttl": "٣"},
        {"stream-ttl": "9" * 15},
        {"stream-ttl": "1", "stream-expires-at": "2030-01-01T00:00:00Z"},
        {"stream-expires-at": "tomorrow"},
        {"stream-expires-at": "2030-13-01T00:00:00Z"},
        {"stream-expires-at": "2030-01-01"},
        {"content-type": "text"},
        {"content-type": "text/plain; a=\x01"},
        {"stream-fork-offset": "-1"},
        {"stream-forked-from": "/v1/stream/a", "stream-fork-sub-offset": "1"},
    ],
)
def test_creations_that_are_wrong_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ProblemError) as caught:
        create_request(headers)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"producer-id": "p"},
        {"producer-id": "p", "producer-epoch": "0"},
        {"producer-id": " ", "producer-epoch": "0", "producer-seq": "0"},
        {"producer-id": "p" * 600, "producer-epoch": "0", "producer-seq": "0"},
        {"producer-id": "p", "producer-epoch": "-1", "producer-seq": "0"},
        {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(1 << 53)},
        {"stream-seq": ""},
        {"stream-seq": "a" * 2000},
    ],
)
def test_appends_that_are_wrong_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ProblemError) as caught:
        append_request(headers)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "parameters",
    [
        [("offset", "-1"), ("offset", "-1")],
        [("live", "sse")],
        [("offset", "-1"), ("live", "sometimes")],
        [("offset", "")],
    ],
)
def test_reads_that_are_wrong_are_refused(parameters: list[tuple[str, str]]) -> None:
    with pytest.raises(ProblemError) as caught:
        read_request(parameters, {})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"a/", b"/a", b"a//b", b".", b"..", b"a/../b", b"a/%2e%2e/b", b"%2E", b"a/./b"),
        *(b"%", b"%g0", b"a%2", b"%ff", b"a%c3", b"\xff", b"a%00b", b"a%0d%0ab", b"a%0a", b"%7f"),
        b"a" * 5000,
    ],
)
def test_paths_that_name_no_stream_are_refused(path: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        store_of(path)
    assert caught.value.status in (400, 404)


def test_no_two_paths_share_a_store() -> None:
    paths = (b"a/b", b"a%2Fb", b"a.b", b"a%252Fb", b"a", b"A", b"ds", b"a*", b"a%3E", b"%C3%A4")
    stores = {store_of(path) for path in paths}
    assert len(stores) == len(paths) and all(each.startswith("ds.") for each in stores)
    assert store_of(b"%61/b") == store_of(b"a/b") == store_of_url_path("/v1/stream/a/b") == "ds.a.b"
    with pytest.raises(ProblemError, match="not_implemented"):
        store_of(b"__ds/x")
    with pytest.raises(ProblemError, match="404"):
        store_of_url_path("/v1/kv/a")


def test_a_stream_lives_as_long_as_it_is_used() -> None:
    config = stream(ttl_seconds=100).config
    use = LastUse(row=1)
    assert not use.is_over(config, 100_999) and use.is_over(config, 101_000)
    assert use.to_record(config, 50_000) is not None
    assert use.to_record(config, 60_000) is None, "the last one is not a quarter of the ttl ago"
    assert not use.is_over(config, 159_999) and use.is_over(config, 160_000)


def test_a_stream_that_another_gateway_uses_never_ends_early() -> None:
    config = stream(ttl_seconds=100).config
    one, other = LastUse(row=1), LastUse(row=2)
    recorded = one.to_record(config, 50_000)
    assert recorded is not None
    one.to_record(config, 74_999)
    other.heard(recorded.rows)
    assert not other.is_over(config, 174_998)
    assert other.is_over(config, 175_000)
    later = other.to_record(config, 400_000)
    assert later is not None and later.removed == [1], "the row of a gateway that is gone"


def test_a_time_of_expiry_counts_whatever_is_used() -> None:
    config = stream(expires_at_ms=5000).config
    use = LastUse(row=1)
    assert use.to_record(config, 4999) is None
    assert not use.is_over(config, 4999) and use.is_over(config, 5000)


def test_a_plan_counts_on_those_before_it() -> None:
    known = stream()
    headers = {"content-type": "text/plain", "producer-id": "p", "producer-epoch": "0"}
    first = known.plan(append_request({**headers, "producer-seq": "0"}), b"a")
    assert first.answer.told is Told.STORED and first.answer.next_offset == offset_text(3)
    again = known.plan(append_request({**headers, "producer-seq": "0"}), b"a")
    assert again.answer.told is Told.REPEATED and not again.messages
    closing = known.plan(append_request({"stream-closed": "true"}), b"")
    assert closing.answer.closed and known.tail == offset_text(3)
    assert known.plan(append_request({"stream-closed": "true"}), b"").answer.told is (
        Told.ALREADY_CLOSED
    )
    with pytest.raises(ProblemError) as caught:
        known.plan(append_request({"content-type": "text/plain"}), b"late")
    assert caught.value.headers["Stream-Next-Offset"] == offset_text(3)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "text/plain"}, b"", 400),
        ({}, b"a", 400),
        ({"content-type": "text/html"}, b"a", 409),
    ],
)
def test_appends_that_do_not_fit_change_nothing(
    headers: dict[str, str], body: bytes, status: int
) -> None:
    known = stream()
    with pytest.raises(ProblemError) as caught:
        known.plan(append_request(headers), body)
    assert caught.value.status == status
    assert known.last_seq == 1 and known.state == DurableState(7)


def test_what_is_recorded_is_read_again() -> None:
    state = DurableState(3, True, 9, Producing("p", 1, 2), "s")
    assert DurableState.from_bytes(state.to_bytes()) == state
    row = ForkRow("id", "ds.a", 5)
    assert ForkRow.from_bytes(row.to_bytes()) == row


async def test_a_writer_asks_for_producers_only_once_it_has_the_head() -> None:
    """Rows of producers that are older than the last seq would let a retry pass for new."""
    asked: list[str] = []
    answered = asyncio.Event()

    class LateHead:
        async def head(self) -> str:
            asked.append("head")
            await answered.wait()
            return "the head"

        async def cursors(self, name: str | None) -> list[Any]:
            asked.append("cursors")
            return []

    store: Any = LateHead()

    async def finish(stream: Any, known: Any) -> None:
        raise AssertionError

    reading = asyncio.ensure_future(DurableStream(store, 1, finish).records())
    for _ in range(10):
        await asyncio.sleep(0)
    assert asked == ["head"]
    answered.set()
    assert await reading == ("the head", {})
    assert asked == ["head", "cursors"]
