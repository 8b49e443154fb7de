"""Schedules: messages that are published later, once or again and again (ADR-51).

A message with the header `Nats-Schedule` is stored like any other, and is the schedule: when it is
due, a copy is published to the subject in `Nats-Schedule-Target`. Patterns are `@at <RFC 3339>`,
`@every <duration>`, `@hourly` and the like, and six fields of cron, which alone may have a time
zone. Everything is checked when the schedule is published; `fired` makes the copy.

Times are milliseconds since 1970. Nothing here has a clock.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Final

from holdfast.gateway.jetstream.api import errors, headers, names
from holdfast.gateway.jetstream.api.publishing.cron import CronPattern
from holdfast.gateway.jetstream.api.publishing.lifetime import message_ttl
from holdfast.gateway.jetstream.api.times import (
    MILLISECOND,
    format_ms,
    parse_duration,
    parse_time,
)
from holdfast.protocol.subject_filters import overlaps

PURGE: Final = "purge"
_PATTERN: Final = b"\r\nNats-Schedule:"
_TIME_ZONE: Final = b"\r\nNats-Schedule-Time-Zone:"
_TTL: Final = b"\r\nNats-Schedule-TTL:"
_ROLLUP: Final = b"\r\nNats-Schedule-Rollup:"
_TARGET: Final = b"\r\nNats-Schedule-Target:"
_SOURCE: Final = b"\r\nNats-Schedule-Source:"
_SCHEDULER: Final = b"\r\nNats-Scheduler:"
_NEXT: Final = b"\r\nNats-Schedule-Next:"
#: What a copy does not take over: it would not be stored, or it would be a schedule again.
_NOT_COPIED: Final = ("Nats-Schedule", "Nats-Expected-")
_NOT_COPIED_WHOLE: Final = ("Nats-Msg-Id", "Nats-TTL", "Nats-Rollup")
_NAMED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MIN_INTERVAL_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class MessageSchedule:
    """When a schedule is due. Exactly one of the three is set."""

    at_ms: int | None = None
    every_ms: int = 0
    cron: CronPattern | None = None

    @classmethod
    def parse(cls, pattern: str, zone: tzinfo | None = None) -> MessageSchedule:
        """Raises ValueError."""
        if pattern.startswith("@at "):
            _check_no_zone(zone)
            return cls(at_ms=-(-parse_time(pattern[4:]) // MILLISECOND))
        if pattern.startswith("@every "):
            _check_no_zone(zone)
            every_ms = parse_duration(pattern[7:]) // MILLISECOND
            if every_ms < _MIN_INTERVAL_MS:
                raise ValueError("an interval has at least a second")
            return cls(every_ms=every_ms)
        return cls(cron=CronPattern.parse(_NAMED.get(pattern, pattern), zone or UTC))

    @property
    def repeats(self) -> bool:
        return self.at_ms is None

    def first_ms(self, stored_ms: int) -> int | None:
        """Return when a schedule that was stored then is due first: at once, if its time has
        passed. None: never, or not within years.
        """
        return self.at_ms if self.at_ms is not None else self.next_after(stored_ms)

    def next_after(self, time_ms: int) -> int | None:
        """Return when it is due after `time_ms`; None if it is not any more."""
        if self.at_ms is not None:
            return self.at_ms if self.at_ms > time_ms else None
        if self.every_ms:
            return (time_ms + 500) // 1000 * 1000 + self.every_ms
        assert self.cron is not None
        seconds = self.cron.next_after(time_ms // 1000)
        return None if seconds is None else seconds * 1000

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        """Return when it is due after it was due at `due_ms` and published at `now_ms`: what was
        missed in between is skipped.
        """
        following = self.next_after(due_ms)
        if following is not None and following < now_ms and self.repeats:
            return self.next_after((now_ms + 500) // 1000 * 1000)
        return following


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """What a schedule says: when it is due, and what is published then."""

    schedule: MessageSchedule
    target: str
    #: The last message of this subject is published in place of the schedule's own, if there is
    #: one.
    source: str = ""
    #: Of the copy: its `Nats-TTL` and `Nats-Rollup`; "" is none.
    ttl: str = ""
    rollup: str = ""


def is_schedule(block: bytes) -> bool:
    """Return whether a stored message is a schedule, by its headers."""
    return bool(headers.get_raw(block, _PATTERN))


def stored_schedule(block: bytes) -> ScheduledMessage | None:
    """Return what the headers of a stored message say; None if it is no schedule that can fire."""
    try:
        schedule = _schedule(block)
    except errors.ApiError:
        return None
    target = headers.get_raw(block, _TARGET)
    if schedule is None or not target:
        return None
    return ScheduledMessage(
        schedule,
        target,
        headers.get_raw(block, _SOURCE) or "",
        headers.get_raw(block, _TTL) or "",
        headers.get_raw(block, _ROLLUP) or "",
    )


@dataclass(frozen=True, slots=True)
class ScheduleRules:
    """What a stream allows of schedules."""

    allowed: bool
    allow_msg_ttl: bool
    subjects: Sequence[str]

    def check(self, subject: str, block: bytes, now_ms: int) -> ScheduledMessage | None:
        """Return what a published message schedules, None if it is no schedule. Raises ApiError.

        The checks come in nats-server's order.
        """
        try:
            schedule = _schedule(block)
            if schedule is not None and schedule.first_ms(now_ms) is None:
                raise errors.schedule_pattern_invalid()
        except errors.ApiError as error:
            raise error if self.allowed else errors.schedules_disabled() from None
        if schedule is None:
            return None
        if not self.allowed:
            raise errors.schedules_disabled()
        ttl = headers.get_raw(block, _TTL) or ""
        if ttl and message_ttl(ttl) is None:
            raise errors.schedule_ttl_invalid()
        rollup = headers.get_raw(block, _ROLLUP) or ""
        if rollup not in ("", "sub"):
            raise errors.schedule_rollup_invalid()
        if ttl and not self.allow_msg_ttl:
            raise errors.message_ttl_disabled()
        target = headers.get_raw(block, _TARGET) or ""
        if not names.is_literal(target) or target == subject:
            raise errors.schedule_target_invalid()
        source = headers.get_raw(block, _SOURCE) or ""
        if source and (source in (target, subject) or not names.is_literal(source)):
            raise errors.schedule_source_invalid()
        if not self._captures(target):
            raise errors.schedule_target_invalid()
        if source and not self._captures(source):
            raise errors.schedule_source_invalid()
        return ScheduledMessage(schedule, target, source, ttl, rollup)

    def stopped(self, subject: str, block: bytes) -> str:
        """Return the subject of the schedule that a message stops: it goes when the message is
        stored. "" if there is none. Raises ApiError.

        That the subject's last message is a schedule, or that there is none, is for the stream to
        check.
        """
        following = headers.get_raw(block, _NEXT)
        scheduler = headers.get_raw(block, _SCHEDULER) or ""
        if not following:
            if scheduler:
                raise errors.schedule_scheduler_invalid()
            return ""
        if following != PURGE or scheduler == subject or not names.is_literal(scheduler):
            raise errors.schedule_scheduler_invalid()
        if not self.allowed:
            raise errors.schedules_disabled()
        return scheduler

    def _captures(self, subject: str) -> bool:
        return any(overlaps(each, subject) for each in self.subjects)


def fired(block: bytes, scheduler: str, scheduled: ScheduledMessage, next_ms: int | None) -> bytes:
    """Return the headers of a copy: those of the schedule, or of the message of its source.

    `scheduler` is the subject of the schedule, `next_ms` when it is due again; None removes it.
    """
    for start in _NOT_COPIED:
        block = headers.without_prefix(block, start)
    for name in _NOT_COPIED_WHOLE:
        block = headers.without(block, name)
    again = scheduled.schedule.repeats and next_ms is not None
    fields = [
        ("Nats-Scheduler", scheduler),
        ("Nats-Schedule-Next", format_ms(next_ms or 0) if again else PURGE),
    ]
    if scheduled.ttl:
        fields.append(("Nats-TTL", scheduled.ttl))
    if scheduled.rollup:
        fields.append(("Nats-Rollup", scheduled.rollup))
    return headers.append(block, fields)


def _schedule(block: bytes) -> MessageSchedule | None:
    zone_name = headers.get_raw(block, _TIME_ZONE)
    zone = None if zone_name is None else _zone(zone_name)
    pattern = headers.get_raw(block, _PATTERN)
    if not pattern:
        return None
    try:
        return MessageSchedule.parse(pattern, zone)
    except ValueError:
        raise errors.schedule_pattern_invalid() from None


@lru_cache(64)
def _zone(name: str) -> tzinfo:
    """The time zone of the database of the machine.

    `Local` is none: gateways on several machines would disagree.
    """
    try:
        if name and name not in ("Local", "localtime") and len(name) <= 80:
            return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        pass
    raise errors.schedule_time_zone_invalid()


def _check_no_zone(zone: tzinfo | None) -> None:
    if zone is not None:
        raise ValueError("only cron patterns have a time zone")
