"""From messages of an origin to appends: what becomes of each, and which are stored together. Pure.

- A copy has the headers of its original byte for byte, without those that speak to a publish
  (`Nats-Expected-`, `Nats-Batch-`). A sourced one says where it comes from.
- A mirror has the seqs and times of its origin. Seqs that the origin no longer has, or that are not
  wanted, are filled, and what fills them goes in the same batch: nobody ever sees it.
- Copies are in the order of their origin, and a batch is stored as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.client.handles.serving_wire import NewMessage, ServedMessage
from holdfast.gateway.jetstream.api import headers
from holdfast.gateway.jetstream.api.publishing.lifetime import NEVER, message_ttl
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.stream_source import SOURCE_HEADER, StreamSource
from holdfast.gateway.jetstream.publishing.publish_rules import stored_id
from holdfast.protocol.limits import (
    MAX_HEADER_BLOCK_BYTES,
    MAX_MESSAGE_SUBJECT_BYTES,
    MAX_MSG_ID_BYTES,
    MAX_VALUE_BYTES,
)

#: Of one batch, well below a frame and a broadcast.
_BATCH_BYTES: Final = 400_000
_BATCH_MESSAGES: Final = 1000
#: More than what a message has besides value and headers.
_MESSAGE_BYTES: Final = MAX_MESSAGE_SUBJECT_BYTES + MAX_MSG_ID_BYTES + 64
_FILLER_BYTES: Final = 64
#: The life of a message that should have gone already.
_SHORTEST_TTL_SECONDS: Final = 1.0
_ROLLUPS: Final = frozenset(("sub", "all"))


@dataclass(slots=True)
class CopyBatch:
    """What is stored together: messages, and among those of a mirror what fills its gaps."""

    messages: list[NewMessage] = field(default_factory=list)
    #: The seq at the origin of each.
    originals: list[int] = field(default_factory=list)
    #: Seqs of the mirror that are removed again: those of the messages that fill gaps.
    filled: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether another message of this size may be stored with the others."""
        return not self.messages or (
            len(self.messages) < _BATCH_MESSAGES and self.size_bytes + size_bytes <= _BATCH_BYTES
        )

    def add(self, message: NewMessage, origin_seq: int, size_bytes: int) -> None:
        """Add a copy."""
        self.messages.append(message)
        self.originals.append(origin_seq)
        self.size_bytes += size_bytes

    def fill(self, seq: int, behind: ServedMessage) -> None:
        """Fill one seq of a mirror, before the message that comes behind it."""
        self.filled.append(seq)
        self.add(NewMessage("", b"", options={"time_ms": behind.time_ms}), seq, _FILLER_BYTES)

    @property
    def end_seq(self) -> int:
        """The seq at the origin of the last message."""
        return self.originals[-1]

    def singly(self) -> Iterator[CopyBatch]:
        """Yield a batch for each message, for a stream that has room for a few only."""
        for message, seq in zip(self.messages, self.originals, strict=True):
            yield CopyBatch([message], [seq], [seq] if seq in self.filled else [])


class Copying:
    """How one stream copies from one origin."""

    def __init__(
        self, config: ApiStreamConfig, source: StreamSource, now_ms: Callable[[], int]
    ) -> None:
        self.is_mirror: Final = config.mirror is not None
        self._config: Final = config
        self._source: Final = source
        self._now_ms = now_ms
        self._transform = source.transformer()
        self._input = config.input_transform()
        self._rolls_up = config.allow_rollup_hdrs and not config.deny_purge

    def batches(self, messages: Sequence[ServedMessage], next_seq: int) -> Iterator[CopyBatch]:
        """Yield what is to be stored for messages of the origin, in order of seq. `next_seq` is
        that of the next message of a mirror; what is below it the mirror has."""
        batch = CopyBatch()
        for message in messages:
            if self.is_mirror:
                if message.seq < next_seq:
                    continue
                for gap in range(next_seq, message.seq):
                    if not batch.has_room(_FILLER_BYTES):
                        yield batch
                        batch = CopyBatch()
                    batch.fill(gap, message)
                next_seq = message.seq + 1
            copy = self.copy(message)
            size_bytes = len(copy.value) + len(copy.headers) + _MESSAGE_BYTES
            if not batch.has_room(size_bytes) or len(copy.value) > MAX_VALUE_BYTES:
                if batch.messages:
                    yield batch
                batch = CopyBatch()
            batch.add(copy, message.seq, size_bytes)
            if len(copy.value) > MAX_VALUE_BYTES:
                # It is uploaded, alone.
                yield batch
                batch = CopyBatch()
        if batch.messages:
            yield batch

    def copy(self, message: ServedMessage) -> NewMessage:
        """Return what is appended for one message of the origin."""
        config, block = self._config, message.headers
        subject = self._transform(message.subject)
        if self._input is not None:
            subject = self._input.apply(subject) or subject
        options: dict[str, Any] = {}
        ttl_seconds, msg_id = None, None
        if b"\r\nNats-" in block:
            block = headers.without_prefix(block, "Nats-Expected-")
            block = headers.without_prefix(block, "Nats-Batch-")
            rollup = headers.get(block, "Nats-Rollup")
            if rollup in _ROLLUPS and self._rolls_up:
                options["rollup"] = rollup
            ttl_seconds = self._lifetime(message, options)
            given_id = headers.get(block, "Nats-Msg-Id")
            if given_id and not self.is_mirror and config.duplicate_window:
                msg_id = stored_id(given_id)
        if self.is_mirror:
            options["time_ms"] = message.time_ms
        else:
            block = self._with_source(block, message)
        return NewMessage(subject, message.value, block, msg_id, None, ttl_seconds, options or None)

    def _with_source(self, block: bytes, message: ServedMessage) -> bytes:
        # That of its origin, if that was sourced too, is of no use here.
        block = headers.without(block, SOURCE_HEADER)
        value = self._source.header(message.seq, message.subject)
        with_source = headers.append(block, [(SOURCE_HEADER, value)])
        return with_source if len(with_source) <= MAX_HEADER_BLOCK_BYTES else block

    def _lifetime(self, message: ServedMessage, options: dict[str, Any]) -> float | None:
        """Return how long a copy lives, None if its own header does not say it."""
        text = headers.get(message.headers, "Nats-TTL")
        lifetime = message_ttl(text) if text and self._config.allow_msg_ttl else None
        if lifetime is None:
            return None
        if lifetime == NEVER:
            options["never_expires"] = True
            return None
        passed_seconds = 0.0
        if self.is_mirror:
            passed_seconds = (self._now_ms() - message.time_ms) / 1000
        return max(_SHORTEST_TTL_SECONDS, lifetime - passed_seconds)
