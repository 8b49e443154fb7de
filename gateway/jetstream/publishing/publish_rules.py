"""From a published message to an append: what its headers ask for and its stream allows. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.client.handles.serving_wire import NewMessage
from holdfast.gateway.jetstream.api.headers import FIRST_LINE
from holdfast.gateway.jetstream.api.publishing.lifetime import NEVER
from holdfast.gateway.jetstream.api.publishing.publish_headers import (
    OF_JETSTREAM,
    PublishChecks,
    PublishOptions,
)
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import MAX_HEADER_BLOCK_BYTES, MAX_MSG_ID_BYTES, MAX_VALUE_BYTES


class PublishRules:
    """What one stream's configuration makes of messages."""

    def __init__(self, config: ApiStreamConfig, now_ms: Callable[[], int]) -> None:
        self.config: Final = config
        self._checks: Final = PublishChecks(config)
        self._now_ms = now_ms
        self._transform = config.input_transform()
        #: Whether a message without a header of JetStream is stored as it is.
        self.plain = not (config.sealed or config.allow_msg_counter or self._transform)

    def takes_plainly(self, headers: bytes, payload: bytes) -> bool:
        """Return whether a message is stored as it is and asks for nothing, as most are."""
        config = self.config
        return (
            self.plain
            and len(payload) <= MAX_VALUE_BYTES
            and (not headers or (headers.startswith(FIRST_LINE) and OF_JETSTREAM not in headers))
            and not 0 <= config.max_msg_size < len(headers) + len(payload)
            and len(headers) <= MAX_HEADER_BLOCK_BYTES
        )

    def take_plainly(self, headers: Sequence[bytes], payloads: Sequence[bytes]) -> bool:
        """Return whether `takes_plainly` holds for each of some messages, of one at least."""
        if any(headers):
            return all(map(self.takes_plainly, headers, payloads))
        largest_bytes = max(map(len, payloads))
        return (
            self.plain
            and largest_bytes <= MAX_VALUE_BYTES
            and not 0 <= self.config.max_msg_size < largest_bytes
        )

    def check(self, message: PortMessage) -> tuple[NewMessage, PublishOptions]:
        """Return what is to be appended, and what the message asks for. Raises ApiError."""
        subject, _, block, payload = message
        if self._transform is not None:
            subject = self._transform.apply(subject) or subject
        asked = self._checks.check(subject, block, payload, self._now_ms())
        options: dict[str, Any] = {}
        if asked.expected_last_subject_seq is not None:
            options["expected_last_subject_seq"] = asked.expected_last_subject_seq
            if asked.expected_subject:
                options["expected_subject"] = asked.expected_subject
        if asked.expected_last_msg_id:
            options["expected_last_msg_id"] = stored_id(asked.expected_last_msg_id)
        if asked.rollup:
            options["rollup"] = asked.rollup
        if asked.increment:
            options["incr"] = asked.increment
        ttl_seconds = None
        if asked.ttl == NEVER:
            options["never_expires"] = True
        elif asked.ttl is not None:
            ttl_seconds = float(asked.ttl)
        append = NewMessage(
            subject,
            payload,
            asked.block,
            stored_id(asked.msg_id) if asked.msg_id else None,
            asked.expected_last_seq,
            ttl_seconds,
            options or None,
        )
        return append, asked


def counter_value(total: str) -> bytes:
    """Return what a counter's message holds."""
    return b'{"val":"%b"}' % total.encode()


def stored_id(msg_id: str) -> str:
    """Return a message id as a store keeps it: long ones are hashed."""
    encoded = msg_id.encode()
    if len(encoded) <= MAX_MSG_ID_BYTES:
        return msg_id
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"
