"""Codecs: what is written comes back, dates included, and older values stay readable."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.values.codec import codec_of
from holdfast.protocol.errors import InvalidArgumentError, ValueUnreadableError
from tests.support.effort import examples

JSON, MSGPACK = codec_of("json"), codec_of("msgpack")
NOON = dt.datetime(2026, 11, 23, 12, 0, 0, 250_000, dt.UTC)
ZONES = tuple(dt.timezone(dt.timedelta(hours=hours)) for hours in (0, 5.5, -8))
#: What msgpack's timestamps and all zones can represent.
DATES = st.datetimes(
    dt.datetime(1970, 1, 2), dt.datetime(9000, 1, 1), timezones=st.sampled_from(ZONES)
)
KEYS = st.sampled_from(["$date", "$$date", "$$$date", "a$date", "$dates", "date", "", "k"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | DATES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=12,
)


@given(VALUES)
@settings(max_examples=examples(200))
def test_every_value_comes_back_with_its_dates(value: Any) -> None:
    for codec in (JSON, MSGPACK):
        assert codec.decode(codec.encode(value)) == value


def test_dates_are_written_in_the_forms_that_others_read() -> None:
    assert JSON.encode({"at": NOON}) == b'{"at":{"$date":"2026-11-23T12:00:00.250000Z"}}'
    assert JSON.decode(b'[{"$date":"2026-11-23T13:00:00.25+01:00"}]') == [NOON]
    found = JSON.decode(JSON.encode(NOON.astimezone(ZONES[1])))
    assert (found, found.tzinfo) == (NOON, dt.UTC)
    assert MSGPACK.encode(NOON)[1:2] == b"\xff", "the timestamp extension, -1"
    assert MSGPACK.decode(MSGPACK.encode(NOON)) == NOON


@pytest.mark.parametrize(
    "value",
    [
        *({"$date": 7}, {"$date": "soon"}, {"$date": "2026-11-23"}),
        *({"$date": "2026-11-23T12:00:00"}, {"$date": "0001-01-01T00:00:00+14:00"}),
        {"$date": "2026-11-23T12:00:00Z", "more": 1},
    ],
)
def test_json_that_names_no_moment_is_left_as_it_is(value: Any) -> None:
    assert JSON.decode(json.dumps(value).encode()) == value
    assert JSON.decode(JSON.encode(value)) == value


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
@pytest.mark.parametrize(
    "value", [NOON.replace(tzinfo=None), NOON.date(), {"at": [NOON.time()]}, object()]
)
def test_what_has_no_time_zone_or_no_form_is_refused(codec: Any, value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        codec.encode(value)


def test_a_timestamp_that_python_cannot_hold_is_unreadable() -> None:
    with pytest.raises(ValueUnreadableError):
        MSGPACK.decode(b"\xc7\x0c\xff\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff")


@pytest.mark.parametrize("codec", ["yaml", "", 5, object(), json, b"json"])
def test_what_is_no_codec_is_refused_when_the_handle_is_made(codec: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec_of(codec)
    assert caught.value.fields["argument"] == "codec"
