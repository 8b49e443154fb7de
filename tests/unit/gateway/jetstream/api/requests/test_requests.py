"""Bodies of requests, as nats-server 2.15.1 understands them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.headers import StatusError
from holdfast.gateway.jetstream.api.requests.consumer_requests import (
    ConsumerAction,
    CreateConsumer,
    ListConsumers,
    PauseConsumer,
    ResetConsumer,
    UnpinConsumer,
)
from holdfast.gateway.jetstream.api.requests.message_requests import GetMessage
from holdfast.gateway.jetstream.api.requests.pull_requests import PullRequest
from holdfast.gateway.jetstream.api.requests.stream_requests import (
    ConfigureStream,
    DeleteMessage,
    ListStreams,
    PurgeRequest,
    StreamInfoRequest,
    check_no_request,
)
from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb
from holdfast.gateway.jetstream.api.times import MILLISECOND, SECOND


def test_the_name_of_a_stream_is_in_the_subject_and_in_the_body() -> None:
    body = b'{"name":"S","subjects":["s.>"],"pedantic":true}'
    request = ConfigureStream.parse("S", body)
    assert (request.config.name, request.config.subjects, request.pedantic) == ("S", ("s.>",), True)
    for other in (body, b"", b"{}", b'{"name":"s"}'):
        with pytest.raises(ApiError) as caught:
            ConfigureStream.parse("T", other)
        assert caught.value.err_code == 10056


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b"", StreamInfoRequest()),
        (b"foo", StreamInfoRequest()),
        (b'{"subjects_filter":">","offset":7}', StreamInfoRequest(7, False, ">")),
        (b'{"deleted_details":true,"offset":-1}', StreamInfoRequest(0, True)),
    ],
)
def test_infos_of_streams(body: bytes, request_: StreamInfoRequest) -> None:
    assert StreamInfoRequest.parse(body) == request_


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b"", PurgeRequest()),
        (b"foo", PurgeRequest()),
        (b"{}", PurgeRequest()),
        (b'{"filter":"a.*","keep":1}', PurgeRequest(0, "a.*", 1)),
        (b'{"seq":7}', PurgeRequest(seq=7)),
    ],
)
def test_purges(body: bytes, request_: PurgeRequest) -> None:
    assert PurgeRequest.parse(body) == request_


def test_lists_have_an_offset_and_a_subject() -> None:
    assert ListStreams.parse(b'{"offset":3,"subject":"a"}') == ListStreams(3, "a")
    assert ListStreams.parse(b"foo") == ListStreams()
    assert ListConsumers.parse(b'{"offset":3}') == ListConsumers(3)
    assert ListConsumers.parse(b"") == ListConsumers()


def test_deletes_of_messages() -> None:
    assert DeleteMessage.parse(b'{"seq":7,"no_erase":true}') == DeleteMessage(7, True)
    assert DeleteMessage.parse(b'{"no_erase":true}') == DeleteMessage(0, True)


_CREATE = ApiCall(ApiVerb.CONSUMER_CREATE, "S")
_NAMED = ApiCall(ApiVerb.CONSUMER_CREATE, "S", "C")
_FILTERED = ApiCall(ApiVerb.CONSUMER_CREATE, "S", "C", "s.a")
_DURABLE = ApiCall(ApiVerb.CONSUMER_DURABLE_CREATE, "S", "C")


def _creation(config: dict[str, Any] | None = None, **fields: Any) -> bytes:
    return json.dumps({"stream_name": "S", "config": config} | fields).encode()


@pytest.mark.parametrize(
    ("call", "body", "config"),
    [
        (_CREATE, _creation(), ApiConsumerConfig()),
        (_CREATE, _creation({"name": "n"}), ApiConsumerConfig(name="n")),
        (_NAMED, _creation({}), ApiConsumerConfig(name="C")),
        (_NAMED, _creation({"name": "other"}), ApiConsumerConfig(name="C")),
        (
            _NAMED,
            _creation({"durable_name": "C", "name": "other"}),
            ApiConsumerConfig(name="C", durable_name="C"),
        ),
        (_DURABLE, _creation({"durable_name": "C"}), ApiConsumerConfig(name="C", durable_name="C")),
        (
            _FILTERED,
            _creation({"filter_subject": "s.a"}),
            ApiConsumerConfig(name="C", filter_subject="s.a"),
        ),
    ],
)
def test_consumers_have_the_name_of_the_subject(
    call: ApiCall, body: bytes, config: ApiConsumerConfig
) -> None:
    request = CreateConsumer.parse(call, body)
    assert request == CreateConsumer(config)
    assert request.name == config.name


def test_an_action_and_pedantry_are_told() -> None:
    request = CreateConsumer.parse(_NAMED, _creation({}, action="create", pedantic=True))
    assert (request.action, request.pedantic) == (ConsumerAction.CREATE, True)


@pytest.mark.parametrize(
    ("call", "body", "err_code"),
    [
        (_CREATE, b"", 10056),
        (_CREATE, b"{}", 10056),
        (_CREATE, _creation({}, stream_name="T"), 10056),
        (_CREATE, _creation({"durable_name": "d"}), 10020),
        (_CREATE, _creation({"name": "a/b"}), 10127),
        (ApiCall(ApiVerb.CONSUMER_CREATE, "S", "a\\b"), _creation({}), 10127),
        (_NAMED, _creation({"durable_name": "D"}), 10017),
        (_DURABLE, _creation({}), 10018),
        (_DURABLE, _creation({"durable_name": "D"}), 10017),
        (_FILTERED, _creation({"filter_subject": "s.b"}), 10131),
        (_FILTERED, _creation({}), 10131),
        (_FILTERED, _creation({"filter_subjects": ["s.a"]}), 10137),
        (_NAMED, _creation({}, action="foo"), 10025),
        (_NAMED, _creation({}, more=1), 10025),
        (_NAMED, _creation({"more": 1}), 10025),
        (_NAMED, b'{"stream_name":"S","config":[]}', 10025),
    ],
)
def test_what_does_not_agree_with_the_subject_is_refused(
    call: ApiCall, body: bytes, err_code: int
) -> None:
    with pytest.raises(ApiError) as caught:
        CreateConsumer.parse(call, body)
    assert caught.value.err_code == err_code


def test_pauses_end_at_a_time_or_resume() -> None:
    until = PauseConsumer.parse(b'{"pause_until":"1970-01-01T00:00:05Z"}')
    assert until == PauseConsumer(5 * SECOND)
    for body in (b"", b"foo", b"{}", b'{"pause_until":"0001-01-01T00:00:00Z"}'):
        assert PauseConsumer.parse(body) == PauseConsumer(None)


def test_resets_go_to_a_seq_or_to_the_floor() -> None:
    assert ResetConsumer.parse(b'{"seq":5,"more":1}') == ResetConsumer(5)
    assert ResetConsumer.parse(b"") == ResetConsumer(0)


def test_a_group_that_the_consumer_does_not_have_cannot_be_unpinned() -> None:
    request = UnpinConsumer.parse(b'{"group":"a"}')
    request.check(ApiConsumerConfig(priority_groups=("b", "a")))
    with pytest.raises(ApiError) as caught:
        request.check(ApiConsumerConfig(priority_groups=("b",)))
    assert caught.value.err_code == 10160


@pytest.mark.parametrize(
    ("parse", "body", "err_code"),
    [
        *((StreamInfoRequest.parse, body, 10025) for body in (b"[", b"[]", b'{"x":1}')),
        *((ListStreams.parse, body, 10025) for body in (b"{", b'{"offset":"1"}', b'{"x":1}')),
        (ListConsumers.parse, b'{"subject":"x"}', 10025),
        (PurgeRequest.parse, b'{"seq":1,"keep":1}', 10003),
        (PurgeRequest.parse, b'{"seq":-1}', 10025),
        (PurgeRequest.parse, b'{"x":1}', 10025),
        *((DeleteMessage.parse, body, 10003) for body in (b"", b"{}")),
        (DeleteMessage.parse, b"foo", 10025),
        (PauseConsumer.parse, b'{"pause_until":"x"}', 10025),
        *((UnpinConsumer.parse, body, 10025) for body in (b"", b"{}", b'{"group":1}')),
        (UnpinConsumer.parse, b'{"group":"a b"}', 10162),
        *((ResetConsumer.parse, body, 10025) for body in (b"foo", b'{"seq":-1}', b"[]")),
        *((check_no_request, body, 10038) for body in (b"foo", b'{"x":1}', b"[]", b"{")),
        *((GetMessage.parse, body, 10003) for body in (b"", b"{}", b'{"seq":0}')),
        (GetMessage.parse, b'{"seq":1,"last_by_subj":"a"}', 10003),
        (GetMessage.parse, b'{"last_by_subj":"a","next_by_subj":"a"}', 10003),
        (GetMessage.parse, b'{"seq":1,"start_time":"2020-01-01T00:00:00Z"}', 10003),
        (GetMessage.parse, b'{"multi_last":["a"]}', 10003),
        (GetMessage.parse, b'{"seq":1,"batch":1}', 10003),
        (GetMessage.parse, b'{"seq":1,"max_bytes":1}', 10003),
        (GetMessage.parse, b'{"seq":1,"x":1}', 10025),
        (GetMessage.parse, b"foo", 10025),
    ],
)
def test_bad_bodies_are_refused(
    parse: Callable[[bytes], object], body: bytes, err_code: int
) -> None:
    with pytest.raises(ApiError) as caught:
        parse(body)
    assert caught.value.err_code == err_code


def test_verbs_without_a_request_take_nothing() -> None:
    for body in (b"", b"{}", b" {} "):
        check_no_request(body)


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b'{"seq":5,"no_hdr":true}', GetMessage(seq=5, no_hdr=True)),
        (b'{"last_by_subj":"a.*"}', GetMessage(last_by_subj="a.*")),
        (b'{"next_by_subj":"a","seq":3}', GetMessage(next_by_subj="a", seq=3)),
        (b'{"next_by_subj":"a"}', GetMessage(next_by_subj="a")),
        (b'{"start_time":"1970-01-01T00:00:01Z"}', GetMessage(start_time=SECOND)),
    ],
)
def test_messages_are_got_by_seq_subject_or_time(body: bytes, request_: GetMessage) -> None:
    assert GetMessage.parse(body) == request_
    assert GetMessage.parse_direct(body) == request_
    assert not request_.is_batch


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b'{"seq":1,"batch":5,"max_bytes":9,"x":1}', GetMessage(seq=1, batch=5, max_bytes=9)),
        (b'{"multi_last":["a","b"],"up_to_seq":9}', GetMessage(multi_last=("a", "b"), up_to_seq=9)),
        (
            b'{"multi_last":["a"],"seq":3,"up_to_time":"1970-01-01T00:00:01Z","batch":2}',
            GetMessage(multi_last=("a",), seq=3, up_to_time=SECOND, batch=2),
        ),
    ],
)
def test_direct_gets_have_batches(body: bytes, request_: GetMessage) -> None:
    assert GetMessage.parse_direct(body) == request_
    assert request_.is_batch


@pytest.mark.parametrize(
    ("body", "description"),
    [
        (b"", "Empty Request"),
        (b"{}", "Empty Request"),
        (b'{"x":1}', "Empty Request"),
        (b'{"batch":5}', "Empty Request"),
        (b"foo", "Malformed Request"),
        (b"[]", "Malformed Request"),
        (b'{"seq":"1"}', "Malformed Request"),
        (b'{"a":' * 100_000, "Malformed Request"),
        (b'{"seq":5,"last_by_subj":"a"}', "Bad Request"),
        (b'{"seq":5,"start_time":"2020-01-01T00:00:00Z"}', "Bad Request"),
        (b'{"last_by_subj":"a","batch":5}', "Bad Request"),
        (b'{"last_by_subj":"a","multi_last":["a"]}', "Bad Request"),
        (b'{"next_by_subj":"a","multi_last":["a"]}', "Bad Request"),
        (
            b'{"multi_last":["a"],"up_to_seq":1,"up_to_time":"2020-01-01T00:00:00Z"}',
            "Bad Request",
        ),
    ],
)
def test_bad_direct_gets_are_a_status(body: bytes, description: str) -> None:
    with pytest.raises(StatusError) as caught:
        GetMessage.parse_direct(body)
    assert caught.value.block == f"NATS/1.0 408 {description}\r\n\r\n".encode()


def test_the_last_of_a_subject_is_got_by_the_subject_alone() -> None:
    assert GetMessage.parse_direct_last("a", b"") == GetMessage(last_by_subj="a")
    no_headers = GetMessage.parse_direct_last("a", b'{"no_hdr":true}')
    assert no_headers == GetMessage(last_by_subj="a", no_hdr=True)
    for body, description in [(b'{"seq":1}', "Bad Request"), (b"foo", "Malformed Request")]:
        with pytest.raises(StatusError, match=description):
            GetMessage.parse_direct_last("a", body)


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b"", PullRequest()),
        (b" ", PullRequest()),
        (b"5", PullRequest(batch=5)),
        (b" 5 ", PullRequest(batch=5)),
        (b"0", PullRequest()),
        (b"-1", PullRequest()),
        (b"foo", PullRequest()),
        (b"[", PullRequest()),
        (b"9" * 5000, PullRequest()),
        ("٢".encode(), PullRequest()),
        (b"{}", PullRequest()),
        (b'{"batch":0}', PullRequest()),
        (b'{"batch":-3,"idle_heartbeat":-1}', PullRequest()),
        (
            b'{"batch":7,"expires":5000000000,"no_wait":true,"max_bytes":9,"more":1}',
            PullRequest(batch=7, expires=5 * SECOND, no_wait=True, max_bytes=9),
        ),
        (
            b'{"expires":200000000,"idle_heartbeat":100000000}',
            PullRequest(expires=200 * MILLISECOND, idle_heartbeat=100 * MILLISECOND),
        ),
        (
            b'{"group":"g","id":"p","min_pending":5,"min_ack_pending":6,"priority":7}',
            PullRequest(group="g", id="p", min_pending=5, min_ack_pending=6, priority=7),
        ),
    ],
)
def test_pull_requests(body: bytes, request_: PullRequest) -> None:
    assert PullRequest.parse(body) == request_
    assert PullRequest.parse(body + b" " * 300) == request_


def test_durations_of_pull_requests_are_rounded_up_to_milliseconds() -> None:
    request = PullRequest(expires=1, idle_heartbeat=1_000_001)
    assert (request.expires_ms, request.idle_heartbeat_ms) == (1, 2)
    assert PullRequest().expires_ms == 0
    assert PullRequest(expires=-5 * MILLISECOND).expires_ms == -5


@pytest.mark.parametrize(
    ("body", "start"),
    [
        (b'{"expires":"x"}', "Bad Request - json: cannot unmarshal string"),
        (b"{", "Bad Request - "),
        (b'{"a":' * 100_000, "Bad Request - exceeded max depth"),
        (
            b'{"expires":100000000,"idle_heartbeat":60000000}',
            "Bad Request - heartbeat value too large",
        ),
        (b'{"idle_heartbeat":1}', "Bad Request - heartbeat value too large"),
    ],
)
def test_bad_pull_requests_are_a_status(body: bytes, start: str) -> None:
    with pytest.raises(StatusError) as caught:
        PullRequest.parse(body)
    assert caught.value.code == 400
    assert caught.value.description.startswith(start)


_PULL: dict[str, Any] = {"max_batch": 5, "max_expires": 60 * SECOND, "max_bytes": 100}


def _grouped(policy: str) -> dict[str, Any]:
    return {"priority_policy": policy, "priority_groups": ["g"]}


@pytest.mark.parametrize(
    ("config", "asked", "status"),
    [
        ({"deliver_subject": "d"}, {}, "409 Consumer is push based"),
        (_PULL, {"batch": 6}, "409 Exceeded MaxRequestBatch of 5"),
        (_PULL, {"expires": 61 * SECOND}, "409 Exceeded MaxRequestExpires of 1m0s"),
        (_PULL, {"max_bytes": 101}, "409 Exceeded MaxRequestMaxBytes of 100"),
        (_PULL, {"batch": 5, "expires": 60 * SECOND, "max_bytes": 100}, None),
        ({}, {"min_pending": 1}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({}, {"min_ack_pending": 1}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({}, {"id": "x"}, "400 Bad Request - Not a Pinned Client Priority consumer"),
        ({}, {"priority": 10}, "400 Bad Request - Priority must be between 0 and 9"),
        ({}, {"priority": -1}, "400 Bad Request - Priority must be between 0 and 9"),
        ({}, {"group": "g"}, None),
        (_grouped("overflow"), {}, "400 Bad Request - Priority Group missing"),
        (_grouped("overflow"), {"group": "h"}, "400 Bad Request - Invalid Priority Group"),
        (_grouped("overflow"), {"group": "g", "min_pending": 1}, None),
        (_grouped("pinned_client"), {"group": "g", "id": "x"}, None),
        (_grouped("prioritized"), {"group": "g", "priority": 9}, None),
    ],
)
def test_a_consumer_allows_some_pull_requests(
    config: dict[str, Any], asked: dict[str, Any], status: str | None
) -> None:
    request, allowing = PullRequest(**asked), ApiConsumerConfig.parse(config)
    if status is None:
        request.check(allowing)
        return
    with pytest.raises(StatusError) as caught:
        request.check(allowing)
    assert str(caught.value) == status


_PARSERS: list[Callable[[bytes], object]] = [
    *(StreamInfoRequest.parse, ListStreams.parse, PurgeRequest.parse, DeleteMessage.parse),
    *(ListConsumers.parse, PauseConsumer.parse, UnpinConsumer.parse, ResetConsumer.parse),
    *(GetMessage.parse, GetMessage.parse_direct, PullRequest.parse, check_no_request),
    lambda body: ConfigureStream.parse("S", body),
    lambda body: CreateConsumer.parse(_FILTERED, body),
    lambda body: GetMessage.parse_direct_last("a", body),
]
_VALUES = st.sampled_from(["0", "-1", "1e9", '"a"', "[]", "{}", "null", "true", '["a"]', "1" * 30])
_FIELDS = st.sampled_from(
    [
        *("seq", "filter", "keep", "offset", "subject", "group", "batch", "expires", "name"),
        *("config", "pause_until", "multi_last", "stream_name", "no_wait", "start_time", "x"),
    ]
)


@given(st.dictionaries(_FIELDS, _VALUES, max_size=4), st.binary(max_size=12))
def test_any_body_is_understood_or_refused(fields: dict[str, str], noise: bytes) -> None:
    inside = ",".join(f'"{name}":{value}' for name, value in fields.items())
    for body in (f"{{{inside}}}".encode(), noise, b"{" + noise):
        for parse in _PARSERS:
            try:
                parse(body)
            except (ApiError, StatusError):
                continue
