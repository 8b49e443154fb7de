"""What the headers of a published message ask for, and whether its stream allows that.

`PublishChecks.check` reads all headers of JetStream. Its checks come in nats-server's order, as far
as they need no message of the stream. The others become conditions, which the stream's owner checks
when it stores the message: they are in what `check` returns.

Most messages have no header of JetStream. For them one search of the block is all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api import errors, headers
from holdfast.gateway.jetstream.api.headers import get_raw
from holdfast.gateway.jetstream.api.names import is_subject
from holdfast.gateway.jetstream.api.publishing.lifetime import message_ttl
from holdfast.gateway.jetstream.api.publishing.schedules import ScheduledMessage, ScheduleRules
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.times import SECOND
from holdfast.protocol.limits import MAX_HEADER_BLOCK_BYTES

#: Without these bytes in it, no header of a block is JetStream's.
OF_JETSTREAM: Final = b"\r\nNats-"
#: Names of headers, without `Nats-`.
_MSG_ID: Final = b"Msg-Id"
_EXPECTED_STREAM: Final = b"Expected-Stream"
_EXPECTED_LAST: Final = b"Expected-Last-Sequence"
_EXPECTED_SUBJECT_LAST: Final = b"Expected-Last-Subject-Sequence"
_EXPECTED_SUBJECT: Final = b"Expected-Last-Subject-Sequence-Subject"
_EXPECTED_MSG_ID: Final = b"Expected-Last-Msg-Id"
_ROLLUP: Final = b"Rollup"
_TTL: Final = b"TTL"
_INCREMENT: Final = b"Incr"
_SOURCE: Final = b"Stream-Source"
_SCHEDULES: Final = b"\r\nNats-Schedule"
_BATCH_ID: Final = b"\r\nNats-Batch-Id:"
_BATCH_SEQUENCE: Final = b"\r\nNats-Batch-Sequence:"
_BATCH_COMMIT: Final = b"\r\nNats-Batch-Commit:"
_NOT_WITH_INCREMENTS: Final = (
    *(_ROLLUP, _EXPECTED_STREAM, _EXPECTED_MSG_ID, _EXPECTED_SUBJECT),
    *(_EXPECTED_LAST, _EXPECTED_SUBJECT_LAST),
)
#: More digits than a counter needs, and few enough to add quickly.
_MAX_INCREMENT_DIGITS: Final = 128
_MAX_DIGITS: Final = 18
#: No stream has it: an expectation that is no number is never met.
_NO_SEQ: Final = (1 << 63) - 1
MAX_BATCH_ID_LENGTH: Final = 64
#: Messages of an atomic batch.
MAX_BATCH_MESSAGES: Final = 1000


class PublishOptions(NamedTuple):
    """What a message asks for, checked; None and "" are not asked for."""

    #: The headers as they are stored.
    block: bytes = b""
    msg_id: str = ""
    #: Of the stream.
    expected_last_seq: int | None = None
    #: Of the subject, or of what `expected_subject` matches; 0 is that there is none.
    expected_last_subject_seq: int | None = None
    expected_subject: str = ""
    expected_last_msg_id: str = ""
    #: `sub` or `all`.
    rollup: str = ""
    #: Seconds, or NEVER.
    ttl: int | None = None
    #: What a counter is to be changed by: digits with or without a sign.
    increment: str = ""
    schedule: ScheduledMessage | None = None
    #: The subject of a schedule that goes with this message.
    stopped_schedule: str = ""


class PublishChecks:
    """What one stream's configuration allows."""

    def __init__(self, config: ApiStreamConfig) -> None:
        self._config: Final = config
        self._max_bytes: Final = config.max_msg_size if config.max_msg_size >= 0 else 1 << 62
        self._schedules: Final = ScheduleRules(
            config.allow_msg_schedules, config.allow_msg_ttl, config.subjects
        )

    def check(self, subject: str, block: bytes, payload: bytes, now_ms: int) -> PublishOptions:
        """Return what a message asks for. `subject` is the one that is stored. Raises ApiError."""
        config = self._config
        if config.sealed:
            raise errors.stream_sealed()
        if headers.is_status(block):
            block = headers.cut_status(block)
        if OF_JETSTREAM not in block:
            if config.allow_msg_counter:
                raise errors.counter_increment_missing()
            self._check_size(block, payload)
            return PublishOptions(block)
        asked = _fields(block)
        increment = self._increment(asked, payload)
        expected_stream = asked.get(_EXPECTED_STREAM)
        if expected_stream and expected_stream != config.name:
            raise errors.stream_not_match()
        ttl_text = asked.get(_TTL)
        ttl = message_ttl(ttl_text) if ttl_text else None
        if ttl and not config.allow_msg_ttl:
            raise errors.message_ttl_disabled()
        subject_seq = _expected(asked.get(_EXPECTED_SUBJECT_LAST))
        expected_subject = asked.get(_EXPECTED_SUBJECT, "")
        if expected_subject and (subject_seq is None or not is_subject(expected_subject)):
            raise errors.expected_sequence_missing()
        schedule, stopped = None, ""
        if _SCHEDULES in block:
            schedule = self._schedules.check(subject, block, now_ms)
            if schedule is not None:
                block = _with_rollup(block, asked)
            stopped = self._schedules.stopped(subject, block)
        if asked.get(_SOURCE):
            raise errors.source_header_not_allowed()
        rollup = self._rollup(asked)
        if config.allow_msg_counter and not increment:
            raise errors.counter_increment_missing()
        self._check_size(block, payload)
        if ttl_text:
            ttl, block = self._lifetime(ttl, block)
        return PublishOptions(
            block,
            asked.get(_MSG_ID, ""),
            _expected(asked.get(_EXPECTED_LAST)),
            subject_seq,
            expected_subject,
            asked.get(_EXPECTED_MSG_ID, ""),
            rollup,
            ttl,
            increment,
            schedule,
            stopped,
        )

    def _check_size(self, block: bytes, payload: bytes) -> None:
        if len(block) + len(payload) > self._max_bytes:
            raise errors.message_too_large()
        if len(block) > MAX_HEADER_BLOCK_BYTES:
            raise errors.header_too_large()

    def _increment(self, asked: Mapping[bytes, str], payload: bytes) -> str:
        increment = asked.get(_INCREMENT)
        if not increment:
            return ""
        digits = increment[1:] if increment[0] in "+-" else increment
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_INCREMENT_DIGITS):
            raise errors.counter_increment_invalid()
        if not self._config.allow_msg_counter:
            raise errors.counter_disabled()
        if payload:
            raise errors.counter_has_payload()
        if any(asked.get(name) for name in _NOT_WITH_INCREMENTS):
            raise errors.counter_increment_invalid()
        return increment

    def _rollup(self, asked: Mapping[bytes, str]) -> str:
        rollup = asked.get(_ROLLUP, "").lower()
        if not rollup:
            return ""
        if not self._config.allow_rollup_hdrs or self._config.deny_purge:
            raise errors.rollup_failed("rollup not permitted")
        if rollup not in ("sub", "all"):
            raise errors.rollup_failed(f'rollup value invalid: "{rollup[:80]}"')
        return rollup

    def _lifetime(self, ttl: int | None, block: bytes) -> tuple[int | None, bytes]:
        """Return how long the message stays, and its headers, which say the same."""
        config = self._config
        if ttl is None:
            raise errors.message_ttl_invalid()
        shortest = config.subject_delete_marker_ttl // SECOND
        if 0 < ttl < shortest and config.max_msgs_per_subject != 1:
            # Else the marker of a former message could outlive this one.
            block = headers.append(headers.without(block, "Nats-TTL"), {"Nats-TTL": shortest})
            return shortest, block
        return ttl or None, block


