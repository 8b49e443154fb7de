"""The configuration of a stream: what is refused, what is filled in, what comes back.

The tables are answers of nats-server 2.15.1, where they do not say otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import bodies
from holdfast.gateway.jetstream.api.checks.stream_checks import (
    check_consumers,
    check_create,
    check_update,
)
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.limits import AccountLimits
from holdfast.gateway.jetstream.api.stream_config import (
    ApiStreamConfig,
    DiscardPolicy,
    Republish,
    StorageType,
    store_settings,
)
from holdfast.gateway.jetstream.api.times import SECOND

#: The echo of `{"name": "S", "subjects": ["s.>"]}`, in its order, without nats-server's metadata.
SMALLEST = {
    "name": "S",
    "subjects": ["s.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
}


def _created(fields: dict[str, Any] | None = None, **options: Any) -> ApiStreamConfig:
    asked = {"name": "S", "subjects": ["s.>"]} | (fields or {})
    return check_create(ApiStreamConfig.parse(asked), **options)


def _updated(old: dict[str, Any], new: dict[str, Any], **options: Any) -> ApiStreamConfig:
    asked = {"name": "S", "subjects": ["s.>"]} | new
    return check_update(_created(old), ApiStreamConfig.parse(asked), **options)


def test_what_was_left_out_is_filled_in_and_told_in_the_servers_order() -> None:
    echo = _created().to_json()
    assert echo == SMALLEST
    assert list(echo) == list(SMALLEST)


@pytest.mark.parametrize(
    ("asked", "echo"),
    [
        ({"subjects": []}, {"subjects": ["S"]}),
        ({"max_msgs": 0, "max_bytes": -5, "max_consumers": None}, {}),
        ({"max_msgs": 5, "max_msg_size": 10}, {"max_msgs": 5, "max_msg_size": 10}),
        ({"discard": "New", "max_bytes": 1}, {"discard": "new", "max_bytes": 1}),
        ({"max_age": SECOND}, {"max_age": SECOND, "duplicate_window": SECOND}),
        ({"first_seq": 10}, {"first_seq": 10}),
        ({"persist_mode": "default", "no_ack": False, "description": ""}, {}),
        ({"persist_mode": ""}, {}),
        ({"persist_mode": "async"}, {"persist_mode": "async"}),
        ({"compression": "s2", "no_ack": True}, {"compression": "s2", "no_ack": True}),
        ({"placement": {}}, {}),
        ({"republish": {"dest": "z.>"}}, {"republish": {"src": ">", "dest": "z.>"}}),
        (
            {"republish": {"src": "s.>", "dest": "z.>", "headers_only": True}},
            {"republish": {"src": "s.>", "dest": "z.>", "headers_only": True}},
        ),
        (
            {"subject_transform": {"src": "s.*", "dest": "t.$1"}},
            {"subject_transform": {"src": "s.*", "dest": "t.$1"}},
        ),
        (
            {"subject_transform": {"src": "s.>", "dest": "t.>"}, "republish": {"dest": ">"}},
            {
                "subject_transform": {"src": "s.>", "dest": "t.>"},
                "republish": {"src": "t.>", "dest": "t.>"},
            },
        ),
        ({"consumer_limits": {"max_ack_pending": 5}}, {"consumer_limits": {"max_ack_pending": 5}}),
        (
            {"subject_delete_marker_ttl": SECOND},
            {
                "allow_rollup_hdrs": True,
                "allow_msg_ttl": True,
                "subject_delete_marker_ttl": SECOND,
            },
        ),
        (
            {"allow_msg_schedules": True, "deny_purge": True},
            {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
        ),
        ({"allow_msg_counter": True}, {"allow_msg_counter": True}),
        ({"allow_atomic": True}, {"allow_atomic": True}),
        ({"allow_batched": True}, {"allow_batched": True}),
        ({"metadata": {"a": "b", "_nats.level": "5"}}, {"metadata": {"a": "b"}}),
        ({"metadata": {"_nats.ver": "2.15.1"}}, {}),
        ({"template_owner": "", "mirror": None, "sources": []}, {}),
    ],
)
def test_settings_come_back(asked: dict[str, Any], echo: dict[str, Any]) -> None:
    config = _created(asked)
    assert config.to_json() == SMALLEST | echo
    # The echo says the same when it is sent back, and when it is read from a catalogue.
    assert check_create(ApiStreamConfig.parse(config.to_json())) == config
    assert ApiStreamConfig.from_json(config.to_json() | {"later": 1}) == config


@pytest.mark.parametrize(
    ("asked", "err_code", "description"),
    [
        ({"name": "a/b"}, 10128, "Stream name can not contain path separators"),
        ({"name": "a b"}, 10052, "stream name is required and can not contain"),
        ({"name": ""}, 10052, "stream name is required and can not contain"),
        ({"name": "a" * 256}, 10052, "stream name is too long, maximum allowed is 255"),
        (
            {"description": "a" * 4097},
            10052,
            "stream description is too long, maximum allowed is 4096",
        ),
        (
            {"metadata": {"a": "b" * 131_072}},
            10052,
            "stream metadata exceeds maximum size of 131072 bytes",
        ),
        ({"sealed": True}, 10052, "stream configuration for create can not be sealed"),
        ({"mirror_direct": True}, 10052, "stream has no mirror but does have mirror direct"),
        ({"num_replicas": 3}, 10074, "replicas > 1 not supported in non-clustered mode"),
        ({"num_replicas": 6}, 10052, "maximum replicas is 5"),
        ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
        ({"max_age": 5}, 10052, "max age needs to be >= 100ms"),
        ({"max_age": -5}, 10052, "max age can not be negative"),
        ({"duplicate_window": -5}, 10052, "duplicates window can not be negative"),
        ({"duplicate_window": 5}, 10052, "duplicates window needs to be >= 100ms"),
        (
            {"max_age": SECOND, "duplicate_window": 2 * SECOND},
            10052,
            "duplicates window can not be larger then max age",
        ),
        (
            {"deny_purge": True, "allow_rollup_hdrs": True},
            10052,
            "roll-ups require the purge permission",
        ),
        (
            {"allow_msg_counter": True, "discard": "new"},
            10052,
            "counter stream cannot use discard new",
        ),
        (
            {"allow_msg_counter": True, "allow_msg_ttl": True},
            10052,
            "counter stream cannot use message TTLs",
        ),
        (
            {"allow_msg_counter": True, "allow_msg_schedules": True},
            10052,
            "counter stream cannot use message schedules",
        ),
        (
            {"allow_msg_counter": True, "retention": "interest"},
            10052,
            "counter stream can only use limits retention",
        ),
        (
            {"discard_new_per_subject": True},
            10052,
            "discard new per subject requires discard new policy to be set",
        ),
        (
            {"discard_new_per_subject": True, "discard": "new"},
            10052,
            "discard new per subject requires max msgs per subject > 0",
        ),
        (
            {"subject_delete_marker_ttl": 5},
            10052,
            "subject delete marker TTL must be at least 1 second",
        ),
        (
            {"subject_delete_marker_ttl": -5},
            10052,
            "subject delete marker TTL must not be negative",
        ),
        (
            {"allow_msg_schedules": True, "discard": "new"},
            10052,
            "message scheduling cannot use discard new",
        ),
        (
            {"persist_mode": "async", "storage": "memory"},
            10052,
            "async persist mode is only supported on file storage",
        ),
        (
            {"persist_mode": "async", "num_replicas": 2},
            10052,
            "async persist mode is not supported on replicated streams",
        ),
        (
            {"persist_mode": "async", "allow_atomic": True},
            10052,
            "async persist mode is not supported with atomic batch publish",
        ),
        ({"subjects": ["x.*", "x.a"]}, 10052, 'subject "x.*" overlaps with "x.a"'),
        ({"subjects": ["x", "x"]}, 10052, 'subject "x" overlaps with "x"'),
        ({"subjects": ["x 1"]}, 10052, "invalid subject"),
        ({"subjects": [""]}, 10052, "invalid subject"),
        ({"subjects": [">"]}, 10052, "capturing all subjects requires no-ack to be true"),
        (
            {"subjects": ["$JS.API.>"]},
            10052,
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        (
            {"subjects": ["*.>"]},
            10052,
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        (
            {"subjects": ["$SYS.>"]},
            10052,
            "subjects that overlap with system api require no-ack to be true",
        ),
        (
            {"subject_transform": {"src": "a.*", "dest": "b.$2"}},
            10156,
            "stream transform: invalid mapping destination: wildcard index out of range in $2: [2]",
        ),
        (
            {"subject_transform": {"src": "a b", "dest": "b"}},
            10155,
            "stream transform source: invalid subject a b",
        ),
        (
            {"subject_transform": {"src": "a.>", "dest": "b"}},
            10156,
            "stream transform: invalid subject",
        ),
        (
            {"republish": {"src": "s.a", "dest": "s.b"}},
            10052,
            "stream configuration for republish destination forms a cycle",
        ),
        (
            {"republish": {"src": "a.*", "dest": "b.$2"}},
            10052,
            "stream configuration for republish with transform from 'a.*' to 'b.$2' not valid",
        ),
        ({"placement": {"preferred": "x"}}, 10052, "preferred server not permitted in placement"),
    ],
)
def test_what_nats_server_refuses_is_refused_with_its_words(
    asked: dict[str, Any], err_code: int, description: str
) -> None:
    with pytest.raises(ApiError) as caught:
        _created(asked)
    assert caught.value.err_code == err_code
    assert caught.value.description.startswith(description)


@pytest.mark.parametrize(
    ("asked", "code", "err_code", "description"),
    [
        (
            {"mirror": {"name": "O", "external": {"api": "$JS.d.API"}}, "subjects": []},
            500,
            10052,
            "external streams are not supported",
        ),
        (
            {"sources": [{"name": "O", "external": {"api": "$JS.d.API"}}]},
            500,
            10052,
            "external streams are not supported",
        ),
        (
            {"sources": [{"name": "O"}], "allow_msg_counter": True},
            500,
            10052,
            "sources of counters are not supported",
        ),
        ({"placement": {"tags": ["ssd"]}}, 400, 10005, "no suitable peers for placement"),
        ({"placement": {"cluster": "west"}}, 400, 10005, "no suitable peers for placement"),
        (
            {"subjects": ["hf.x"]},
            500,
            10052,
            'subject "hf.x" overlaps with "hf.>", which is reserved',
        ),
        (
            {"subjects": [">"], "no_ack": True},
            500,
            10052,
            'subject ">" overlaps with "hf.>", which is reserved',
        ),
        (
            {"republish": {"src": "s.a", "dest": "hf.x"}},
            500,
            10052,
            'republish destination "hf.x" is reserved',
        ),
    ],
)
def test_what_the_gateway_does_not_do_is_refused(
    asked: dict[str, Any], code: int, err_code: int, description: str
) -> None:
    with pytest.raises(ApiError) as caught:
        _created(asked, reserved=["hf.>"])
    assert caught.value == ApiError(code, err_code, description)


@pytest.mark.parametrize(
    "asked",
    [
        {"mirror": {"nome": "O"}},
        {"sources": [{"name": "O", "external": {"api": 1}}]},
        {"sources": {"name": "O"}},
        {"republish": {"src": 1}},
        {"consumer_limits": {"more": 1}},
        {"discard": "DiscardOld"},
        {"retention": "Limits"},
    ],
)
def test_unknown_fields_and_words_are_invalid_json(asked: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        _created(asked)
    assert caught.value.err_code == 10025


@pytest.mark.parametrize(
    "subject", ["$JS.EVENT.ADVISORY.>", "$SYS.ACCOUNT.A.>", "_INBOX.>", "$KV.b.>", "$O.b.M.>", "ä"]
)
def test_other_subjects_may_be_captured(subject: str) -> None:
    assert _created({"subjects": [subject]}, reserved=["hf.>"]).subjects == (subject,)


@pytest.mark.parametrize(
    "asked",
    [
        {"max_msgs": -2},
        {"max_age": SECOND},
        {"republish": {"dest": "z.>"}},
    ],
)
def test_pedantic_requests_are_not_corrected(asked: dict[str, Any]) -> None:
    _created(asked)
    with pytest.raises(ApiError) as caught:
        _created(asked, pedantic=True)
    assert caught.value.err_code == 10157


@pytest.mark.parametrize(
    ("old", "new", "description"),
    [
        ({}, {"name": "T"}, "stream configuration name must match original"),
        ({}, {"storage": "memory"}, "stream configuration update can not change storage type"),
        (
            {},
            {"retention": "workqueue"},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"retention": "workqueue"},
            {"retention": "interest"},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"deny_delete": True},
            {},
            "stream configuration update can not cancel deny message deletes",
        ),
        ({"deny_purge": True}, {}, "stream configuration update can not cancel deny purge"),
        ({"allow_msg_ttl": True}, {}, "message TTL status can not be disabled"),
        (
            {"allow_msg_counter": True},
            {},
            "stream configuration update can not change message counter setting",
        ),
        (
            {},
            {"allow_msg_counter": True},
            "stream configuration update can not change message counter setting",
        ),
        ({"allow_msg_schedules": True}, {}, "message schedules can not be disabled"),
        ({"persist_mode": "async"}, {}, "stream configuration update can not change persist mode"),
        ({}, {"sealed": True, "max_age": 5}, "max age needs to be >= 100ms"),
    ],
)
def test_some_settings_do_not_change(
    old: dict[str, Any], new: dict[str, Any], description: str
) -> None:
    with pytest.raises(ApiError) as caught:
        _updated(old, new)
    assert caught.value == ApiError(500, 10052, description)


def test_other_settings_change() -> None:
    new = {"subjects": ["t.>"], "max_msgs": 5, "retention": "interest", "first_seq": 9}
    assert _updated({"max_age": SECOND}, new).to_json() == SMALLEST | new


def test_a_sealed_stream_keeps_what_it_has() -> None:
    sealed = _updated({"allow_rollup_hdrs": True}, {"sealed": True, "max_age": 5 * SECOND})
    assert (sealed.max_age, sealed.discard) == (0, DiscardPolicy.NEW)
    assert sealed.deny_delete and sealed.deny_purge and not sealed.allow_rollup_hdrs
    again = ApiStreamConfig.parse(sealed.to_json())
    assert check_update(sealed, again) == sealed
    with pytest.raises(ApiError, match="can not unseal a sealed stream"):
        check_update(sealed, _created())


def test_new_limits_of_consumers_must_fit_those_that_are_there() -> None:
    old, new = _created(), _created({"consumer_limits": {"max_ack_pending": 5}})
    check_consumers(old, new, [("a", 0, 5)])
    check_consumers(new, new, [("a", 0, 6)])
    with pytest.raises(ApiError) as caught:
        check_consumers(old, new, [("a", 0, 5), ("b", 0, 6), ("c", 0, 7)])
    expected = ApiError(500, 10069, "change to limits violates consumers: b, c")
    assert caught.value == expected


def test_an_account_limits_its_streams() -> None:
    limits = AccountLimits(storage_max_stream_bytes=111, max_bytes_required=True, max_consumers=3)
    for asked, err_code in [
        ({}, 10113),
        ({"max_bytes": 112}, 10122),
        ({"max_bytes": 111, "max_consumers": 4}, 10026),
    ]:
        with pytest.raises(ApiError) as caught:
            _created(asked, limits=limits)
        assert caught.value.err_code == err_code
    assert _created({"max_bytes": 111}, limits=limits).max_bytes == 111
    assert _created({"max_bytes": 112, "storage": "memory"}, limits=limits).max_bytes == 112


def test_the_streams_of_an_account_share_its_storage() -> None:
    limits = AccountLimits(max_storage=100, max_memory=0)
    limits.check_reservation(memory=False, max_bytes=60, reserved_bytes=40)
    for memory, max_bytes, reserved, err_code in [
        (False, 61, 40, 10047),
        (False, -1, 100, 10047),
        (True, 1, 0, 10028),
    ]:
        with pytest.raises(ApiError) as caught:
            limits.check_reservation(memory=memory, max_bytes=max_bytes, reserved_bytes=reserved)
        assert caught.value.err_code == err_code
    AccountLimits().check_reservation(memory=True, max_bytes=1 << 60, reserved_bytes=1 << 60)


def test_the_store_is_told_of_what_it_enforces() -> None:
    assert store_settings(_created()) == {
        "max_messages": None,
        "max_bytes": None,
        "max_age_seconds": None,
        "discard": "old",
        "durability": None,
        "dedupe_window_seconds": 120.0,
        "max_messages_per_subject": None,
        "discard_new_per_subject": False,
        "subject_marker_seconds": None,
        "deny_delete": False,
        "deny_purge": False,
        "sealed": False,
    }
    asked = {
        "max_msgs": 5,
        "max_bytes": 6,
        "max_age": 1_500_000_000,
        "max_msgs_per_subject": 2,
        "discard": "new",
        "discard_new_per_subject": True,
        "subject_delete_marker_ttl": 3 * SECOND,
        "deny_delete": True,
        "first_seq": 9,
    }
    assert store_settings(_created(asked), durability="stored", creating=True) == {
        "first_seq": 9,
        "max_messages": 5,
        "max_bytes": 6,
        "max_age_seconds": 1.5,
        "discard": "new",
        "durability": "stored",
        "dedupe_window_seconds": 1.5,
        "max_messages_per_subject": 2,
        "discard_new_per_subject": True,
        "subject_marker_seconds": 3.0,
        "deny_delete": True,
        "deny_purge": False,
        "sealed": False,
    }


@pytest.mark.parametrize("asked", [{"storage": "memory"}, {"persist_mode": "async"}])
def test_memory_and_async_mean_applied(asked: dict[str, Any]) -> None:
    assert store_settings(_created(asked), durability="stored")["durability"] == "applied"


def test_durations_beyond_those_of_a_store_are_its_longest() -> None:
    settings = store_settings(_created({"max_age": (1 << 63) - 1, "duplicate_window": 1 << 60}))
    assert settings["max_age_seconds"] == 100.0 * 366 * 86_400
    assert settings["dedupe_window_seconds"] == 86_400.0


def test_a_transform_without_a_destination_changes_nothing() -> None:
    transform = _created({"subject_transform": {"src": "s.*", "dest": "t.$1"}}).input_transform()
    assert transform is not None and transform.apply("s.a") == "t.a"
    assert _created({"subject_transform": {"src": "s.*", "dest": ""}}).input_transform() is None
    assert _created().input_transform() is None


def test_configurations_are_compared_by_what_they_mean() -> None:
    assert _created({"max_msgs": -7}) == _created({"max_msgs": 0, "storage": "file"})
    assert _created({"republish": {"dest": "z.>"}}).republish == Republish(">", "z.>")
    assert _created().storage is StorageType.FILE


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max_msgs": st.integers(-3, 3),
            "max_age": st.sampled_from([0, SECOND, 300 * SECOND]),
            "discard": st.sampled_from(["old", "new"]),
            "retention": st.sampled_from(["limits", "interest", "workqueue"]),
            "allow_msg_ttl": st.booleans(),
            "allow_msg_schedules": st.booleans(),
            "subject_delete_marker_ttl": st.sampled_from([0, SECOND]),
            "deny_purge": st.booleans(),
            "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
            "subjects": st.lists(st.sampled_from(["a", "b.*", "c.>", "*.d"]), max_size=3),
        },
    )
)
def test_a_checked_configuration_stays_as_it_is(asked: dict[str, Any]) -> None:
    try:
        config = _created(asked)
    except ApiError:
        return
    assert check_create(config) == config
    assert check_update(config, ApiStreamConfig.parse(config.to_json())) == config
    bodies.read({"a": bodies.text}, {})
