"""Schedules: when they are due, what is checked, and what is published."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api import headers
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.publishing.cron import CronPattern
from holdfast.gateway.jetstream.api.publishing.lifetime import NEVER, message_ttl
from holdfast.gateway.jetstream.api.publishing.schedules import (
    MessageSchedule,
    ScheduledMessage,
    ScheduleRules,
    fired,
    is_schedule,
    stored_schedule,
)


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _text(time_ms: int | None) -> str:
    assert time_ms is not None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()[:19]


@pytest.mark.parametrize(
    ("pattern", "after", "following"),
    [
        ("* * * * * *", "2026-11-22T01:02:03", "2026-11-22T01:02:04"),
        ("0 * * * * *", "2026-11-22T01:02:03", "2026-11-22T01:03:00"),
        ("*/10 * * * * *", "2026-11-22T01:02:59", "2026-11-22T01:03:00"),
        ("5/20 * * * * *", "2026-11-22T01:02:03", "2026-11-22T01:02:05"),
        ("30 30 12 * * *", "2026-11-22T12:30:30", "2026-11-23T12:30:30"),
        ("0 0 8-10 * * *", "2026-11-22T10:30:00", "2026-11-23T08:00:00"),
        ("0 0 0 1 1 *", "2026-11-22T01:02:03", "2027-01-01T00:00:00"),
        ("0 0 0 31 * *", "2026-11-22T01:02:03", "2026-12-31T00:00:00"),
        ("0 0 0 29 2 *", "2026-11-22T01:02:03", "2028-02-29T00:00:00"),
        ("0 0 0 * * 0", "2026-11-22T01:02:03", "2026-11-29T00:00:00"),
        ("0 0 0 ? * MON", "2026-11-22T01:02:03", "2026-11-23T00:00:00"),
        ("0 0 0 * jan-mar mon,wed,Fri", "2026-11-22T01:02:03", "2027-01-01T00:00:00"),
        # Both days restricted: either may match.
        ("0 0 0 13 * fri", "2026-11-22T01:02:03", "2026-11-27T00:00:00"),
        # One of them says "every": both must match.
        ("0 0 0 13 * *", "2026-11-22T01:02:03", "2026-12-13T00:00:00"),
        ("0 0 0 */2 * fri", "2026-11-22T01:02:03", "2026-11-23T00:00:00"),
        ("1,2,5 0 0 * * *", "2026-11-22T00:00:02", "2026-11-22T00:00:05"),
    ],
)
def test_a_pattern_matches_next(pattern: str, after: str, following: str) -> None:
    schedule = MessageSchedule.parse(pattern)
    assert schedule.repeats
    assert _text(schedule.next_after(_ms(after))) == following


@pytest.mark.parametrize(
    ("name", "following"),
    [
        ("@yearly", "2027-01-01T00:00:00"),
        ("@annually", "2027-01-01T00:00:00"),
        ("@monthly", "2026-12-01T00:00:00"),
        ("@weekly", "2026-11-29T00:00:00"),
        ("@daily", "2026-11-23T00:00:00"),
        ("@midnight", "2026-11-23T00:00:00"),
        ("@hourly", "2026-11-22T02:00:00"),
        ("@every 5m", "2026-11-22T01:07:03"),
        ("@every 1h30m", "2026-11-22T02:32:03"),
    ],
)
def test_some_patterns_have_names(name: str, following: str) -> None:
    assert _text(MessageSchedule.parse(name).next_after(_ms("2026-11-22T01:02:03"))) == following


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "bad", "@never", "* * * * *", "* * * * * * *", "60 * * * * *", "* 60 * * * *"),
        *("* * 24 * * *", "* * * 0 * *", "* * * 32 * *", "* * * * 13 *", "* * * * * 7"),
        *("5-1 * * * * *", "1-2-3 * * * * *", "*/0 * * * * *", "1/2/3 * * * * *", "x * * * * *"),
        *("-1 * * * * *", "1- * * * * *", "* * * * foo *", "9999999999 * * * * *", "٢ * * * * *"),
        *("@at", "@at x", "@at 2026-11-22", "@every", "@every x", "@every 999ms", "@every -5s"),
        "* " * 3_000,
        "1,2," * 1_000,
    ],
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        MessageSchedule.parse(pattern)


def test_what_never_comes_is_never_due() -> None:
    schedule = MessageSchedule.parse("0 0 0 30 2 *")
    assert schedule.next_after(_ms("2026-11-22T01:02:03")) is None
    assert MessageSchedule.parse("* * * * * *").next_after(_ms("9999-12-31T23:59:59")) is None
    assert MessageSchedule.parse("0 0 0 31 12 *").next_after(1 << 62) is None


def test_a_single_time_is_due_once_and_at_once_if_it_has_passed() -> None:
    at, past = "2026-11-22T01:02:03", _ms("2020-01-01T00:00:00")
    schedule = MessageSchedule.parse(f"@at {at}+00:00")
    assert not schedule.repeats
    assert _text(schedule.first_ms(past)) == at
    assert _text(schedule.first_ms(_ms("2030-01-01T00:00:00"))) == at
    assert _text(schedule.next_after(past)) == at
    assert schedule.next_after(_ms(at)) is None
    assert schedule.next_ms(_ms(at), _ms(at) + 5) is None
    assert MessageSchedule.parse("@at 1970-01-01T00:00:00.0001Z").at_ms == 1


def test_what_was_missed_is_skipped() -> None:
    due, now = _ms("2026-11-22T01:00:00"), _ms("2026-11-25T07:30:10")
    assert _text(MessageSchedule.parse("@hourly").next_ms(due, due + 40)) == "2026-11-22T02:00:00"
    assert _text(MessageSchedule.parse("@hourly").next_ms(due, now)) == "2026-11-25T08:00:00"
    assert _text(MessageSchedule.parse("@every 5m").next_ms(due, now)) == "2026-11-25T07:35:10"


def test_a_time_zone_moves_with_its_clocks() -> None:
    zone = ZoneInfo("Europe/Amsterdam")
    daily = CronPattern.parse("0 30 2 * * *", zone)

    def after(text: str) -> str:
        seconds = daily.next_after(_ms(text) // 1000)
        assert seconds is not None
        return datetime.fromtimestamp(seconds, zone).isoformat()

    assert after("2026-11-22T12:00:00") == "2026-11-23T02:30:00+01:00"
    assert after("2026-07-01T12:00:00") == "2026-07-02T02:30:00+02:00"
    # This night has no half past two.
    assert after("2026-03-28T12:00:00") == "2026-03-30T02:30:00+02:00"
    # This one has two.
    assert after("2026-10-24T12:00:00") == "2026-10-25T02:30:00+02:00"
    assert after("2026-10-25T00:30:00") == "2026-10-25T02:30:00+01:00"


@pytest.mark.parametrize(
    "zone", ["UTC", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe"]
)
@pytest.mark.parametrize("pattern", ["0 0 0 * * *", "0 15 * * * *", "59 59 23 28-31 * *"])
def test_the_next_match_is_the_first_that_matches(zone: str, pattern: str) -> None:
    cron = CronPattern.parse(pattern, ZoneInfo(zone))
    at = int(datetime(2017, 10, 14, 12, tzinfo=UTC).timestamp())
    for _ in range(5):
        following = cron.next_after(at)
        assert following is not None
        # Whatever was skipped does not match: looked at by the quarter of an hour.
        for between in range(at + 900 - at % 900, following, 900):
            assert cron._step(datetime.fromtimestamp(between, cron.zone)) != 0
        assert cron._step(datetime.fromtimestamp(following, cron.zone)) == 0
        at = following


@given(
    st.tuples(*(st.sampled_from(["*", "*/7", "3", "1-5", "2,4"]) for _ in range(6))),
    st.integers(0, 4_000_000_000),
)
def test_next_is_after_and_matches(fields: tuple[str, ...], at: int) -> None:
    cron = CronPattern.parse(" ".join(fields), UTC)
    following = cron.next_after(at)
    if following is None:
        return
    assert following > at
    moment = datetime.fromtimestamp(following, UTC)
    assert cron._step(moment) == 0
    assert moment - datetime.fromtimestamp(at, UTC) < timedelta(days=6 * 366)
    assert moment.second in cron.seconds and moment.hour in cron.hours


@given(st.text(alphabet="0123456789*/,-@ atevrymon?", max_size=25))
def test_noise_is_a_pattern_or_a_value_error(noise: str) -> None:
    for text in (noise, f"@every {noise}", f"@at {noise}", f"{noise} * * * * *"):
        try:
            MessageSchedule.parse(text).next_after(0)
        except ValueError:
            continue


@pytest.mark.parametrize("field", range(6))
def test_a_field_of_commas_matches_nothing_and_costs_nothing(field: int) -> None:
    fields = ["*"] * 6
    fields[field] = ",,"
    assert MessageSchedule.parse(" ".join(fields)).next_after(0) is None


NOW_MS = _ms("2026-11-22T01:02:03")
RULES = ScheduleRules(True, True, ("ps.>",))
GOOD = {"Nats-Schedule": "@every 5m", "Nats-Schedule-Target": "ps.b"}


def _block(fields: dict[str, str]) -> bytes:
    return headers.build(fields)


def test_a_schedule_is_read_and_read_again_when_it_is_stored() -> None:
    block = _block(
        GOOD
        | {"Nats-Schedule-Source": "ps.c", "Nats-Schedule-TTL": "5m", "Nats-Schedule-Rollup": "sub"}
    )
    expected = ScheduledMessage(MessageSchedule(every_ms=300_000), "ps.b", "ps.c", "5m", "sub")
    assert RULES.check("ps.a", block, NOW_MS) == expected
    assert stored_schedule(block) == expected
    assert is_schedule(block)


def test_a_message_without_a_pattern_is_none() -> None:
    for fields in ({}, {"X": "1"}, {"Nats-Schedule": ""}, {"Nats-Schedule-Target": "ps.b"}):
        block = _block(fields)
        assert RULES.check("ps.a", block, NOW_MS) is None
        assert stored_schedule(block) is None
        assert not is_schedule(block)


@pytest.mark.parametrize(
    ("fields", "err_code"),
    [
        ({"Nats-Schedule": "bad"}, 10189),
        ({"Nats-Schedule": "@every 500ms"}, 10189),
        ({"Nats-Schedule": "0 0 0 30 2 *", "Nats-Schedule-Target": "ps.b"}, 10189),
        ({"Nats-Schedule": "@every 5m"}, 10190),
        (GOOD | {"Nats-Schedule-Target": "zz"}, 10190),
        (GOOD | {"Nats-Schedule-Target": "ps.a"}, 10190),
        (GOOD | {"Nats-Schedule-Target": "ps.*"}, 10190),
        (GOOD | {"Nats-Schedule-Source": "ps.b"}, 10203),
        (GOOD | {"Nats-Schedule-Source": "ps.a"}, 10203),
        (GOOD | {"Nats-Schedule-Source": "ps.*"}, 10203),
        (GOOD | {"Nats-Schedule-Source": "zz"}, 10203),
        (GOOD | {"Nats-Schedule-TTL": "abc"}, 10191),
        (GOOD | {"Nats-Schedule-Rollup": "all"}, 10192),
        (GOOD | {"Nats-Schedule-Time-Zone": "UTC"}, 10189),
        (GOOD | {"Nats-Schedule": "@hourly", "Nats-Schedule-Time-Zone": "Foo/Bar"}, 10223),
        (GOOD | {"Nats-Schedule": "@hourly", "Nats-Schedule-Time-Zone": ""}, 10223),
        (GOOD | {"Nats-Schedule": "@hourly", "Nats-Schedule-Time-Zone": "../../etc/passwd"}, 10223),
        (GOOD | {"Nats-Schedule": "@hourly", "Nats-Schedule-Time-Zone": "x" * 9999}, 10223),
        (GOOD | {"Nats-Schedule": "@hourly", "Nats-Schedule-Time-Zone": "Local"}, 10223),
        ({"Nats-Schedule-Time-Zone": "bad"}, 10223),
    ],
)
def test_bad_schedules_are_refused_as_nats_server_does(
    fields: dict[str, str], err_code: int
) -> None:
    with pytest.raises(ApiError) as caught:
        RULES.check("ps.a", _block(fields), NOW_MS)
    assert caught.value.err_code == err_code


def test_a_cron_pattern_may_have_a_time_zone() -> None:
    fields = GOOD | {"Nats-Schedule": "@daily", "Nats-Schedule-Time-Zone": "Europe/Amsterdam"}
    scheduled = RULES.check("ps.a", _block(fields), NOW_MS)
    assert scheduled is not None
    assert _text(scheduled.schedule.next_after(NOW_MS)) == "2026-11-22T23:00:00"


@pytest.mark.parametrize(
    "fields", [GOOD, {"Nats-Schedule": "bad"}, {"Nats-Schedule-Time-Zone": "?"}]
)
def test_a_stream_without_schedules_takes_none(fields: dict[str, str]) -> None:
    rules = ScheduleRules(False, True, ("ps.>",))
    with pytest.raises(ApiError) as caught:
        rules.check("ps.a", _block(fields), NOW_MS)
    assert caught.value.err_code == 10188
    with pytest.raises(ApiError) as caught:
        rules.stopped("ps.a", _block({"Nats-Schedule-Next": "purge", "Nats-Scheduler": "ps.b"}))
    assert caught.value.err_code == 10188


def test_a_ttl_of_copies_needs_a_stream_with_ttls() -> None:
    rules = ScheduleRules(True, False, ("ps.>",))
    with pytest.raises(ApiError) as caught:
        rules.check("ps.a", _block(GOOD | {"Nats-Schedule-TTL": "5m"}), NOW_MS)
    assert caught.value.err_code == 10166


def test_a_message_stops_a_schedule() -> None:
    stop = {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "ps.b"}
    assert RULES.stopped("ps.a", _block(stop)) == "ps.b"
    assert RULES.stopped("ps.a", _block({})) == ""
    for fields in (
        {"Nats-Scheduler": "ps.b"},
        stop | {"Nats-Schedule-Next": "later"},
        stop | {"Nats-Scheduler": "ps.a"},
        stop | {"Nats-Scheduler": "ps.*"},
        {"Nats-Schedule-Next": "purge"},
    ):
        with pytest.raises(ApiError) as caught:
            RULES.stopped("ps.a", _block(fields))
        assert caught.value.err_code == 10212


def test_a_copy_has_the_headers_of_the_message_but_no_schedule() -> None:
    block = _block(
        GOOD
        | {
            "X": "1",
            "Nats-Schedule-TTL": "5m",
            "Nats-Schedule-Rollup": "sub",
            "Nats-Msg-Id": "m",
            "Nats-TTL": "1h",
            "Nats-Rollup": "sub",
            "Nats-Expected-Last-Sequence": "5",
            "Nats-Expected-Stream": "S",
            "Y": "2",
        }
    )
    scheduled = stored_schedule(block)
    assert scheduled is not None
    copy = fired(block, "ps.a", scheduled, NOW_MS)
    assert list(headers.items(copy)) == [
        ("X", "1"),
        ("Y", "2"),
        ("Nats-Scheduler", "ps.a"),
        ("Nats-Schedule-Next", "2026-11-22T01:02:03Z"),
        ("Nats-TTL", "5m"),
        ("Nats-Rollup", "sub"),
    ]


def test_the_copy_of_a_single_time_removes_its_schedule() -> None:
    block = _block({"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "ps.b"})
    scheduled = stored_schedule(block)
    assert scheduled is not None
    copy = fired(block, "ps.a", scheduled, None)
    assert copy == _block({"Nats-Scheduler": "ps.a", "Nats-Schedule-Next": "purge"})
    # And it is stored: the gateway that publishes it is not refused for these headers.
    assert not is_schedule(copy)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("00", 0),
        ("5s", 5),
        ("1h30m", 5400),
        ("1.9s", 1),
        ("never", NEVER),
        ("NEVER", NEVER),
        ("0", None),
        ("-1", None),
        ("500ms", None),
        ("abc", None),
        ("", None),
        ("5 ", None),
        ("٢", None),
        ("9" * 5000, None),
    ],
)
def test_a_ttl_is_seconds_a_duration_or_never(text: str, seconds: int | None) -> None:
    assert message_ttl(text) == seconds
