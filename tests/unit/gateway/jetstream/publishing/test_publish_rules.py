"""From headers to the conditions of an append."""

from __future__ import annotations

from typing import Any

from holdfast.client.handles.serving_wire import NewMessage
from holdfast.gateway.jetstream.api.headers import build
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules, counter_value
from holdfast.gateway.jetstream.wire.ports import PortMessage

_CONFIG = {
    "name": "S",
    "subjects": ["s.>"],
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": True,
    "max_msg_size": -1,
}


def _append(fields: dict[str, str], payload: bytes = b"v", **config: Any) -> NewMessage:
    rules = PublishRules(ApiStreamConfig.from_json({**_CONFIG, **config}), lambda: 0)
    message = PortMessage("s.a", "", build(fields) if fields else b"", payload)
    append, _ = rules.check(message)
    return append


def test_what_headers_expect_becomes_conditions_of_the_owner() -> None:
    assert _append({}) == NewMessage("s.a", b"v", b"")
    assert _append({"Nats-Msg-Id": "id"}).msg_id == "id"
    assert _append({"Nats-Expected-Last-Sequence": "7"}).expected_last_seq == 7
    options = _append(
        {
            "Nats-Expected-Last-Subject-Sequence": "3",
            "Nats-Expected-Last-Subject-Sequence-Subject": "s.*",
            "Nats-Expected-Last-Msg-Id": "before",
            "Nats-Rollup": "sub",
        }
    ).options
    assert options == {
        "expected_last_subject_seq": 3,
        "expected_subject": "s.*",
        "expected_last_msg_id": "before",
        "rollup": "sub",
    }


def test_long_message_ids_are_hashed_and_expected_alike() -> None:
    long_id, other = "x" * 300, "x" * 301
    stored = _append({"Nats-Msg-Id": long_id}).msg_id
    assert stored is not None and len(stored) < 256
    assert stored != _append({"Nats-Msg-Id": other}).msg_id
    options = _append({"Nats-Expected-Last-Msg-Id": long_id}).options
    assert options == {"expected_last_msg_id": stored}


def test_lifetimes_are_seconds_or_for_ever() -> None:
    assert _append({"Nats-TTL": "1m"}).ttl_seconds == 60.0
    never = _append({"Nats-TTL": "never"})
    assert (never.ttl_seconds, never.options) == (None, {"never_expires": True})
    raised = _append({"Nats-TTL": "1s"}, subject_delete_marker_ttl=5_000_000_000)
    assert raised.ttl_seconds == 5.0 and b"Nats-TTL: 5\r\n" in raised.headers


def test_counters_count_and_subjects_are_transformed() -> None:
    counted = _append({"Nats-Incr": "+2"}, b"", allow_msg_counter=True)
    assert counted.options == {"incr": "+2"}
    assert counter_value("12") == b'{"val":"12"}'
    transform = {"src": "s.*", "dest": "t.{{wildcard(1)}}"}
    assert _append({}, subject_transform=transform).subject == "t.a"