class BatchCommit(Enum):
    """Whether a message ends its batch."""

    #: No: more is to come.
    NO = auto()
    #: Yes, and it is the last one.
    WITH_MESSAGE = auto()
    #: Yes, and it is not stored itself: the one before is the last.
    WITHOUT_MESSAGE = auto()


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A message's place in an atomic batch."""

    batch_id: str
    sequence: int
    commit: BatchCommit = BatchCommit.NO

    @property
    def size(self) -> int:
        """How many messages the batch has, up to this one."""
        return self.sequence - (self.commit is BatchCommit.WITHOUT_MESSAGE)


def has_batch(block: bytes) -> bool:
    """Return whether a message is of an atomic batch."""
    return _BATCH_ID in block and bool(get_raw(block, _BATCH_ID))


def batch_part(block: bytes, config: ApiStreamConfig) -> BatchPart | None:
    """Return a message's place in an atomic batch, None if it is of none. Raises ApiError.

    An unknown word in `Nats-Batch-Commit` ends a batch that has begun: `commit_error` tells it.
    """
    batch_id = get_raw(block, _BATCH_ID)
    if not batch_id:
        return None
    if config.sealed:
        raise errors.stream_sealed()
    if not config.allow_atomic:
        raise errors.batch_disabled()
    if len(batch_id) > MAX_BATCH_ID_LENGTH:
        raise errors.batch_id_invalid()
    sequence = get_raw(block, _BATCH_SEQUENCE) or ""
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= _MAX_DIGITS):
        raise errors.batch_sequence_missing()
    commit = get_raw(block, _BATCH_COMMIT)
    kind = BatchCommit.NO
    if commit is not None:
        kind = BatchCommit.WITHOUT_MESSAGE if commit == "eob" else BatchCommit.WITH_MESSAGE
    return BatchPart(batch_id, int(sequence), kind)


def commit_error(block: bytes) -> errors.ApiError | None:
    """Return what is wrong with how a message ends its batch: then the whole batch is dropped."""
    commit = get_raw(block, _BATCH_COMMIT)
    return None if commit in (None, "1", "eob") else errors.batch_commit_invalid()


def unsupported_in_batch(options: PublishOptions) -> errors.ApiError | None:
    """Return what is wrong with a message of a batch that would be right alone."""
    if options.expected_last_msg_id:
        return errors.batch_header_unsupported("Nats-Expected-Last-Msg-Id")
    return None


def _fields(block: bytes) -> dict[bytes, str]:
    """Return the first value of each header of JetStream, by its name without `Nats-`."""
    found: dict[bytes, str] = {}
    start = block.find(OF_JETSTREAM)
    while start >= 0:
        start += len(OF_JETSTREAM)
        end = block.find(b"\r\n", start)
        name, colon, value = block[start : end if end >= 0 else None].partition(b":")
        if colon and name not in found:
            found[name] = value.lstrip(b" ").decode(errors="replace")
        start = block.find(OF_JETSTREAM, start)
    return found


def _with_rollup(block: bytes, asked: dict[bytes, str]) -> bytes:
    """A schedule takes the place of an earlier one of its subject."""
    rollup = asked.get(_ROLLUP, "").lower()
    if not rollup:
        asked[_ROLLUP] = "sub"
        return headers.append(block, {"Nats-Rollup": "sub"})
    if rollup != "sub":
        raise errors.schedule_rollup_invalid()
    return block


def _expected(text: str | None) -> int | None:
    """Return an expected seq. One that is no number is never met, and not ignored."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return _NO_SEQ
    return int(text)
