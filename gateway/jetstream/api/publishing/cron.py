"""Cron patterns of six fields, in a time zone: when do they match next?

The fields are second, minute, hour, day of month, month and day of week. A field is a list of
ranges with steps: `*`, `5`, `1-5`, `*/10`, `5/10`, `mon-fri`, `1,3,5`. If both days are restricted,
either may match. The rules are nats-server's (ADR-51), which are those of `robfig/cron`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final, Self

_YEARS: Final = 5
_MONTHS: Final = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
#: Of each field: the lowest and the highest number, and names for numbers.
_FIELDS: Final[tuple[tuple[int, int, dict[str, int]], ...]] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_MAX_PATTERN_LENGTH: Final = 1000
_MAX_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class CronPattern:
    """One pattern: the numbers that each field matches."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    #: A day must match both fields, since one of them says "every".
    both_days: bool
    zone: tzinfo

    @classmethod
    def parse(cls, text: str, zone: tzinfo) -> Self:
        """Raises ValueError."""
        parts = text.split() if len(text) <= _MAX_PATTERN_LENGTH else []
        if len(parts) != len(_FIELDS):
            raise ValueError(f"a pattern has {len(_FIELDS)} fields, not {len(parts)}")
        fields = [_field(part, *bounds) for part, bounds in zip(parts, _FIELDS, strict=True)]
        seconds, minutes, hours, days, months, weekdays = (numbers for numbers, _ in fields)
        both_days = fields[3][1] or fields[5][1]
        return cls(seconds, minutes, hours, days, months, weekdays, both_days, zone)

    def next_after(self, seconds: int) -> int | None:
        """Return the first second after this one that matches, None if the next five years have
        none. Both are seconds since 1970.
        """
        if not (self.seconds and self.minutes and self.hours and self.months):
            # A field of commas alone. Looking for it second by second would take minutes.
            return None
        at = seconds + 1
        try:
            local = datetime.fromtimestamp(at, self.zone)
            last_year = local.year + _YEARS
            while local.year <= last_year:
                step = self._step(local)
                if step == 0:
                    return at
                at = max(at + 1, at + step)
                local = datetime.fromtimestamp(at, self.zone)
        except (OverflowError, ValueError, OSError):
            # Beyond the year 9999.
            return None
        return None

    def _step(self, local: datetime) -> int:
        """Return how far it is to the next moment that may match; 0 if this one does.

        Hours and less are steps of real time, so that what a change of the clocks skips is never
        matched, and what it repeats is matched twice.
        """
        if local.month not in self.months:
            first = local.replace(day=1, hour=0, minute=0, second=0, fold=0)
            following = (first + timedelta(days=32)).replace(day=1)
            return int(following.timestamp() - local.timestamp())
        if not self._matches_day(local):
            midnight = local.replace(hour=0, minute=0, second=0, fold=0)
            return int((midnight + timedelta(days=1)).timestamp() - local.timestamp())
        if local.hour not in self.hours:
            return 3600 - local.minute * 60 - local.second
        if local.minute not in self.minutes:
            return 60 - local.second
        return 0 if local.second in self.seconds else 1

    def _matches_day(self, local: datetime) -> bool:
        day = local.day in self.days
        weekday = local.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.both_days else (day or weekday)


def _field(
    text: str, lowest: int, highest: int, names: dict[str, int]
) -> tuple[frozenset[int], bool]:
    """Return the numbers of a field, and whether it says "every"."""
    numbers: set[int] = set()
    every = False
    for part in filter(None, text.split(",")):
        span, slash, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        step = _number(step_text, {}) if slash else 1
        if first_text in ("*", "?"):
            first, last = lowest, highest
            every = every or step <= 1
        else:
            first = _number(first_text, names)
            last = _number(last_text, names) if dash else first
        if slash and not dash:
            last = highest
        if not lowest <= first <= last <= highest or step < 1:
            raise ValueError(f"{part[:40]!r} is not within {lowest} to {highest}")
        numbers.update(range(first, last + 1, step))
    return frozenset(numbers), every


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise ValueError(f"{text[:40]!r} is no number")
    return int(text)
