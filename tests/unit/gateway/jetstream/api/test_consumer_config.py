"""The configuration of a consumer: what is refused, what is filled in, what comes back.

The tables are answers of nats-server 2.15.1, where they do not say otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.gateway.jetstream.api.checks.consumer_checks import (
    check_create,
    check_update,
    complete,
)
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.limits import AccountLimits
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.times import MINUTE, SECOND

STREAM = {"name": "C", "subjects": ["c.>"]}
#: The echo of `{}`: an ephemeral pull consumer without acks.
SMALLEST = {
    "deliver_policy": "all",
    "ack_policy": "none",
    "max_deliver": -1,
    "replay_policy": "instant",
    "max_waiting": 512,
    "inactive_threshold": 5 * SECOND,
    "num_replicas": 0,
}
#: The same as a durable one with acks.
DURABLE = {
    "durable_name": "d",
    "name": "d",
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 30 * SECOND,
    "max_deliver": -1,
    "replay_policy": "instant",
    "max_waiting": 512,
    "max_ack_pending": 1000,
    "num_replicas": 0,
}
FLOW: dict[str, Any] = {"ack_policy": "flow_control", "deliver_subject": "d"}
PUSH = {key: value for key, value in SMALLEST.items() if key != "max_waiting"} | {
    "deliver_subject": "d"
}


def _complete(asked: dict[str, Any], stream: dict[str, Any] | None = None) -> ApiConsumerConfig:
    config = ApiStreamConfig.parse(STREAM | (stream or {}))
    return complete(ApiConsumerConfig.parse(asked), config)


@pytest.mark.parametrize(
    ("asked", "echo"),
    [
        ({}, SMALLEST),
        ({"durable_name": "d", "name": "d", "ack_policy": "explicit"}, DURABLE),
        ({"deliver_policy": "undefined", "replay_policy": None}, SMALLEST),
        ({"max_deliver": 0, "max_batch": -5, "inactive_threshold": -1}, SMALLEST),
        ({"deliver_subject": "d"}, PUSH),
        (
            {"deliver_subject": "d", "flow_control": True, "idle_heartbeat": SECOND},
            PUSH | {"flow_control": True, "idle_heartbeat": SECOND},
        ),
        (
            FLOW,
            PUSH
            | FLOW
            | {"flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 1000},
        ),
        (
            {"ack_policy": "all", "backoff": [SECOND, 2 * SECOND], "max_deliver": 3},
            SMALLEST
            | {
                "ack_policy": "all",
                "ack_wait": SECOND,
                "backoff": [SECOND, 2 * SECOND],
                "max_deliver": 3,
                "max_ack_pending": 1000,
            },
        ),
        ({"max_ack_pending": 5}, SMALLEST | {"max_ack_pending": 5}),
        ({"ack_wait": SECOND}, SMALLEST | {"ack_wait": SECOND}),
        (
            {"ack_policy": "explicit", "max_ack_pending": -1},
            SMALLEST | {"ack_policy": "explicit", "ack_wait": 30 * SECOND, "max_ack_pending": -1},
        ),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00+01:00"},
            SMALLEST
            | {"deliver_policy": "by_start_time", "opt_start_time": "2025-12-31T23:00:00Z"},
        ),
        (
            {"filter_subjects": ["a.*.b", "a.c.*"]},
            SMALLEST | {"filter_subjects": ["a.*.b", "a.c.*"]},
        ),
        ({"deliver_group": "g"}, SMALLEST | {"deliver_group": "g"}),
        (
            {"pause_until": "2030-01-01T00:00:00Z", "metadata": {"a": "b", "_nats.x": "1"}},
            SMALLEST | {"pause_until": "2030-01-01T00:00:00Z", "metadata": {"a": "b"}},
        ),
        ({"pause_until": "0001-01-01T00:00:00Z", "direct": False}, SMALLEST),
        (
            {"sample_freq": "100%", "mem_storage": True, "num_replicas": 1, "headers_only": True},
            SMALLEST
            | {"sample_freq": "100%", "mem_storage": True, "num_replicas": 1, "headers_only": True},
        ),
        (
            {"priority_policy": "pinned_client", "priority_groups": ["a", "b"]},
            SMALLEST
            | {
                "priority_groups": ["a", "b"],
                "priority_policy": "pinned_client",
                "priority_timeout": 2 * MINUTE,
            },
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["a/=_-9"]},
            SMALLEST | {"priority_groups": ["a/=_-9"], "priority_policy": "overflow"},
        ),
    ],
)
def test_settings_come_back_with_their_defaults(
    asked: dict[str, Any], echo: dict[str, Any]
) -> None:
    config = _complete(asked)
    assert config.to_json() == echo
    # The echo says the same when it is sent back, and when it is read from a record.
    assert _complete(config.to_json()) == config
    assert ApiConsumerConfig.from_json(config.to_json() | {"later": 1}) == config


def test_a_stream_gives_its_consumers_defaults() -> None:
    stream = {"consumer_limits": {"max_ack_pending": 5, "inactive_threshold": 9 * SECOND}}
    config = _complete({"durable_name": "d", "ack_policy": "explicit"}, stream)
    assert (config.max_ack_pending, config.inactive_threshold) == (5, 9 * SECOND)


@pytest.mark.parametrize(
    ("asked", "err_code", "description"),
    [
        ({"name": "x*"}, 10052, "consumer name can not contain '.', '*', '>', '\\', '/'"),
        ({"durable_name": "a.b"}, 10052, "consumer durable name can not contain"),
        ({"name": "a" * 256}, 10102, "consumer name is too long, maximum allowed is 255"),
        ({"num_replicas": 2}, 10074, "replicas > 1 not supported in non-clustered mode"),
        ({"num_replicas": -2}, 10133, "replicas count cannot be negative"),
        ({"ack_wait": -2}, 10183, "consumer ack wait needs to be positive"),
        ({"backoff": [1, -2]}, 10184, "consumer backoff needs to be positive"),
        ({"backoff": [1, 2], "max_deliver": 1}, 10116, "max deliver is required to be > length"),
        ({"description": "a" * 4097}, 10107, "consumer description is too long, maximum"),
        ({"metadata": {"a": "b" * 131_072}}, 10135, "consumer metadata exceeds maximum size of"),
        ({"sample_freq": "x"}, 10095, "failed to parse consumer sampling configuration: "),
        ({"sample_freq": "-5%"}, 10095, "failed to parse consumer sampling configuration: "),
        ({"filter_subjects": ["a", "a"]}, 10138, "consumer subject filters cannot overlap"),
        ({"filter_subjects": ["a.>", "a.*"]}, 10138, "consumer subject filters cannot overlap"),
        ({"filter_subjects": [""]}, 10139, "consumer filter in FilterSubjects cannot be empty"),
        ({"filter_subject": "a", "filter_subjects": ["a"]}, 10136, "consumer cannot have both"),
        ({"filter_subject": "a b"}, 10052, "invalid subject"),
        ({"priority_groups": ["a"]}, 10196, "consumer can not have priority groups when policy"),
        ({"priority_policy": "overflow"}, 10159, "Setting PriorityPolicy requires at least one"),
        ({"priority_policy": "overflow", "priority_groups": [""]}, 10161, "Group name cannot be"),
        ({"priority_policy": "overflow", "priority_groups": ["a b"]}, 10162, "Valid priority"),
        ({"priority_policy": "overflow", "priority_groups": ["a" * 17]}, 10162, "Valid priority"),
        ({"priority_timeout": 5}, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"),
        ({"deliver_subject": "c.x"}, 10081, "consumer deliver subject forms a cycle"),
        ({"deliver_subject": "d.*"}, 10079, "consumer deliver subject has wildcards"),
        ({"deliver_subject": "d d"}, 10112, "invalid push consumer deliver subject"),
        ({"deliver_subject": "d", "idle_heartbeat": 5}, 10083, "consumer idle heartbeat needs to"),
        ({"deliver_subject": "d", "flow_control": True}, 10108, "consumer with flow control also"),
        ({"deliver_subject": "d", "max_waiting": 5}, 10080, "consumer in push mode can not set"),
        ({"deliver_subject": "d", "max_ack_pending": 5}, 10082, "consumer requires ack policy"),
        (
            {"deliver_subject": "d", "priority_policy": "overflow", "priority_groups": ["a"]},
            10178,
            "priority groups can not be used with push consumers",
        ),
        ({"idle_heartbeat": SECOND}, 10088, "consumer idle heartbeat requires a push based"),
        ({"flow_control": True}, 10089, "consumer flow control requires a push based consumer"),
        ({"rate_limit_bps": 1}, 10086, "consumer in pull mode can not have rate limit set"),
        ({"max_expires": 5}, 10115, "consumer max request expires needs to be >= 1ms"),
        ({"durable_name": "a", "name": "b"}, 10132, "Consumer Durable and Name have to be equal"),
        (
            {"deliver_policy": "last_per_subject"},
            10094,
            "consumer delivery policy is deliver last per subject, but optional filter subject",
        ),
        (
            {"deliver_policy": "by_start_sequence"},
            10094,
            "consumer delivery policy is deliver by start sequence, but optional start sequence",
        ),
        (
            {"opt_start_seq": 5},
            10094,
            "consumer delivery policy is deliver all, but optional start sequence is also set",
        ),
        (
            {"deliver_policy": "new", "opt_start_time": "2026-01-01T00:00:00Z"},
            10094,
            "consumer delivery policy is deliver new, but optional start time is also set",
        ),
        (
            {"deliver_policy": "by_start_time"},
            10094,
            "consumer delivery policy is deliver by start time, but optional start time is not set",
        ),
        (FLOW | {"deliver_subject": ""}, 10218, "flow control ack policy requires a push based"),
        (FLOW | {"max_ack_pending": -1}, 10220, "flow control ack policy requires max ack pending"),
        (FLOW | {"ack_wait": SECOND}, 10221, "flow control ack policy requires unset ack wait"),
        (FLOW | {"backoff": [SECOND]}, 10221, "flow control ack policy requires unset ack wait"),
        (FLOW | {"max_deliver": 2}, 10222, "flow control ack policy requires unset max deliver"),
        # Its own limit: each pending delivery is a row of a store.
        (
            {"ack_policy": "explicit", "max_ack_pending": 49_153},
            10121,
            "consumer max ack pending exceeds system limit of 49152",
        ),
    ],
)
def test_what_nats_server_refuses_is_refused_with_its_words(
    asked: dict[str, Any], err_code: int, description: str
) -> None:
    with pytest.raises(ApiError) as caught:
        _complete(asked)
    assert caught.value.err_code == err_code
    assert caught.value.description.startswith(description)


@pytest.mark.parametrize(
    "asked",
    [
        {"ack_policy": "foo"},
        {"replay_policy": ""},
        {"direct": True},
        {"sourcing": True},
        {"opt_start_time": "x"},
        {"priority_policy": "foo"},
        {"foo": 1},
    ],
)
def test_unknown_fields_and_words_are_invalid_json(asked: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        _complete(asked)
    assert caught.value.err_code == 10025


@pytest.mark.parametrize(
    "asked", [{"max_deliver": -2}, {"max_batch": -1}, {"backoff": [5], "ack_wait": 6}]
)
def test_pedantic_requests_are_not_corrected(asked: dict[str, Any]) -> None:
    config, stream = ApiConsumerConfig.parse(asked), ApiStreamConfig.parse(STREAM)
    complete(config, stream)
    with pytest.raises(ApiError) as caught:
        complete(config, stream, pedantic=True)
    assert caught.value.err_code == 10157


_THRESHOLD = "consumer inactive threshold exceeds system limit of 1s"


def test_the_limits_of_account_and_stream_are_kept() -> None:
    config, stream = ApiConsumerConfig.parse({"ack_policy": "all"}), ApiStreamConfig.parse(STREAM)
    assert complete(config, stream, AccountLimits(max_ack_pending=7)).max_ack_pending == 7
    bounds = {"consumer_limits": {"max_ack_pending": 5, "inactive_threshold": SECOND}}
    for asked, err_code, description in [
        ({"max_ack_pending": 6}, 10121, "consumer max ack pending exceeds system limit of 5"),
        ({"inactive_threshold": 2 * SECOND}, 10153, _THRESHOLD),
    ]:
        with pytest.raises(ApiError) as caught:
            _complete(asked, bounds)
        assert caught.value == ApiError(400, err_code, description)


def test_a_pedantic_client_sets_what_acks_by_flow_control_need() -> None:
    stream = ApiStreamConfig.parse(STREAM)
    rest = {"flow_control": True, "idle_heartbeat": SECOND}
    asked = ApiConsumerConfig.parse(FLOW | rest)
    assert complete(asked, stream, pedantic=True).max_ack_pending == 1000
    for fields, err_code in ((FLOW, 10219), (FLOW | rest | {"idle_heartbeat": 5 * SECOND}, 10052)):
        with pytest.raises(ApiError) as caught:
            complete(ApiConsumerConfig.parse(fields), stream, pedantic=True)
        assert caught.value.err_code == err_code


def test_a_stream_has_so_many_consumers() -> None:
    config = _complete({"name": "a"})
    others = {"b": config, "c": config}
    for stream, limits, refused in [
        ({"max_consumers": 2}, AccountLimits(), True),
        ({"max_consumers": 3}, AccountLimits(), False),
        ({"max_consumers": 3}, AccountLimits(max_consumers=2), True),
        ({}, AccountLimits(max_consumers=2), True),
        ({}, AccountLimits(), False),
    ]:
        checked = ApiStreamConfig.parse(STREAM | stream)
        if refused:
            with pytest.raises(ApiError, match="maximum consumers limit reached"):
                check_create(config, checked, others, limits)
        else:
            check_create(config, checked, others, limits)


WORKQUEUE = {"retention": "workqueue"}


@pytest.mark.parametrize(
    ("asked", "others", "err_code"),
    [
        ({"ack_policy": "all"}, [], 10098),
        ({"ack_policy": "explicit", "deliver_policy": "new"}, [], 10101),
        ({"ack_policy": "explicit"}, [{"filter_subject": "c.a"}], 10099),
        ({"ack_policy": "explicit", "filter_subject": "c.a"}, [{}], 10100),
        ({"ack_policy": "explicit", "filter_subject": "c.*"}, [{"filter_subject": "c.a"}], 10100),
        ({"ack_policy": "explicit", "filter_subject": "c.b"}, [{"filter_subject": "c.a"}], None),
        ({"ack_policy": "explicit"}, [], None),
        (FLOW, [], None),
    ],
)
def test_consumers_of_a_work_queue_share_nothing(
    asked: dict[str, Any], others: list[dict[str, Any]], err_code: int | None
) -> None:
    config, stream = _complete(asked, WORKQUEUE), ApiStreamConfig.parse(STREAM | WORKQUEUE)
    existing = {
        str(index): _complete(each | {"ack_policy": "explicit"}, WORKQUEUE)
        for index, each in enumerate(others)
    }
    if err_code is None:
        check_create(config, stream, existing)
        return
    with pytest.raises(ApiError) as caught:
        check_create(config, stream, existing)
    assert caught.value.err_code == err_code


def test_a_consumer_of_a_work_queue_has_acks() -> None:
    with pytest.raises(ApiError) as caught:
        _complete({}, WORKQUEUE)
    assert caught.value.err_code == 10084


@pytest.mark.parametrize(
    ("old", "new", "description"),
    [
        ({}, {"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({}, {"mem_storage": True}, "storage type can not be updated"),
        ({}, {"ack_policy": "all"}, "ack policy can not be updated"),
        ({}, {"replay_policy": "original"}, "replay policy can not be updated"),
        ({}, {"max_waiting": 5}, "max waiting can not be updated"),
        ({}, {"deliver_subject": "d"}, "can not update pull consumer to push based"),
        ({"deliver_subject": "d"}, {}, "can not update push consumer to pull based"),
        (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 1},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
            "start sequence can not be updated",
        ),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00Z"},
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:01Z"},
            "start time can not be updated",
        ),
        (
            {"deliver_subject": "d", "idle_heartbeat": SECOND},
            {"deliver_subject": "d", "idle_heartbeat": 2 * SECOND},
            "heart beats can not be updated",
        ),
    ],
)
def test_some_settings_do_not_change(
    old: dict[str, Any], new: dict[str, Any], description: str
) -> None:
    stream = ApiStreamConfig.parse(STREAM)
    with pytest.raises(ApiError) as caught:
        check_update(_complete(old), _complete(new), stream, {}, deliver_subject_in_use=False)
    assert caught.value == ApiError(500, 10012, description)


def test_other_settings_change_and_a_pause_stays() -> None:
    old = replace(_complete({"ack_policy": "all"}), pause_until=5)
    new = _complete({"ack_policy": "all", "max_deliver": 3, "filter_subject": "c.a"})
    stream = ApiStreamConfig.parse(STREAM)
    changed = check_update(old, new, stream, {}, deliver_subject_in_use=True)
    assert changed == replace(new, pause_until=5)
    assert check_update(old, old, stream, {}, deliver_subject_in_use=True) == old


def test_a_deliver_subject_changes_while_nobody_listens() -> None:
    old, new = _complete({"deliver_subject": "d"}), _complete({"deliver_subject": "e"})
    stream = ApiStreamConfig.parse(STREAM)
    assert check_update(old, new, stream, {}, deliver_subject_in_use=False) == new
    with pytest.raises(ApiError, match="consumer name already in use"):
        check_update(old, new, stream, {}, deliver_subject_in_use=True)


def test_a_consumer_says_what_it_is() -> None:
    assert _complete({"filter_subject": "a"}).filters == ("a",)
    assert _complete({"filter_subjects": ["a", "b"]}).filters == ("a", "b")
    assert _complete({}).filters == ()
    assert _complete({"deliver_subject": "d"}).is_push and not _complete({}).is_push
    assert _complete({"durable_name": "d"}).is_durable and not _complete({"name": "d"}).is_durable
