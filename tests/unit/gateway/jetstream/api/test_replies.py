"""Replies have the fields that clients read, and no others."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import errors, replies, times
from holdfast.gateway.jetstream.api.checks.consumer_checks import complete
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.limits import AccountLimits
from holdfast.gateway.jetstream.api.replies import (
    AccountInfo,
    ApiConsumerInfo,
    ApiStreamInfo,
    ApiStreamState,
    PriorityGroupState,
    PubAcks,
    SequenceState,
)
from holdfast.gateway.jetstream.api.requests.verbs import ApiVerb
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig

CREATED_MS = 1_795_309_323_456
NOW_MS = CREATED_MS + 1000
CONFIG = check_create(ApiStreamConfig.parse({"name": "S", "subjects": ["s.>"]}))
STREAM = ApiStreamInfo(CONFIG, CREATED_MS, ApiStreamState())
CONSUMER = ApiConsumerInfo(
    "S", "c", CREATED_MS, complete(ApiConsumerConfig(name="c"), CONFIG), num_pending=6
)
ZERO = "0001-01-01T00:00:00Z"
PAGE = {"total": 0, "offset": 0, "limit": 0}
_STREAM_JSON: dict[str, Any] = {
    "config": CONFIG.to_json(),
    "created": "2026-11-22T01:02:03.456Z",
    "state": {
        "messages": 0,
        "bytes": 0,
        "first_seq": 0,
        "first_ts": ZERO,
        "last_seq": 0,
        "last_ts": ZERO,
        "consumer_count": 0,
    },
    "ts": "2026-11-22T01:02:04.456Z",
}
_CONSUMER_JSON: dict[str, Any] = {
    "stream_name": "S",
    "name": "c",
    "created": "2026-11-22T01:02:03.456Z",
    "config": CONSUMER.config.to_json(),
    "delivered": {"consumer_seq": 0, "stream_seq": 0},
    "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
    "num_ack_pending": 0,
    "num_redelivered": 0,
    "num_waiting": 0,
    "num_pending": 6,
    "ts": "2026-11-22T01:02:04.456Z",
}


def _read(reply: bytes, kind: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(reply)
    assert body.pop("type") == f"io.nats.jetstream.api.v1.{kind}_response"
    return body


@pytest.mark.parametrize(
    ("verb", "kind", "beside"),
    [
        (ApiVerb.INFO, "account_info", {}),
        (ApiVerb.STREAM_CREATE, "stream_create", {}),
        (ApiVerb.STREAM_UPDATE, "stream_update", {}),
        (ApiVerb.STREAM_INFO, "stream_info", PAGE),
        (ApiVerb.STREAM_NAMES, "stream_names", PAGE | {"streams": None}),
        (ApiVerb.STREAM_LIST, "stream_list", PAGE | {"streams": []}),
        (ApiVerb.STREAM_DELETE, "stream_delete", {}),
        (ApiVerb.STREAM_PURGE, "stream_purge", {"purged": 0}),
        (ApiVerb.STREAM_MSG_GET, "stream_msg_get", {}),
        (ApiVerb.STREAM_MSG_DELETE, "stream_msg_delete", {}),
        (ApiVerb.STREAM_SNAPSHOT, "stream_snapshot", {}),
        (ApiVerb.STREAM_RESTORE, "stream_restore", {}),
        (ApiVerb.STREAM_PEER_REMOVE, "stream_remove_peer", {}),
        (ApiVerb.STREAM_LEADER_STEPDOWN, "stream_leader_stepdown", {}),
        (ApiVerb.CONSUMER_CREATE, "consumer_create", {}),
        (ApiVerb.CONSUMER_DURABLE_CREATE, "consumer_create", {}),
        (ApiVerb.CONSUMER_INFO, "consumer_info", {}),
        (ApiVerb.CONSUMER_NAMES, "consumer_names", PAGE | {"consumers": []}),
        (ApiVerb.CONSUMER_LIST, "consumer_list", PAGE | {"consumers": []}),
        (ApiVerb.CONSUMER_DELETE, "consumer_delete", {}),
        (ApiVerb.CONSUMER_PAUSE, "consumer_pause", {"paused": False, "pause_until": ZERO}),
        (ApiVerb.CONSUMER_UNPIN, "consumer_unpin", {}),
        (ApiVerb.CONSUMER_RESET, "consumer_reset", {"reset_seq": 0}),
        (ApiVerb.CONSUMER_LEADER_STEPDOWN, "consumer_leader_stepdown", {}),
    ],
)
def test_an_error_has_the_type_of_its_verb(
    verb: ApiVerb, kind: str, beside: dict[str, Any]
) -> None:
    error = errors.stream_not_found()
    assert _read(replies.error_reply(verb, error), kind) == {"error": error.to_json()} | beside


def test_an_empty_stream_as_nats_server_tells_it() -> None:
    created = _read(replies.stream_created_reply(STREAM, NOW_MS), "stream_create")
    assert created == _STREAM_JSON | {"did_create": True}
    assert _read(replies.stream_updated_reply(STREAM, NOW_MS), "stream_update") == _STREAM_JSON
    page = {"total": 0, "offset": 0, "limit": 0}
    assert _read(replies.stream_info_reply(STREAM, NOW_MS), "stream_info") == _STREAM_JSON | page


def test_what_a_stream_has_is_told() -> None:
    state = ApiStreamState(
        messages=2,
        bytes=71,
        first_seq=1,
        first_ms=CREATED_MS,
        last_seq=3,
        last_ms=NOW_MS,
        consumer_count=1,
        num_subjects=2,
        num_deleted=1,
        deleted=[2],
        subjects={"s.c": 1},
    )
    info = replace(STREAM, state=state, domain="hub")
    body = _read(replies.stream_info_reply(info, NOW_MS, subject_count=2, offset=1), "stream_info")
    assert (body["total"], body["offset"], body["limit"]) == (2, 1, 100_000)
    assert body["domain"] == "hub"
    assert body["state"] == {
        "messages": 2,
        "bytes": 71,
        "first_seq": 1,
        "first_ts": "2026-11-22T01:02:03.456Z",
        "last_seq": 3,
        "last_ts": "2026-11-22T01:02:04.456Z",
        "num_subjects": 2,
        "subjects": {"s.c": 1},
        "num_deleted": 1,
        "deleted": [2],
        "consumer_count": 1,
    }


def test_lists_are_told_in_pages() -> None:
    names = [f"s{index:04}" for index in range(1500)]
    first = _read(replies.stream_names_reply(names), "stream_names")
    assert first == {"total": 1500, "offset": 0, "limit": 1024, "streams": names[:1024]}
    rest = _read(replies.consumer_names_reply(names, 1024), "consumer_names")
    assert rest == {"total": 1500, "offset": 1024, "limit": 1024, "consumers": names[1024:]}
    beyond = _read(replies.stream_names_reply(names, 9999), "stream_names")
    assert beyond == {"total": 1500, "offset": 1500, "limit": 1024, "streams": None}
    nothing = _read(replies.consumer_names_reply([], 5), "consumer_names")
    assert nothing == {"total": 0, "offset": 0, "limit": 1024, "consumers": []}
    infos = _read(replies.stream_list_reply([STREAM], NOW_MS, total=7, offset=6), "stream_list")
    assert infos == {"total": 7, "offset": 6, "limit": 256, "streams": [_STREAM_JSON]}
    infos = _read(replies.consumer_list_reply([CONSUMER], NOW_MS, total=1), "consumer_list")
    assert infos == {"total": 1, "offset": 0, "limit": 256, "consumers": [_CONSUMER_JSON]}


def test_deletes_and_purges_are_told() -> None:
    assert _read(replies.success_reply(ApiVerb.STREAM_DELETE), "stream_delete") == {"success": True}
    assert _read(replies.purged_reply(2), "stream_purge") == {"success": True, "purged": 2}
    assert _read(replies.purged_reply(0), "stream_purge") == {"success": True, "purged": 0}


def test_a_message_is_told_in_base64() -> None:
    block = b"NATS/1.0\r\nX: 1\r\n\r\n"
    reply = replies.message_reply("q.b", 5, CREATED_MS, block, b"hello")
    assert _read(reply, "stream_msg_get")["message"] == {
        "subject": "q.b",
        "seq": 5,
        "hdrs": "TkFUUy8xLjANClg6IDENCg0K",
        "data": "aGVsbG8=",
        "time": "2026-11-22T01:02:03.456Z",
    }
    empty = replies.message_reply("q.c", 6, CREATED_MS, b"", b"")
    assert list(_read(empty, "stream_msg_get")["message"]) == ["subject", "seq", "time"]
    for subject in ('q."\\', "q.é🪸", "q.%b", "q.\x7f"):
        told = _read(replies.message_reply(subject, 7, 0, b"", b""), "stream_msg_get")["message"]
        assert told == {"subject": subject, "seq": 7, "time": times.ZERO_TIME}


def test_a_consumer_as_nats_server_tells_it() -> None:
    created = _read(replies.consumer_created_reply(CONSUMER, NOW_MS), "consumer_create")
    assert created == _CONSUMER_JSON
    assert _read(replies.consumer_info_reply(CONSUMER, NOW_MS), "consumer_info") == _CONSUMER_JSON
    reset = _read(replies.consumer_reset_reply(CONSUMER, NOW_MS, 5), "consumer_reset")
    assert reset == _CONSUMER_JSON | {"reset_seq": 5}
    assert _read(replies.consumer_unpinned_reply(), "consumer_unpin") == {}


def test_what_a_consumer_does_is_told() -> None:
    until_ns = (NOW_MS + 500) * 1_000_000
    info = replace(
        CONSUMER,
        config=replace(CONSUMER.config, pause_until=until_ns),
        delivered=SequenceState(3, 4, CREATED_MS),
        push_bound=True,
        priority_groups=(PriorityGroupState("a"), PriorityGroupState("b", "pin", CREATED_MS)),
    )
    body = info.to_json(NOW_MS)
    assert body["delivered"] == {
        "consumer_seq": 3,
        "stream_seq": 4,
        "last_active": "2026-11-22T01:02:03.456Z",
    }
    assert body["push_bound"] is True
    assert (body["paused"], body["pause_remaining"]) == (True, 500_000_000)
    assert body["priority_groups"] == [
        {"group": "a", "pinned_ts": ZERO},
        {"group": "b", "pinned_client_id": "pin", "pinned_ts": "2026-11-22T01:02:03.456Z"},
    ]
    # The pause is over, and stays in the configuration.
    later = info.to_json(NOW_MS + 500)
    assert "paused" not in later and "pause_remaining" not in later
    assert later["config"]["pause_until"] == "2026-11-22T01:02:04.956Z"


def test_a_pause_and_its_end_are_told() -> None:
    paused = _read(
        replies.consumer_paused_reply((NOW_MS + 500) * 1_000_000, NOW_MS), "consumer_pause"
    )
    assert paused == {
        "paused": True,
        "pause_until": "2026-11-22T01:02:04.956Z",
        "pause_remaining": 500_000_000,
    }
    resumed = _read(replies.consumer_paused_reply(None, NOW_MS), "consumer_pause")
    assert resumed == {"paused": False, "pause_until": ZERO}
    past = _read(replies.consumer_paused_reply(CREATED_MS * 1_000_000, NOW_MS), "consumer_pause")
    assert past == {"paused": False, "pause_until": "2026-11-22T01:02:03.456Z"}


def test_an_account_as_nats_server_tells_it() -> None:
    info = AccountInfo(storage=131, streams=16, consumers=3, api_total=321, api_errors=216)
    assert _read(replies.account_info_reply(info), "account_info") == {
        "memory": 0,
        "storage": 131,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "streams": 16,
        "consumers": 3,
        "limits": {
            "max_memory": -1,
            "max_storage": -1,
            "max_streams": -1,
            "max_consumers": -1,
            "max_ack_pending": -1,
            "memory_max_stream_bytes": -1,
            "storage_max_stream_bytes": -1,
            "max_bytes_required": False,
        },
        "api": {"level": 4, "total": 321, "errors": 216},
    }
    limited = AccountInfo(limits=AccountLimits(max_streams=5), domain="hub").to_json()
    assert (limited["limits"]["max_streams"], limited["domain"]) == (5, "hub")


def test_acks_of_publishes_as_nats_server_writes_them() -> None:
    acks = PubAcks("S")
    assert acks.stored(7) == b'{"stream":"S","seq":7}'
    assert acks.stored_run(9, 2) == [acks.stored(9).decode("ascii"), acks.stored(10).decode()]
    assert acks.duplicate(7) == b'{"stream":"S","seq":7,"duplicate":true}'
    assert acks.counted(7, 12) == b'{"stream":"S","seq":7,"val":"12"}'
    assert acks.counted(7, 12, duplicate=True) == (
        b'{"stream":"S","seq":7,"duplicate":true,"val":"12"}'
    )
    assert acks.committed(7, "b", 3) == b'{"stream":"S","seq":7,"batch":"b","count":3}'
    assert acks.committed(7, "b", 3, 5) == b'{"stream":"S","seq":7,"val":"5","batch":"b","count":3}'
    assert json.loads(acks.refused(errors.wrong_last_sequence(5))) == {
        "error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 5"},
        "stream": "S",
        "seq": 0,
    }


@given(st.text(max_size=8), st.text(max_size=8), st.integers(0, 1 << 63))
def test_acks_of_publishes_are_json_whatever_the_names_are(
    stream: str, batch: str, seq: int
) -> None:
    acks = PubAcks(stream, "d" + stream)
    for ack, fields in [
        (acks.stored(seq), {}),
        (acks.duplicate(seq), {"duplicate": True}),
        (acks.committed(seq, batch, 2), {"batch": batch, "count": 2}),
    ]:
        expected = {"stream": stream, "seq": seq, "domain": "d" + stream} | fields
        assert json.loads(ack) == expected
    assert json.loads(acks.refused(errors.stream_general_error(batch)))["stream"] == stream


def test_the_header_block_of_a_message_comes_back_byte_for_byte() -> None:
    block = b"NATS/1.0\r\nX:  \xff\r\n\r\n"
    body = json.loads(replies.message_reply("s", 1, 1, block, b"\x00"))
    assert b64decode(body["message"]["hdrs"]) == block


def test_mirrors_and_sources_are_told_also_where_nobody_copies() -> None:
    transforms = [{"src": "t.*", "dest": "u.$1"}, {"src": "v", "dest": ""}]
    asked: list[dict[str, Any]] = [
        {"name": "A"},
        {"name": "B", "filter_subject": "b.>"},
        {"name": "C", "subject_transforms": transforms},
    ]
    config = ApiStreamConfig.parse({"name": "S", "sources": asked})
    told = ApiStreamInfo(config, CREATED_MS, ApiStreamState()).to_json(NOW_MS)
    unheard = {"lag": 0, "active": -1}
    assert told["sources"] == [each | unheard for each in asked]
    assert "mirror" not in told
    state = ApiStreamState(origins=[{"name": "A", "lag": 7, "active": 5}])
    told = ApiStreamInfo(config, CREATED_MS, state).to_json(NOW_MS)
    assert told["sources"] == state.origins
    mirror = ApiStreamConfig.parse({"name": "S", "mirror": asked[1]})
    told = ApiStreamInfo(mirror, CREATED_MS, ApiStreamState()).to_json(NOW_MS)
    assert told["mirror"] == asked[1] | unheard
    assert "sources" not in told
