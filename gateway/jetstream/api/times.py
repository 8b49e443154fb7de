"""Times and durations as JetStream writes them: RFC 3339 with nanoseconds, and text like `1m30s`.

Inside, a time is an integer of nanoseconds since 1970 in UTC, a duration an integer of nanoseconds;
stores have milliseconds. No time is `ZERO_TIME`, which is Go's.
"""

from __future__ import annotations

import functools
import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
#: How "never" and "nothing there" are written.
ZERO_TIME: Final = "0001-01-01T00:00:00Z"
MAX_INT64: Final = (1 << 63) - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: In nanoseconds: year 1 as Go's zero time, and the end of the year 9999.
ZERO_TIME_NS: Final = (date(1, 1, 1) - date(1970, 1, 1)).days * 24 * HOUR
_LAST_TIME_NS: Final = ((date(9999, 12, 31) - date(1970, 1, 1)).days + 1) * 24 * HOUR - SECOND
#: Seconds whose text is kept: messages of a page have few of them.
_SECONDS_KEPT: Final = 256
_RFC_3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_DURATION_PART: Final = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS: Final = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "μs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}


def format_time(time_ns: int) -> str:
    """Return the time in UTC with as many of nine digits as it needs.

    A time outside of the years 1 to 9999 becomes their first or last second.
    """
    seconds, fraction = divmod(min(max(time_ns, ZERO_TIME_NS), _LAST_TIME_NS), SECOND)
    text = _format_seconds(seconds)
    if not fraction:
        return f"{text}Z"
    return f"{text}.{fraction:09d}".rstrip("0") + "Z"


@functools.lru_cache(_SECONDS_KEPT)
def _format_seconds(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def format_ms(time_ms: int) -> str:
    """Return a time of a store, which has milliseconds; 0 is no time."""
    return format_time(time_ms * MILLISECOND) if time_ms else ZERO_TIME


def parse_time(text: str) -> int:
    """Return the nanoseconds of an RFC 3339 time with `Z` or an offset. Raises ValueError."""
    match = _RFC_3339.fullmatch(text)
    if not match:
        raise ValueError(f"parsing time {text[:80]!r} as RFC 3339")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    sign, offset_hours, offset_minutes = match[8], int(match[9] or 0), int(match[10] or 0)
    if offset_hours > 23 or offset_minutes > 59:
        raise ValueError(f"parsing time {text[:80]!r}: time zone offset out of range")
    try:
        since_epoch = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    except ValueError as error:
        raise ValueError(f"parsing time {text[:80]!r}: {error}") from error
    offset = (offset_hours * 60 + offset_minutes) * MINUTE
    time_ns = (since_epoch.days * 86_400 + since_epoch.seconds) * SECOND
    time_ns += int((match[7] or "0")[:9].ljust(9, "0"))
    return time_ns + offset if sign == "-" else time_ns - offset


def format_duration(duration_ns: int) -> str:
    """Return the duration as Go writes it: `1h0m0s`, `1m30s`, `1.5s`, `100ms`, `0s`."""
    sign, left = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    if left == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", MICROSECOND), ("ms", MILLISECOND)):
        if left < 1000 * size:
            return f"{sign}{_decimal(left, size)}{unit}"
    hours, left = divmod(left, HOUR)
    minutes, left = divmod(left, MINUTE)
    text = f"{_decimal(left, SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else f"{sign}{text}"


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a Go duration: `1h30m`, `1.5s`, `-2ms`, `0`. Raises ValueError."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, at = 0, 0
    # Longer is no duration that fits, and integers of many digits are slow to read.
    while rest and at < len(rest) <= 200:
        match = _DURATION_PART.match(rest, at)
        if not match or not (match[1] or match[2]):
            break
        size = _UNITS[match[3]]
        total += int(match[1] or "0") * size
        if match[2]:
            total += int(match[2]) * size // 10 ** len(match[2])
        at = match.end()
    else:
        if at and total <= MAX_INT64:
            return -total if text[0] == "-" else total
    raise ValueError(f"time: invalid duration {text[:80]!r}")


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    if not fraction:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0")
