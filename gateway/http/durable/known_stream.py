"""What a gateway knows of one durable stream, and what an append does to it.

Pure. The gateway decides appends by what it knows, several at a time, and names the last seq and
the serving epoch that it knows. So an append that another gateway did not know of is refused by
the owner, and whoever is wrong knows it at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import msgpack

from holdfast.client.handles.serving_wire import ServedCursor, ServingHead
from holdfast.gateway.http.durable.bodies import JSON, is_content_type, media_type, messages_of
from holdfast.gateway.http.durable.offsets import offset_text
from holdfast.gateway.http.durable.producers import (
    Producer,
    ProducerVerdict,
    Producing,
    judge,
    producer_of,
    row_of,
)
from holdfast.gateway.http.durable.requests import AppendRequest
from holdfast.gateway.http.durable.stream_record import (
    CLOSED,
    FORKS_CURSOR,
    PRODUCERS_CURSOR,
    STREAM_CURSOR,
    DurableMessage,
    DurableState,
    ForkRow,
    StreamConfig,
)
from holdfast.gateway.http.problems import ProblemError

#: Messages of one request: they are one batch, with a marker and the state.
MAX_MESSAGES: Final = 4000


class Told(Enum):
    """What an append comes to."""

    STORED = "stored"
    REPEATED = "repeated"
    ALREADY_CLOSED = "already_closed"


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """What the client of an append is told."""

    told: Told
    next_offset: str
    closed: bool
    producer: Producing | None = None


@dataclass(slots=True)
class Plan:
    """An append that the owner has to accept: messages, and what is recorded with them."""

    answer: AppendAnswer
    messages: list[DurableMessage] = field(default_factory=list)
    state: DurableState | None = None
    producer_rows: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class KnownStream:
    """A stream that exists."""

    config: StreamConfig
    state: DurableState
    epoch: int
    last_seq: int
    producers: dict[str, Producer]
    forks: dict[int, ForkRow]

    @property
    def tail_seq(self) -> int:
        """The seq of the next message, or that of the marker that closed the stream."""
        return self.state.closed_seq if self.state.closed else self.last_seq + 1

    @property
    def tail(self) -> str:
        """The offset of the end."""
        return offset_text(self.tail_seq)

    def plan(self, request: AppendRequest, body: bytes) -> Plan:
        """Return what an append has to do, and take it as done. Raises ProblemError."""
        if request.producing is not None:
            repeated = self._repeated(request, request.producing)
            if repeated is not None:
                return repeated
        if self.state.closed:
            if request.closed and not body and request.producing is None:
                return Plan(AppendAnswer(Told.ALREADY_CLOSED, self.tail, closed=True))
            raise ProblemError(409, "stream_closed", "the stream is closed", self.closed_headers())
        messages = self._messages(request, body)
        self._check_writer_seq(request)
        return self._accept(request, messages)

    def closed_headers(self) -> dict[str, str]:
        """Return the headers of a refusal because the stream is closed."""
        return {"Stream-Closed": "true", "Stream-Next-Offset": self.tail}

    def _repeated(self, request: AppendRequest, producing: Producing) -> Plan | None:
        known = self.producers.get(producing.id)
        if self.state.closed and producing != self.state.closed_by:
            if known is not None and producing.epoch < known.epoch:
                judge(known, producing)
            raise ProblemError(409, "stream_closed", "the stream is closed", self.closed_headers())
        if judge(known, producing) is ProducerVerdict.NEW:
            return None
        assert known is not None
        highest = replace(producing, seq=known.seq)
        return Plan(AppendAnswer(Told.REPEATED, self.tail, self.state.closed, highest))

    def _messages(self, request: AppendRequest, body: bytes) -> list[bytes]:
        if not body:
            if not request.closed:
                raise ProblemError(400, "empty_body", "the body is empty")
            return []
        if not request.content_type or not is_content_type(request.content_type):
            raise ProblemError(400, "invalid_request", "Content-Type is missing")
        if media_type(request.content_type) != media_type(self.config.content_type):
            raise ProblemError(
                409, "content_type_mismatch", f"this stream is {self.config.content_type}"
            )
        messages = messages_of(body, self.config.content_type)
        if not messages:
            raise ProblemError(400, "empty_array", "an array without elements appends nothing")
        check_count(messages)
        return messages

    def _check_writer_seq(self, request: AppendRequest) -> None:
        seq, last = request.writer_seq, self.state.writer_seq
        if seq is not None and last is not None and seq.encode() <= last.encode():
            raise ProblemError(409, "writer_seq_regression", f"the last Stream-Seq was {last}")

    def _accept(self, request: AppendRequest, values: Sequence[bytes]) -> Plan:
        messages = new_messages(values, closed=request.closed)
        state = self.state
        if request.writer_seq is not None:
            state = replace(state, writer_seq=request.writer_seq)
        if request.closed:
            closed_seq = self.last_seq + len(messages)
            state = replace(
                state, closed=True, closed_seq=closed_seq, closed_by=request.producing
            )
        changed = None if state is self.state else state
        self.state = state
        self.last_seq += len(messages)
        rows = []
        if request.producing is not None:
            rows.append(row_of(request.producing))
            self.producers[request.producing.id] = Producer(
                request.producing.epoch, request.producing.seq
            )
        answer = AppendAnswer(Told.STORED, self.tail, state.closed, request.producing)
        return Plan(answer, messages, changed, rows)


def new_messages(values: Sequence[bytes], *, closed: bool) -> list[DurableMessage]:
    """Return the messages of one request."""
    messages = [DurableMessage(value) for value in values]
    if closed:
        messages.append(DurableMessage(b"", CLOSED))
    return messages


def check_count(messages: Sequence[bytes]) -> None:
    """Raise ProblemError if one request has too many messages."""
    if len(messages) > MAX_MESSAGES:
        raise ProblemError(413, "too_large", f"at most {MAX_MESSAGES} messages in one request")


def known_of(head: ServingHead, cursors: Mapping[str, ServedCursor]) -> KnownStream | None:
    """Return the stream that a store holds, or None. Raises ValueError if the record makes no
    sense."""
    found = cursors.get(STREAM_CURSOR)
    if found is None:
        return None
    try:
        config = StreamConfig.from_bytes(found.config)
        state = DurableState.from_bytes(found.state)
        producers = PRODUCERS_CURSOR in cursors and cursors[PRODUCERS_CURSOR].rows
        forks = FORKS_CURSOR in cursors and cursors[FORKS_CURSOR].rows
        return KnownStream(
            config,
            state,
            state.epoch,
            head.last_seq,
            dict(producer_of(data) for _, data in producers or ()),
            {row: ForkRow.from_bytes(data) for row, data in forks or ()},
        )
    except (TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise ValueError(f"a record of the wrong shape: {error!r}") from error


def content_of(body: bytes, content_type: str) -> list[bytes]:
    """Return the messages that a stream is created with. Raises ProblemError."""
    messages = messages_of(body, content_type)
    check_count(messages)
    return messages


def is_json(content_type: str) -> bool:
    """Tell whether a stream keeps the bounds of its messages."""
    return media_type(content_type) == JSON
