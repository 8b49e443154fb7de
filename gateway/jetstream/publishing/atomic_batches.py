"""Atomic batches: messages that are stored together or not at all. Pure.

A publisher sends messages 1, 2, ... of a batch by their headers, and the last one says that it is.
Until then they wait here, in memory: a batch that is not committed is lost with its gateway, and
its publisher, who has no PubAck, begins again. At the commit they become one batch of the stream's
owner, which stores all or none and checks all expectations against the stream before it.

Batches are bounded in number and size, with what all streams of the gateway hold; one that falls
silent is abandoned.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.client.handles.serving_wire import NewMessage
from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.advisories import BatchAbandonReason
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.headers import append, get_raw
from holdfast.gateway.jetstream.api.limits import API_LEVEL
from holdfast.gateway.jetstream.api.publishing.publish_headers import (
    MAX_BATCH_MESSAGES,
    BatchCommit,
    BatchPart,
    batch_part,
    commit_error,
    unsupported_in_batch,
)
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import MAX_OPEN_BATCHES, MAX_STAGED_BATCH_BYTES

#: nats-server's bound of how long a batch may be silent.
BATCH_SILENCE_SECONDS: Final = 10.0
_LEVEL: Final = b"\r\nNats-Required-Api-Level:"
_MESSAGE_BYTES: Final = 512


class WholeBatch(NamedTuple):
    """A batch that is to be stored."""

    batch_id: str
    messages: list[NewMessage]


class RefusedPart(NamedTuple):
    """A message is refused, and its batch with it if a reason says so."""

    error: ApiError
    batch_id: str = ""
    abandoned: BatchAbandonReason | None = None


class _Batch:
    __slots__ = ("bytes", "messages", "silent_at")

    def __init__(self) -> None:
        self.messages: list[PortMessage] = []
        self.bytes = 0
        self.silent_at = 0.0


class _Abandoned(Exception):
    """The batch ends with this message."""

    def __init__(self, error: ApiError, reason: BatchAbandonReason | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.reason = reason


class AtomicBatches:
    """The open batches of one stream."""

    def __init__(self, load: PublishLoad) -> None:
        self._load = load
        self._open: dict[str, _Batch] = {}
        self._bytes = 0

    @property
    def wake_at(self) -> float:
        """When `expire` has something to do."""
        return min((batch.silent_at for batch in self._open.values()), default=float("inf"))

    def receive(
        self, message: PortMessage, rules: PublishRules, now: float
    ) -> WholeBatch | RefusedPart | None:
        """Take a message of a batch. None: it waits for the others, and is answered so."""
        try:
            part = batch_part(message.headers, rules.config)
            assert part is not None, "its headers have been searched for a batch"
            _check_size(message, rules)
            batch = self._batch(part)
        except ApiError as error:
            return RefusedPart(error)
        try:
            self._add(batch, message, part, now)
        except _Abandoned as abandoned:
            self._drop(part.batch_id)
            return RefusedPart(abandoned.error, part.batch_id, abandoned.reason)
        if part.commit is BatchCommit.NO:
            return None
        self._drop(part.batch_id)
        try:
            return WholeBatch(part.batch_id, _checked(batch.messages, rules))
        except ApiError as error:
            return RefusedPart(error)

    def expire(self, now: float) -> list[str]:
        """Drop the batches that have been silent for too long, and return their ids."""
        silent = [name for name, batch in self._open.items() if batch.silent_at <= now]
        for batch_id in silent:
            self._drop(batch_id)
        return silent

    def clear(self) -> None:
        """Drop all."""
        for batch_id in list(self._open):
            self._drop(batch_id)

    def _batch(self, part: BatchPart) -> _Batch:
        """Return the batch, which begins with its first message. Raises ApiError."""
        batch = self._open.get(part.batch_id)
        if batch is not None:
            return batch
        if part.sequence != 1:
            if part.size > MAX_BATCH_MESSAGES:
                raise errors.batch_too_large(MAX_BATCH_MESSAGES)
            raise errors.batch_incomplete()
        is_full = len(self._open) >= MAX_OPEN_BATCHES or self._bytes >= MAX_STAGED_BATCH_BYTES
        if is_full or not self._load.can_stage(_MESSAGE_BYTES):
            raise errors.batch_too_many_in_flight()
        batch = self._open[part.batch_id] = _Batch()
        return batch

    def _add(self, batch: _Batch, message: PortMessage, part: BatchPart, now: float) -> None:
        """Add a message. Raises _Abandoned."""
        error = commit_error(message.headers)
        if error is not None:
            raise _Abandoned(error)
        level = get_raw(message.headers, _LEVEL)
        if level and not (level.isdecimal() and int(level[:9]) <= API_LEVEL):
            raise _Abandoned(errors.required_api_level(), BatchAbandonReason.UNSUPPORTED)
        if part.sequence != len(batch.messages) + 1 or not part.size:
            raise _Abandoned(errors.batch_incomplete(), BatchAbandonReason.INCOMPLETE)
        size_bytes = len(message.payload) + len(message.headers) + _MESSAGE_BYTES
        if part.size > MAX_BATCH_MESSAGES or self._bytes + size_bytes > MAX_STAGED_BATCH_BYTES:
            too_large = errors.batch_too_large(MAX_BATCH_MESSAGES)
            raise _Abandoned(too_large, BatchAbandonReason.LARGE)
        if not self._load.can_stage(size_bytes):
            raise _Abandoned(errors.batch_too_many_in_flight(), BatchAbandonReason.LARGE)
        if part.commit is BatchCommit.WITHOUT_MESSAGE:
            last = batch.messages[-1]
            block = append(last.headers, {"Nats-Batch-Commit": 1})
            batch.messages[-1] = last._replace(headers=block)
        else:
            batch.messages.append(message)
            batch.bytes += size_bytes
            self._bytes += size_bytes
            self._load.staged_bytes += size_bytes
        batch.silent_at = now + BATCH_SILENCE_SECONDS

    def _drop(self, batch_id: str) -> None:
        size_bytes = self._open.pop(batch_id).bytes
        self._bytes -= size_bytes
        self._load.staged_bytes -= size_bytes


def _check_size(message: PortMessage, rules: PublishRules) -> None:
    limit = rules.config.max_msg_size
    if 0 <= limit < len(message.headers) + len(message.payload):
        raise errors.message_too_large()


def _checked(messages: list[PortMessage], rules: PublishRules) -> list[NewMessage]:
    """Return what is appended. Raises ApiError for what no batch may have, and what no message may.

    Owners check expectations against the stream before the batch, so one about what the batch
    itself writes would mean something else.
    """
    appends: list[NewMessage] = []
    written: set[str] = set()
    msg_ids: set[str] = set()
    for message in messages:
        each, asked = rules.check(message)
        unsupported = unsupported_in_batch(asked)
        if unsupported is not None:
            raise unsupported
        if each.msg_id is not None:
            if each.msg_id in msg_ids:
                raise errors.batch_duplicate_message()
            msg_ids.add(each.msg_id)
        if each.expected_last_seq is not None and appends:
            raise errors.wrong_last_sequence_constant()
        if (
            asked.expected_last_subject_seq is not None
            and (asked.expected_subject or each.subject) in written
        ):
            raise errors.wrong_last_sequence_constant()
        if (asked.rollup == "sub" and each.subject in written) or (
            asked.rollup == "all" and appends
        ):
            raise errors.rollup_failed(f"batch rollup {asked.rollup} invalid")
        written.add(each.subject)
        appends.append(each)
    return appends
