"""Headers of published messages, as nats-server 2.15.1 answers them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import headers
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.publishing.lifetime import NEVER
from holdfast.gateway.jetstream.api.publishing.publish_headers import (
    BatchCommit,
    BatchPart,
    PublishChecks,
    PublishOptions,
    batch_part,
    commit_error,
    has_batch,
    unsupported_in_batch,
)
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.times import SECOND

NOW_MS = 1_795_309_323_456
PLAIN: dict[str, Any] = {}
TTL: dict[str, Any] = {
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": True,
    "subject_delete_marker_ttl": 5 * SECOND,
}
SCHEDULES: dict[str, Any] = {"allow_msg_schedules": True}
COUNTER: dict[str, Any] = {"allow_msg_counter": True}
ATOMIC: dict[str, Any] = {"allow_atomic": True}


def _config(settings: dict[str, Any]) -> ApiStreamConfig:
    return check_create(ApiStreamConfig.parse({"name": "P", "subjects": ["p.>"]} | settings))


def _checked(
    settings: dict[str, Any], fields: dict[str, str], payload: bytes = b"x", subject: str = "p.a"
) -> PublishOptions:
    return PublishChecks(_config(settings)).check(
        subject, headers.build(fields) if fields else b"", payload, NOW_MS
    )


@pytest.mark.parametrize(
    "block", [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nX: 1\r\nnats-msg-id: 7\r\n\r\n"]
)
def test_a_message_without_headers_of_jetstream_is_stored_as_it_is(block: bytes) -> None:
    options = PublishChecks(_config(PLAIN)).check("p.a", block, b"x", NOW_MS)
    assert options == PublishOptions(block)


def test_a_status_line_is_not_stored() -> None:
    checks = PublishChecks(_config(PLAIN))
    block = b"NATS/1.0 100 Idle\r\nNats-Msg-Id: 7\r\n\r\n"
    options = checks.check("p.a", block, b"x", NOW_MS)
    assert options == PublishOptions(b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n", "7")
    assert checks.check("p.a", b"NATS/1.0 503\r\n\r\n", b"x", NOW_MS) == PublishOptions()


@pytest.mark.parametrize(
    ("settings", "fields", "asked"),
    [
        (PLAIN, {"Nats-Msg-Id": "7"}, {"msg_id": "7"}),
        (PLAIN, {"Nats-Expected-Stream": "P"}, {}),
        (PLAIN, {"Nats-Expected-Last-Sequence": "5"}, {"expected_last_seq": 5}),
        (PLAIN, {"Nats-Expected-Last-Sequence": "0"}, {"expected_last_seq": 0}),
        (PLAIN, {"Nats-Expected-Last-Msg-Id": "6"}, {"expected_last_msg_id": "6"}),
        (PLAIN, {"Nats-Expected-Last-Subject-Sequence": "5"}, {"expected_last_subject_seq": 5}),
        (
            PLAIN,
            {
                "Nats-Expected-Last-Subject-Sequence": "0",
                "Nats-Expected-Last-Subject-Sequence-Subject": "p.*",
            },
            {"expected_last_subject_seq": 0, "expected_subject": "p.*"},
        ),
        # What is no number is expected nevertheless, and never met.
        *(
            (PLAIN, {"Nats-Expected-Last-Sequence": text}, {"expected_last_seq": (1 << 63) - 1})
            for text in ("abc", "-1", "1.5", "9" * 30)
        ),
        (
            PLAIN,
            {"Nats-Expected-Last-Subject-Sequence": "abc"},
            {"expected_last_subject_seq": (1 << 63) - 1},
        ),
        (PLAIN, {"Nats-TTL": "", "Nats-Incr": "", "Nats-Rollup": "", "Nats-Schedule": ""}, {}),
        (PLAIN, {"Nats-Required-Api-Level": "99", "Nats-Unknown": "1"}, {}),
        (TTL, {"Nats-Rollup": "SUB"}, {"rollup": "sub"}),
        (TTL, {"Nats-Rollup": "all"}, {"rollup": "all"}),
        (TTL, {"Nats-TTL": "7"}, {"ttl": 7}),
        (TTL, {"Nats-TTL": "1h30m"}, {"ttl": 5400}),
        (TTL, {"Nats-TTL": "never"}, {"ttl": NEVER}),
        (TTL, {"Nats-TTL": "00"}, {}),
        ({"allow_msg_ttl": True}, {"Nats-TTL": "1.9s"}, {"ttl": 1}),
        (TTL | {"max_msgs_per_subject": 1}, {"Nats-TTL": "2"}, {"ttl": 2}),
        (
            SCHEDULES,
            {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "p.s"},
            {"stopped_schedule": "p.s"},
        ),
    ],
)
def test_headers_are_what_a_message_asks_for(
    settings: dict[str, Any], fields: dict[str, str], asked: dict[str, Any]
) -> None:
    assert _checked(settings, fields) == PublishOptions(headers.build(fields), **asked)


def test_a_short_ttl_becomes_that_of_markers_in_the_headers_too() -> None:
    options = _checked(TTL, {"Nats-TTL": "2", "X": "1"})
    assert options.ttl == 5
    assert options.block == headers.build({"X": "1", "Nats-TTL": "5"})


@pytest.mark.parametrize("increment", ["1", "+5", "-3", "0", "9" * 128])
def test_an_increment_is_passed_on(increment: str) -> None:
    options = _checked(COUNTER, {"Nats-Incr": increment, "Nats-Msg-Id": "x"}, b"")
    assert (options.increment, options.msg_id) == (increment, "x")


def test_a_schedule_takes_the_place_of_an_earlier_one() -> None:
    fields = {"Nats-Schedule": "@every 5m", "Nats-Schedule-Target": "p.b"}
    options = _checked(SCHEDULES, fields)
    assert options.schedule is not None and options.schedule.target == "p.b"
    assert options.rollup == "sub"
    assert options.block == headers.build(fields | {"Nats-Rollup": "sub"})
    again = _checked(SCHEDULES, fields | {"Nats-Rollup": "sub"})
    assert (again.rollup, again.block) == ("sub", options.block)


@pytest.mark.parametrize(
    ("settings", "fields", "payload", "err_code"),
    [
        (PLAIN, {"Nats-Expected-Stream": "Q"}, b"x", 10060),
        (PLAIN, {"Nats-Expected-Last-Subject-Sequence-Subject": "p.b"}, b"x", 10193),
        (PLAIN, {"Nats-TTL": "5"}, b"x", 10166),
        (PLAIN, {"Nats-TTL": "never"}, b"x", 10166),
        (PLAIN, {"Nats-TTL": "abc"}, b"x", 10165),
        (PLAIN, {"Nats-TTL": "0"}, b"x", 10165),
        (PLAIN, {"Nats-TTL": "500ms"}, b"x", 10165),
        (PLAIN, {"Nats-Incr": "1"}, b"x", 10168),
        (PLAIN, {"Nats-Incr": "abc"}, b"x", 10171),
        (PLAIN, {"Nats-Rollup": "sub"}, b"x", 10111),
        (PLAIN, {"Nats-Schedule": "@hourly"}, b"x", 10188),
        (PLAIN, {"Nats-Schedule": "bad"}, b"x", 10188),
        (PLAIN, {"Nats-Schedule-Time-Zone": "bad"}, b"x", 10188),
        (PLAIN, {"Nats-Scheduler": "p.b"}, b"x", 10212),
        (PLAIN, {"Nats-Schedule-Next": "purge"}, b"x", 10212),
        (PLAIN, {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "p.c"}, b"x", 10188),
        (PLAIN, {"Nats-Stream-Source": "x"}, b"x", 10227),
        (PLAIN | {"max_msg_size": 20}, {"Nats-Msg-Id": "7"}, b"x", 10054),
        (PLAIN | {"max_msg_size": 20}, {}, b"x" * 21, 10054),
        (PLAIN, {"X": "y" * 65_536}, b"x", 10097),
        (PLAIN, {"Nats-X": "y" * 65_536}, b"x", 10097),
        (TTL, {"Nats-TTL": "0"}, b"x", 10165),
        (TTL, {"Nats-TTL": "-1"}, b"x", 10165),
        (TTL, {"Nats-TTL": "abc"}, b"x", 10165),
        (TTL, {"Nats-Rollup": "foo"}, b"x", 10111),
        (COUNTER, {}, b"", 10169),
        (COUNTER, {"Nats-Msg-Id": "x"}, b"", 10169),
        (COUNTER, {"Nats-Incr": "1"}, b"x", 10170),
        *(
            (COUNTER, {"Nats-Incr": text}, b"", 10171)
            for text in ("1.5", "1_0", "0x10", "+", "--1", "٢", "9" * 129)
        ),
        *(
            (COUNTER, {"Nats-Incr": "1", name: "1"}, b"", 10171)
            for name in (
                *("Nats-Rollup", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence"),
                *("Nats-Expected-Last-Msg-Id", "Nats-Expected-Last-Subject-Sequence"),
                "Nats-Expected-Last-Subject-Sequence-Subject",
            )
        ),
        (
            SCHEDULES,
            {"Nats-Schedule": "@hourly", "Nats-Schedule-Target": "p.b", "Nats-Rollup": "all"},
            b"x",
            10192,
        ),
        (SCHEDULES, {"Nats-Schedule": "@hourly"}, b"x", 10190),
    ],
)
def test_what_a_stream_does_not_allow_is_refused(
    settings: dict[str, Any], fields: dict[str, str], payload: bytes, err_code: int
) -> None:
    with pytest.raises(ApiError) as caught:
        _checked(settings, fields, payload)
    assert caught.value.err_code == err_code


def test_a_sealed_stream_takes_nothing() -> None:
    sealed = ApiStreamConfig(name="P", sealed=True, max_msg_size=-1)
    with pytest.raises(ApiError) as caught:
        PublishChecks(sealed).check("p.a", b"", b"", NOW_MS)
    assert caught.value.err_code == 10109


def test_a_value_that_is_refused_is_told_in_short() -> None:
    with pytest.raises(ApiError) as caught:
        _checked(TTL, {"Nats-Rollup": "x" * 60_000})
    assert len(caught.value.description) < 150


@pytest.mark.parametrize(
    ("fields", "part", "size"),
    [
        ({"Nats-Batch-Sequence": "1"}, BatchPart("b", 1), 1),
        (
            {"Nats-Batch-Sequence": "7", "Nats-Batch-Commit": "1"},
            BatchPart("b", 7, BatchCommit.WITH_MESSAGE),
            7,
        ),
        (
            {"Nats-Batch-Sequence": "7", "Nats-Batch-Commit": "eob"},
            BatchPart("b", 7, BatchCommit.WITHOUT_MESSAGE),
            6,
        ),
    ],
)
def test_a_message_has_a_place_in_its_batch(
    fields: dict[str, str], part: BatchPart, size: int
) -> None:
    block = headers.build({"Nats-Batch-Id": "b"} | fields)
    assert has_batch(block)
    assert batch_part(block, _config(ATOMIC)) == part
    assert part.size == size
    assert commit_error(block) is None


def test_a_message_without_a_batch_has_none() -> None:
    for fields in ({}, {"Nats-Batch-Id": "", "Nats-Batch-Sequence": "1"}):
        assert batch_part(headers.build(fields), _config(ATOMIC)) is None
        assert not has_batch(headers.build(fields))
    assert not has_batch(headers.build({"X": "1"}))


@pytest.mark.parametrize(
    ("settings", "fields", "err_code"),
    [
        (PLAIN, {"Nats-Batch-Id": "b"}, 10174),
        (ATOMIC, {"Nats-Batch-Id": "b"}, 10175),
        (ATOMIC, {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "x"}, 10175),
        (ATOMIC, {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "-1"}, 10175),
        (ATOMIC, {"Nats-Batch-Id": "b" * 65, "Nats-Batch-Sequence": "1"}, 10179),
    ],
)
def test_bad_batches_are_refused(
    settings: dict[str, Any], fields: dict[str, str], err_code: int
) -> None:
    with pytest.raises(ApiError) as caught:
        batch_part(headers.build(fields), _config(settings))
    assert caught.value.err_code == err_code


def test_what_ends_a_batch_or_cannot_be_in_one_is_told() -> None:
    error = commit_error(headers.build({"Nats-Batch-Commit": "foo"}))
    assert error is not None and error.err_code == 10200
    options = _checked(ATOMIC, {"Nats-Expected-Last-Msg-Id": "1"})
    error = unsupported_in_batch(options)
    assert error is not None
    assert str(error) == (
        "400/10177 atomic publish unsupported header used: Nats-Expected-Last-Msg-Id"
    )
    assert unsupported_in_batch(PublishOptions()) is None


_NAMES = st.sampled_from(
    [
        *("Msg-Id", "Expected-Stream", "Expected-Last-Sequence", "TTL", "Rollup", "Incr"),
        *("Expected-Last-Subject-Sequence", "Expected-Last-Subject-Sequence-Subject"),
        *("Schedule", "Schedule-Target", "Schedule-TTL", "Schedule-Time-Zone", "Scheduler"),
        *("Schedule-Next", "Batch-Id", "Batch-Sequence", "Batch-Commit", "Stream-Source"),
    ]
)
_VALUES = st.sampled_from(
    ["", "1", "-1", "sub", "P", "p.b", "@hourly", "@every 1s", "purge", "never", "\xff", "9" * 40]
)


@given(
    st.dictionaries(_NAMES, _VALUES, max_size=5),
    st.binary(max_size=20),
    st.sampled_from([PLAIN, TTL, SCHEDULES, COUNTER, ATOMIC]),
)
def test_any_block_is_understood_or_refused(
    fields: dict[str, str], noise: bytes, settings: dict[str, Any]
) -> None:
    config = _config(settings)
    checks = PublishChecks(config)
    block = headers.build({f"Nats-{name}": value for name, value in fields.items()})
    for each in (block, block[:-2] + noise, b"NATS/1.0\r\nNats-TTL:" + noise, noise):
        for payload in (b"", b"x"):
            with suppress(ApiError):
                assert isinstance(checks.check("p.a", each, payload, NOW_MS), PublishOptions)
            with suppress(ApiError):
                batch_part(each, config)
