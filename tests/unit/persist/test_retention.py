"""Limits as a write meets them: sizes, totals and rates, and the configuration that names them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.store.retention import NEVER, Retention, TokenBucket
from holdfast.protocol import frames
from holdfast.protocol.errors import InvalidArgumentError, LimitExceededError, RateLimitedError
from holdfast.protocol.limits import (
    DEDUPE_WINDOW_SECONDS,
    MAX_DEDUPE_WINDOW_SECONDS,
    MAX_DESCRIPTION_BYTES,
    MAX_RETENTION_SECONDS,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.store_config import DEFAULT_CONFIG, Discard, StoreConfig, ttl_ms


def retention(**settings: Any) -> Retention:
    return Retention(DEFAULT_CONFIG.changed(settings), has_ttl=False)


# The configuration
configs = st.builds(
    StoreConfig,
    max_messages=st.none() | st.integers(1, (1 << 63) - 1),
    max_bytes=st.none() | st.integers(1, (1 << 63) - 1),
    max_age_seconds=st.none() | st.floats(0.001, MAX_RETENTION_SECONDS),
    max_message_bytes=st.none() | st.integers(1, 1 << 40),
    max_messages_per_second=st.none() | st.integers(1, 10_000) | st.floats(0.01, 1e9),
    max_bytes_per_second=st.none() | st.floats(0.01, 1e12),
    discard=st.sampled_from(Discard),
    durability=st.sampled_from(Durability),
    dedupe_window_seconds=st.floats(0, MAX_DEDUPE_WINDOW_SECONDS),
    description=st.text(max_size=100),
)


@given(configs)
def test_a_configuration_survives_the_wire(config: StoreConfig) -> None:
    assert StoreConfig.from_wire(frames.unpack(frames.pack(config.to_wire()))) == config


def test_the_wire_names_only_what_is_not_the_default() -> None:
    assert DEFAULT_CONFIG.to_wire() == {}
    config = StoreConfig(max_messages=3, discard=Discard.NEW, durability=Durability.APPLIED)
    assert config.to_wire() == {"max_messages": 3, "discard": "new", "durability": "applied"}


def test_a_setting_left_out_stays_and_none_is_the_default_again() -> None:
    config = DEFAULT_CONFIG.changed({"max_messages": 3, "dedupe_window_seconds": 1})
    assert config.changed({"max_bytes": 9}) == StoreConfig(
        max_messages=3, max_bytes=9, dedupe_window_seconds=1.0
    )
    again = config.changed({"max_messages": None, "dedupe_window_seconds": None})
    assert again == DEFAULT_CONFIG
    assert again.dedupe_window_seconds == DEDUPE_WINDOW_SECONDS


def test_a_name_of_a_later_version_is_passed_over_when_read_and_refused_when_set() -> None:
    assert StoreConfig.from_wire({"max_messages": 3, "from_the_future": 1}).max_messages == 3
    with pytest.raises(InvalidArgumentError, match="from_the_future"):
        DEFAULT_CONFIG.changed({"from_the_future": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_messages", 0),
        ("max_messages", 1.5),
        ("max_messages", True),
        ("max_messages", 1 << 63),
        ("max_bytes", -1),
        ("max_bytes", "many"),
        ("max_age_seconds", 0),
        ("max_age_seconds", float("nan")),
        ("max_age_seconds", float("inf")),
        ("max_age_seconds", MAX_RETENTION_SECONDS * 2),
        ("max_messages_per_second", 0),
        ("max_bytes_per_second", [1]),
        ("discard", "both"),
        ("durability", "perhaps"),
        ("durability", 9),
        ("durability", [3]),
        ("dedupe_window_seconds", -1),
        ("dedupe_window_seconds", MAX_DEDUPE_WINDOW_SECONDS + 1),
        ("description", b"bytes"),
        ("description", "x" * (MAX_DESCRIPTION_BYTES + 1)),
        ("description", "\ud800"),
        (7, 7),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(name: Any, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=str(name)):
        DEFAULT_CONFIG.changed({name: value})


def test_a_ttl_is_whole_milliseconds_and_at_least_one() -> None:
    assert [ttl_ms(each) for each in (1, 0.25, 1e-9)] == [1000, 250, 1]
    for wrong in (0, -1, None, "1", float("nan"), MAX_RETENTION_SECONDS * 2):
        with pytest.raises(InvalidArgumentError, match="ttl_seconds"):
            ttl_ms(wrong)


# Sizes and totals
def test_what_could_never_be_kept_is_refused_whatever_is_discarded() -> None:
    for discard in Discard:
        limited = retention(max_bytes=10, max_message_bytes=8, discard=discard)
        limited.check_size(8)
        with pytest.raises(LimitExceededError) as caught:
            limited.check_size(9)
        assert caught.value.fields == {"what": "max_message_bytes", "limit": 8, "value": 9}
        with pytest.raises(LimitExceededError, match="max_bytes is 10; this would make it 11"):
            retention(max_bytes=10, discard=discard).check_size(11)


def test_a_full_store_refuses_growth_and_nothing_else() -> None:
    full = retention(max_messages=3, max_bytes=30, discard="new")
    full.check_total((3, 30), (3, 30))
    # It was larger when the limit came.
    full.check_total((5, 50), (5, 49))
    with pytest.raises(LimitExceededError, match="max_messages is 3; this would make it 4"):
        full.check_total((3, 3), (4, 4))
    with pytest.raises(LimitExceededError, match="max_bytes is 30; this would make it 31"):
        full.check_total((3, 30), (3, 31))
    retention(max_messages=3, max_bytes=30).check_total((3, 30), (4, 31))


def test_plain_messages_are_looked_at_one_by_one_only_where_a_limit_needs_it() -> None:
    assert retention(max_messages=1, max_age_seconds=1).takes_any([5, 100])
    assert retention(max_bytes=100, max_message_bytes=100).takes_any([5, 100])
    assert not retention(max_bytes=99).takes_any([5, 100])
    assert not retention(max_message_bytes=99).takes_any([5, 100])
    assert not retention(max_messages=10, discard="new").takes_any([5])
    assert not retention(max_messages_per_second=1e9).takes_any([5])


# Rates
def test_a_second_s_worth_may_come_at_once_and_then_the_rate_holds() -> None:
    limited = retention(max_messages_per_second=10)
    for _ in range(10):
        limited.take(1000, 1, 5)
    with pytest.raises(RateLimitedError) as caught:
        limited.take(1000, 1, 5)
    assert caught.value.retryable
    assert caught.value.fields == {
        "what": "max_messages_per_second",
        "limit": 10,
        "retry_after_seconds": 0.1,
    }
    limited.take(1100, 1, 5)
    with pytest.raises(RateLimitedError):
        limited.take(1199, 1, 5)
    limited.take(1200, 1, 5)


def test_what_one_rate_refuses_is_not_taken_from_the_other() -> None:
    limited = retention(max_messages_per_second=2, max_bytes_per_second=10)
    limited.take(0, 1, 10)
    for _ in range(5):
        with pytest.raises(RateLimitedError, match="max_bytes_per_second"):
            limited.take(0, 1, 10)
    limited.take(1000, 1, 10)


def test_a_batch_larger_than_the_bucket_gets_through_and_leaves_a_debt() -> None:
    bucket = TokenBucket(10)
    assert bucket.wait_seconds(0, 40) == 0
    bucket.take(40)
    assert bucket.wait_seconds(0, 1) == pytest.approx(3.1)
    assert bucket.wait_seconds(3100, 1) == 0


def test_a_rate_below_one_a_second_lets_the_first_through() -> None:
    bucket = TokenBucket(0.1)
    assert bucket.wait_seconds(0, 1) == 0
    bucket.take(1)
    assert bucket.wait_seconds(0, 1) == pytest.approx(10)
    assert bucket.wait_seconds(10_000, 1) == 0


# When something is due
def test_a_store_without_limits_and_ttl_has_nothing_to_watch() -> None:
    assert Retention.needed(DEFAULT_CONFIG, has_ttl=False) is None
    assert Retention.needed(DEFAULT_CONFIG, has_ttl=True) is not None
    assert Retention.needed(StoreConfig(max_messages=1), has_ttl=False) is not None


def test_what_is_due_is_the_earliest_of_what_was_written() -> None:
    limited = retention(max_age_seconds=10)
    assert limited.is_due(0), "nothing is known of what the file holds"
    limited.due_at = NEVER
    limited.wrote(1000)
    limited.wrote(2000)
    assert limited.due_at == 11_000
    limited.wrote_expiring(5000)
    limited.wrote_expiring(50_000)
    assert (limited.is_due(4999), limited.is_due(5000)) == (False, True)
