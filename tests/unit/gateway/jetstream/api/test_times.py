"""Times and durations are written as Go writes them, and read as Go reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import times
from holdfast.gateway.jetstream.api.times import HOUR, MILLISECOND, MINUTE, SECOND


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_795_309_323_456_000_000, "2026-11-22T01:02:03.456Z"),
        (1_795_309_323_456_789_012, "2026-11-22T01:02:03.456789012Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (times.ZERO_TIME_NS, times.ZERO_TIME),
    ],
)
def test_a_time_has_as_many_digits_as_it_needs(time_ns: int, text: str) -> None:
    assert times.format_time(time_ns) == text
    assert times.parse_time(text) == time_ns


def test_a_time_of_a_store_is_milliseconds_and_none_is_the_zero_time() -> None:
    assert times.format_ms(1_795_309_323_456) == "2026-11-22T01:02:03.456Z"
    assert times.format_ms(0) == "0001-01-01T00:00:00Z"


def test_times_beyond_the_years_of_rfc_3339_become_the_nearest() -> None:
    assert times.format_time(10**30) == "9999-12-31T23:59:59Z"
    assert times.format_time(-(10**30)) == times.ZERO_TIME


def test_offsets_are_understood() -> None:
    expected = times.parse_time("2026-11-22T00:02:03Z")
    assert times.parse_time("2026-11-22T01:32:03+01:30") == expected
    assert times.parse_time("2026-11-21T22:32:03.0-01:30") == expected
    assert times.parse_time("2026-11-22T00:02:03.9999999999Z") == expected + 999_999_999


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "2026-11-22",
            "2026-11-22T01:02:03",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
        ),
        *(
            "2026-11-22T24:00:00Z",
            "2026-11-22t01:02:03z",
            "2026-11-22T01:02:03.Z",
            " 2026-11-22T01:02:03Z",
        ),
        *(
            "2026-11-22T01:02:03+24:00",
            "2026-11-22T01:02:60Z",
            "٢026-11-22T01:02:03Z",
            "0000-01-01T00:00:00Z",
        ),
    ],
)
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ValueError, match="parsing time"):
        times.parse_time(text)


@given(st.integers(times.ZERO_TIME_NS, 253_402_300_799_000_000_000))
def test_times_are_read_as_they_were_written(time_ns: int) -> None:
    assert times.parse_time(times.format_time(time_ns)) == time_ns


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (3 * SECOND, "3s"),
        (1_500 * MILLISECOND, "1.5s"),
        (MINUTE, "1m0s"),
        (4 * MINUTE + 5 * SECOND, "4m5s"),
        (5 * HOUR + 6 * MINUTE + 7_001 * MILLISECOND, "5h6m7.001s"),
        (-HOUR, "-1h0m0s"),
        (times.MAX_INT64, "2562047h47m16.854775807s"),
    ],
)
def test_durations_are_written_as_go_does(duration_ns: int, text: str) -> None:
    assert times.format_duration(duration_ns) == text
    assert times.parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("1h30m", 90 * MINUTE),
        ("+5s", 5 * SECOND),
        ("-1.5h", -90 * MINUTE),
        (".5s", 500 * MILLISECOND),
        ("1.s", SECOND),
        ("1s1s", 2 * SECOND),
        ("10us", 10_000),
        ("10μs", 10_000),
        ("0", 0),
        ("-0", 0),
        ("0.1ns", 0),
    ],
)
def test_durations_are_read_as_go_does(text: str, duration_ns: int) -> None:
    assert times.parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1",
        "s",
        ".s",
        "1x",
        "1h 1m",
        "1 s",
        "1h-1m",
        "9223372036854775808ns",
        "9" * 5000 + "s",
        "3000000h",
    ],
)
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        times.parse_duration(text)


@given(st.integers(-times.MAX_INT64, times.MAX_INT64))
def test_durations_are_read_as_they_were_written(duration_ns: int) -> None:
    assert times.parse_duration(times.format_duration(duration_ns)) == duration_ns


@given(st.text(alphabet="0123456789.hmsnuµ+-Z:T ", max_size=20))
def test_noise_is_a_value_or_a_value_error(noise: str) -> None:
    for parse in (times.parse_duration, times.parse_time):
        try:
            assert isinstance(parse(noise), int)
        except ValueError:
            continue
